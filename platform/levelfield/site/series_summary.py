"""The latest state of a series in a few figures. A site keeps it beside the files of a series that did not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.site.series_history import SeriesRuns
from levelfield.specs.base import Value
from levelfield.specs.record import RunRecord


class LatestFigures(Value):
    """Figures of the last run that may stand in a comparison."""

    run_id: str
    began: str
    tokens: float | None
    mfu: float | None
    memory: float | None
    energy: float | None
    loss: float | None


class SeriesSummary(Value):
    """valid: runs that may stand in a comparison. why_not: why the last run is none of them; None where it is."""

    runs: int
    valid: int
    nodes: int
    first: str
    last: str
    last_word: str
    why_not: str | None
    latest: LatestFigures | None


def summary_of(runs: SeriesRuns, records: Mapping[str, RunRecord]) -> SeriesSummary:
    """Return the summary of a series. records: of all its points."""
    in_order = [records[point.run_id] for point in runs.points]
    valid, last = [record for record in in_order if record.is_comparable], in_order[-1]
    return SeriesSummary(
        runs=len(in_order),
        valid=len(valid),
        nodes=len({record.node for record in in_order}),
        first=in_order[0].began,
        last=last.began,
        last_word=last.word,
        why_not=None if last.is_comparable else _why_not(last),
        latest=_figures(valid[-1]) if valid else None,
    )


def _figures(record: RunRecord) -> LatestFigures:
    figures: dict[str, Any] = {
        "tokens": record.tokens_per_second_per_device,
        "mfu": record.mfu,
        "memory": record.memory_bytes,
        "energy": record.joules_per_token,
        "loss": record.loss_tail,
    }
    return LatestFigures(run_id=record.run_id, began=record.began, **figures)


def _why_not(record: RunRecord) -> str:
    if record.word != "valid":
        return record.failure or record.reason or record.word
    return record.evidence if record.evidence != "sealed" else record.verdict
