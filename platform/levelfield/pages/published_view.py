"""Published rows beside the latest own results of the same case, by one convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.catalog.registry import Registry
from levelfield.pages.gathering import PagesContent
from levelfield.pages.history_columns import SeriesRuns
from levelfield.pages.series_summary import SeriesSummary
from levelfield.publish.published_rows import FigureRow, published
from levelfield.report.words import GIB


@dataclass(frozen=True)
class BesideRow:
    """One line of the table. case_slug, slug: of our own series; None for a published row. mfu: in percent, as text."""

    is_ours: bool
    case: str
    name: str
    framework: str
    hardware: str
    layout: str
    micro_batch: int
    precision: str
    tokens: float | None
    tokens_from: str
    mfu: str | None
    mfu_sorted: float | None
    mfu_from: str
    memory_gib: float | None
    memory_from: str
    case_slug: str | None = None
    slug: str | None = None


def beside_rows(content: PagesContent, summaries: Mapping[str, SeriesSummary], registry: Registry) -> list[BesideRow]:
    """Return for each case that has published rows: our full-scale results first, then the published rows."""
    rows: list[BesideRow] = []
    for case in cases_with_rows(registry):
        own = [runs for runs in content.series.values() if runs.series.case == case and runs.series.scale == "full"]
        rows += [row for runs in own if (row := _ours(runs, summaries[runs.digest]))]
        rows += [_published(line) for line in published(case, registry)]
    return rows


def cases_with_rows(registry: Registry) -> Sequence[str]:
    """Return the cases of the catalogue that a published row belongs to."""
    named = {row.setting.case for name in registry.published for row in registry.figures(name).rows}
    return [case for case in registry.all_cases if case in named]


def _ours(runs: SeriesRuns, summary: SeriesSummary) -> BesideRow | None:
    s, latest = runs.series, summary.latest
    if latest is None:
        return None
    return BesideRow(
        is_ours=True,
        case=s.case,
        name=latest.run_id,
        framework=s.framework,
        hardware=f"{s.nodes}x{s.devices // s.nodes} {s.chip}",
        layout=str(s.layout),
        micro_batch=s.micro_batch,
        precision=s.precision,
        tokens=latest.tokens,
        tokens_from="measured",
        mfu=None if latest.mfu is None else f"{latest.mfu * 100:.1f} %",
        mfu_sorted=latest.mfu,
        mfu_from="measured" if latest.mfu is not None else "no peak of the chip is known",
        memory_gib=None if latest.memory is None else latest.memory / GIB,
        memory_from="measured" if latest.memory is not None else "no counter gave one",
        case_slug=runs.case_slug,
        slug=runs.slug,
    )


def _published(line: FigureRow) -> BesideRow:
    return BesideRow(
        is_ours=False,
        case=line.case,
        name=line.name,
        framework=line.framework,
        hardware=line.hardware,
        layout=line.layout,
        micro_batch=line.micro_batch,
        precision=line.precision,
        tokens=line.tokens_per_second_per_device,
        tokens_from=line.tokens_from,
        mfu=line.mfu if line.mfu_high is not None else None,
        mfu_sorted=line.mfu_high,
        mfu_from=line.mfu_from,
        memory_gib=None if line.memory_bytes is None else line.memory_bytes / GIB,
        memory_from=line.memory_from,
    )
