"""The pages of a site in every language, and the small data files that belong to no single series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.site.case_view import CaseView, case_view
from levelfield.site.comparison_rules import RULES
from levelfield.site.escaped_data import data_script
from levelfield.site.gathering import SiteContent
from levelfield.site.history_columns import SurroundingDocuments
from levelfield.site.node_view import nodes_view
from levelfield.site.overview import overview
from levelfield.site.page_rendering import PageRenderer, folder_of
from levelfield.site.page_texts import LANGUAGES, script_texts
from levelfield.site.published_view import beside_rows
from levelfield.site.series_summary import summary_of
from levelfield.site.site_manifest import SiteWriter


def write_pages(
    writer: SiteWriter,
    content: SiteContent,
    registry: Registry,
    made: datetime,
    documents: SurroundingDocuments,
) -> None:
    """Write every page and the data that they share."""
    summaries = {digest: summary_of(runs) for digest, runs in content.series.items()}
    cases = [case_view(case, series, summaries, content) for case, series in content.cases().items()]
    first = overview(content, summaries)
    nodes = nodes_view(content, first.quarantined, documents)
    values = {"overview": first, "rows": beside_rows(content, summaries, registry), "nodes": nodes}
    shared = {"made": made.strftime("%Y-%m-%d %H:%M UTC"), "version": levelfield.__version__}
    for language in LANGUAGES:
        renderer, folder = PageRenderer(language, shared), folder_of(language)
        for name, template, more in _pages(values, cases):
            writer.write(f"{folder}{name}", renderer.render(template, name, **more))
        data = data_script(f"texts-{language}", script_texts(language))
        writer.write(f"data/texts-{language}.js", data)
    for case in cases:
        writer.write(f"data/case-{case.slug}.js", data_script(f"case-{case.slug}", case.statements()))
    writer.write("data/site.js", data_script("site", _site(content)))


def _pages(values: Mapping[str, Any], cases: Sequence[CaseView]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (file, template, values) of every page."""
    return [
        ("index.html", "index", {"o": values["overview"]}),
        ("run.html", "run", {}),
        ("compare.html", "compare", {}),
        ("nodes.html", "nodes", {"n": values["nodes"]}),
        ("published.html", "published", {"rows": values["rows"]}),
        ("guide.html", "guide", {}),
        *((f"case-{case.slug}.html", "case", {"c": case}) for case in cases),
    ]


def _site(content: SiteContent) -> dict[str, Any]:
    """Return the list of series that two runs are chosen from, and the rules by which they are compared."""
    series = [
        {"slug": runs.slug, "label": runs.series.label, "case": runs.series.case, "runs": len(runs.points)}
        for each in content.cases().values()
        for runs in each
    ]
    return {"series": series, "rules": RULES}
