"""Stored runs into a folder of pages. Files of a series that did not change stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.compare.comparison import duel_conclusions
from levelfield.compare.published_rows import FigureRow, published_rows, reported_rows, reported_sets
from levelfield.compare.ranking import metrics
from levelfield.pages.case_view import case_view, training_figures
from levelfield.pages.content import PagesContent, read_content
from levelfield.pages.first_view import FirstView, PlannedIntensity, first_view, planned_intensity, read_trainings
from levelfield.pages.night_view import badge_files, night_view
from levelfield.pages.node_view import nodes_view
from levelfield.pages.page_rendering import LANGUAGES, folder_of, render_page, script_figures, script_texts
from levelfield.pages.run_details import month_data
from levelfield.pages.series_history import (
    CachedDocuments,
    CheckoutRuns,
    SeriesRuns,
    SeriesSummary,
    StoredResults,
    group_by,
    history_data,
    month_of,
    summary_of,
)
from levelfield.pages.site_files import PagesWriter, data_script
from levelfield.report.costs import price_lines
from levelfield.series.ticket import Tickets
from levelfield.specs.prices import Prices
from levelfield.specs.record import Point, RunRecord
from levelfield.specs.result import DISTURBED
from levelfield.store.database import infrequent_gc

_PAGES_FOLDER = Path(__file__).parent
ASSETS = (*sorted(path.name for path in (_PAGES_FOLDER / "assets").glob("*.js")), "style.css", "icon.svg")
VENDORED_ASSETS = ("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE")
MENU = ("index", "nights", "nodes", "published", "guide")
References = Mapping[tuple[str, str], tuple[str, list[float]]]  # by digests of work and corpus: name, losses

Summaries = Mapping[str, SeriesSummary]  # by the digest of a series


@dataclass(frozen=True)
class BuiltPages:
    """Counts of what `build_pages` read and wrote."""

    run_count: int
    series_count: int
    rebuilt_count: int  # series of which a file was written
    file_count: int
    unreadable_ids: tuple[str, ...]  # runs without a readable time
    left_out_count: int  # runs of the store that belong to other checkouts


@dataclass(frozen=True)
class MonthRuns:
    """The runs of a series in a month, which are one file."""

    runs: SeriesRuns
    run_ids: tuple[str, ...]
    file_name: str
    stamp: str  # digest of what the file is made from
    reference: tuple[str, list[float]] | None


def build_pages(
    results: StoredResults,
    folder: Path,
    registry: Registry,
    unpaired_findings: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
    private: bool = False,
    prices: Prices | None = None,
    tickets: Tickets = MappingProxyType({}),
) -> BuiltPages:
    """Write the site. Raises UsageError for the folder.

    unpaired_findings: findings of the last night, as `read_content` takes them. progress: called with the number of
    months done and of all. private: whether the results hold runs that are not to be published. prices: for the cost
    of a token. tickets: of the last night's findings.
    """
    with PagesWriter(folder, private) as writer:
        content, references = read_content(results, unpaired_findings), stored_references(registry)
        documents = CachedDocuments(results)
        rebuilt: set[str] = set()
        for runs in content.series.values():
            name, stamp = f"history-{runs.slug}", _content_stamp(runs, runs.points, "")
            if not writer.reuse(f"data/{name}.js", stamp):
                writer.write(f"data/{name}.js", data_script(name, history_data(runs, documents)), stamp)
                rebuilt.add(runs.slug)
        months = []
        for runs in content.series.values():
            reference = references.get((runs.series.work, runs.series.corpus))
            for month, points in group_by(runs.points, lambda point: month_of(point.began)).items():
                name, stamp = f"runs-{runs.slug}-{month}", _content_stamp(runs, points, repr(reference))
                if not writer.reuse(f"data/{name}.js", stamp):
                    months.append(MonthRuns(runs, tuple(point.run_id for point in points), name, stamp, reference))
        rebuilt |= {month_runs.runs.slug for month_runs in months}
        with infrequent_gc():
            for done, (month_runs, records) in enumerate(_read_months(months, results), start=1):
                data = month_data(month_runs.runs.series, records, month_runs.reference)
                writer.write(
                    f"data/{month_runs.file_name}.js", data_script(month_runs.file_name, data), month_runs.stamp
                )
                if progress:
                    progress(done, len(months))
        for name in (*ASSETS, *VENDORED_ASSETS):
            writer.write(f"assets/{name}", (_PAGES_FOLDER / "assets" / name).read_text(encoding="utf-8"))
        made_at = datetime.now(timezone.utc)
        write_pages(writer, content, results, registry, references, made_at, documents, prices, tickets)
        writer.finish()
    counts = (content.run_count, len(content.series), len(rebuilt), len(writer.stamps))
    return BuiltPages(*counts, tuple(content.unreadable_ids), _left_out_count(results))


def _left_out_count(results: StoredResults) -> int:
    return results.left_out if isinstance(results, CheckoutRuns) else 0


def stored_references(registry: Registry) -> References:
    """Return the loss curves of the stored references, by what they are references of."""
    references = [registry.reference(name) for name in registry.references]
    return {(r.identity.work, r.identity.corpus): (r.name, list(r.losses)) for r in references}


def _read_months(months: Sequence[MonthRuns], results: StoredResults) -> Iterator[tuple[MonthRuns, list[RunRecord]]]:
    """Yield each month with its records. They are read in one pass, so that a store reads what they share once.

    A run that was removed since its point was read is left out.
    """
    records_in_order = results.records([run_id for month in months for run_id in month.run_ids])
    next_record = next(records_in_order, None)
    for month in months:
        ids, records = set(month.run_ids), []
        while next_record is not None and next_record.run_id in ids:
            records.append(next_record)
            next_record = next(records_in_order, None)
        yield month, records


def _content_stamp(runs: SeriesRuns, points: Sequence[Point], extra: str) -> str:
    """Return a digest of what a data file is made from. A stored run never changes."""
    text = "\n".join([_code_digest(), runs.digest, extra, *(point.run_id for point in points)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _code_digest() -> str:
    """Return a digest of the code that makes the files."""
    digest = hashlib.sha256(levelfield.__version__.encode())
    for path in sorted(_PAGES_FOLDER.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def write_pages(
    writer: PagesWriter,
    content: PagesContent,
    results: StoredResults,
    registry: Registry,
    references: References,
    made_at: datetime,
    documents: CachedDocuments,
    prices: Prices | None = None,
    tickets: Tickets = MappingProxyType({}),
) -> None:
    """Write every page and the data that they share."""
    summaries = {digest: summary_of(runs) for digest, runs in content.series.items()}
    cases = [case_view(case, series, summaries, content) for case, series in content.series_by_case().items()]
    trainings, night = read_trainings(content, results), night_view(content, tickets)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    duels = duel_conclusions(content.events)
    views = [first_view(trainings, metric, histories, duels) for metric in metrics(prices)]  # by throughput first
    case_trainings = group_by(trainings, lambda training: training.example.case_slug)
    figures = {
        case.slug: [training_figures(training, references) for training in case_trainings.get(case.slug, ())]
        for case in cases
    }
    # The switch of the metric is a link, which needs no script and has an address.
    file_by_metric = {view.metric.name: f"by-{view.metric.name}.html" if view.overall.rows else None for view in views}
    file_by_metric[views[0].metric.name] = "index.html"
    missing_reasons = {}  # why no run has the figure; empty where one has it or nothing ran
    for view in views:
        reasons = [side.reason for training in view.trainings for side in training.ranking.unranked]
        missing_reasons[view.metric.name] = "" if view.overall.rows else "; ".join(dict.fromkeys(reasons))
    price_notes: list[str] = []  # the prices of the chips that have a cost, each with what the cost includes
    if prices:
        sides = [bar.contender.side.first for training in views[-1].trainings for bar in training.ranking.bars]
        covers = {side.series.chip: views[-1].metric.quantity.included_costs(side) for side in sides}
        price_notes = [f"{line} ({covers[chip]})" for chip in covers for line in price_lines(prices, [chip])]
    switch = {"file_by_metric": file_by_metric, "missing_reasons": missing_reasons, "price_notes": price_notes}
    nodes = nodes_view(content, documents)
    published_page_rows = list(_published_page_rows(content, summaries, registry))
    pages: list[tuple[str, str, dict[str, Any]]] = [  # file, template, values
        *(
            (file, "index", {"view": view, "night": night, "planned": _planned_intensities(view, registry), **switch})
            for view in views
            if (file := file_by_metric[view.metric.name])
        ),
        ("nights.html", "nights", {"night": night}),
        ("run.html", "run", {}),
        ("nodes.html", "nodes", {"nodes": nodes}),
        ("published.html", "published", {"rows": published_page_rows}),
        ("guide.html", "guide", {}),
        *((f"case-{case.slug}.html", "case", {"case": case, "figures": figures[case.slug]}) for case in cases),
    ]
    made = made_at.strftime("%Y-%m-%d %H:%M UTC")
    shared = {"made": made, "version": levelfield.__version__, "private": writer.private}
    # the menu names no page without content
    page_content = {"nights": night.night, "nodes": nodes.nodes, "published": published_page_rows}
    shared |= {"menu": [name for name in MENU if page_content.get(name, True)]}
    shared |= {"currency": prices.currency if prices else "", "left_out": _left_out_count(results)}
    for language in LANGUAGES:
        for name, template, values in pages:
            writer.write(f"{folder_of(language)}{name}", render_page(language, template, name, **shared, **values))
        writer.write(f"data/texts-{language}.js", data_script(f"texts-{language}", script_texts(language)))
    writer.write("data/figures.js", data_script("figures", script_figures()))
    for case in cases:
        writer.write(f"data/case-{case.slug}.js", data_script(f"case-{case.slug}", case.script_data()))
    for name, text in badge_files(night).items():
        writer.write(name, text)


def _planned_intensities(view: FirstView, registry: Registry) -> dict[str, PlannedIntensity]:
    """Return the planned intensity of each side by its first run, where MFU is shown."""
    bars = [bar for training in view.trainings for bar in training.best_bars] if view.metric.name == "mfu" else []
    planned = {bar.run_id: planned_intensity(bar.ranked.contender.side.first, registry) for bar in bars}
    return {run_id: intensity for run_id, intensity in planned.items() if intensity}


def _published_page_rows(
    content: PagesContent, summaries: Summaries, registry: Registry
) -> Iterator[tuple[FigureRow, str | None]]:
    """Yield for each case that has rows of others: our full-scale results first, with the names of their files."""
    cases = {row.setting.case for name in registry.published for row in registry.published_set(name).rows}
    cases |= {row.case for runs in reported_sets(registry) for row in runs.rows}
    for case in (case for case in registry.all_cases if case in cases):
        for runs in content.series.values():
            latest = summaries[runs.digest].latest
            if latest and (runs.series.case, runs.series.scale) == (case, "full"):
                yield _measured_row(runs, latest), runs.slug
        yield from ((row, None) for row in (*published_rows(case, registry), *reported_rows(case, registry)))


def _measured_row(runs: SeriesRuns, latest: Point) -> FigureRow:
    s = runs.series
    return FigureRow(
        origin="measured",
        case=s.case,
        name=latest.run_id,
        framework=s.framework,
        hardware=f"{s.nodes}x{s.devices // s.nodes} {s.chip}",
        layout=str(s.layout),
        micro_batch=s.micro_batch,
        precision=s.precision,
        status=DISTURBED if runs.is_disturbed else latest.word,
        source="",
        tokens_per_second_per_device=latest.tokens_per_second_per_device,
        tokens_from="measured",
        mfu_low=latest.mfu_megatron,
        mfu_high=latest.mfu_megatron,
        mfu_from="measured" if latest.mfu_megatron is not None else "no peak of the chip is known",
        memory_bytes=latest.memory_bytes,
        memory_from="measured" if latest.memory_bytes is not None else "no counter gave one",
    )
