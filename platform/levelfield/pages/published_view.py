"""Published rows beside the latest own results of the same case, by one convention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from levelfield.catalog.registry import Registry
from levelfield.pages.content import PagesContent
from levelfield.pages.series_history import SeriesRuns, SeriesSummary
from levelfield.publish.published_rows import FigureRow, published, reported
from levelfield.specs.record import Point

Summaries = Mapping[str, SeriesSummary]  # by the digest of a series


def beside_rows(
    content: PagesContent, summaries: Summaries, registry: Registry
) -> Iterator[tuple[FigureRow, str | None]]:
    """Yield for each case that has rows of others: our full-scale results first, with the names of their files."""
    named = {row.setting.case for name in registry.published for row in registry.figures(name).rows}
    named |= {row.case for name in registry.reported for row in registry.reported_set(name).rows}
    for case in (case for case in registry.all_cases if case in named):
        for runs in content.series.values():
            latest = summaries[runs.digest].latest
            if latest and (runs.series.case, runs.series.scale) == (case, "full"):
                yield _ours(runs, latest), runs.slug
        yield from ((row, None) for row in (*published(case, registry), *reported(case, registry)))


def _ours(runs: SeriesRuns, latest: Point) -> FigureRow:
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
        status=latest.word,
        source="",
        tokens_per_second_per_device=latest.tokens_per_second_per_device,
        tokens_from="measured",
        mfu_low=latest.mfu,
        mfu_high=latest.mfu,
        mfu_from="measured" if latest.mfu is not None else "no peak of the chip is known",
        memory_bytes=latest.memory_bytes,
        memory_from="measured" if latest.memory_bytes is not None else "no counter gave one",
    )
