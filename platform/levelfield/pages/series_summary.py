"""The latest state of a series in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.pages.history_columns import SeriesRuns
from levelfield.specs.record import Point


@dataclass(frozen=True)
class LatestFigures:
    """Figures of the last run of the trend that may stand in a comparison. verdict: on its loss, such as aligned."""

    run_id: str
    began: str
    verdict: str
    tokens: float | None
    mfu: float | None
    memory: float | None
    energy: float | None
    loss: float | None


@dataclass(frozen=True)
class SeriesSummary:
    """valid: runs that may stand in a comparison. last: of the trend. why_not: why it may not; None where it may."""

    runs: int
    valid: int
    nodes: int
    last: str
    last_word: str
    why_not: str | None
    latest: LatestFigures | None


def summary_of(runs: SeriesRuns) -> SeriesSummary:
    """Return the summary of a series, which has at least one run."""
    trend = [point for point in runs.points if point.is_of_trend]
    valid, last = [point for point in trend if point.is_comparable], (trend or runs.points)[-1]
    return SeriesSummary(
        runs=len(runs.points),
        valid=sum(point.is_comparable for point in runs.points),
        nodes=len({point.node for point in runs.points}),
        last=last.began,
        last_word=last.word,
        why_not=None if last.is_comparable else _why_not(last),
        latest=_figures(valid[-1]) if valid else None,
    )


def _figures(point: Point) -> LatestFigures:
    return LatestFigures(
        run_id=point.run_id,
        began=point.began,
        verdict=point.verdict,
        tokens=point.tokens_per_second_per_device,
        mfu=point.mfu,
        memory=point.memory_bytes,
        energy=point.joules_per_token,
        loss=point.loss_tail,
    )


def _why_not(point: Point) -> str:
    if point.word != "valid":
        return point.word
    return point.evidence if point.evidence != "sealed" else point.verdict
