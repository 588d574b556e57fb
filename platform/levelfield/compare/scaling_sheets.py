"""Speed-up and scaling efficiency as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from levelfield.compare.compared_fields import NOTHING
from levelfield.compare.quantities import RATE
from levelfield.compare.ratios import Ratio
from levelfield.compare.scaling import ScaledRuns, Scaling
from levelfield.report.sheets import Sheet
from levelfield.report.words import number

SCHEMA = "levelfield.scaling/1"
_KINDS = {
    "strong": "strong scaling: the same work on every number of devices",
    "weak": "weak scaling: the global batch grows with the devices",
}
_HEADER = ("devices", "runs", "tokens/s", "tokens/s/device", "speed-up", "efficiency")


def sheets(found: Scaling) -> Iterator[Sheet]:
    """Yield the table of speed-up and efficiency; or the fields that differ, and no ratio."""
    yield Sheet("", ("devices", "series"), tuple((str(row.devices), row.side.first.series.label) for row in found.rows))
    if found.unequal:
        header = ("field", *(f"{row.devices}" for row in found.rows if row.side.counted))
        rows = tuple((field.name, *field.cells) for field in found.unequal)
        yield Sheet("NOT COMPARABLE: these fields must be equal, so no ratio is printed", header, rows)
        return
    reasons = [row.efficiency.reason for row in found.rows if row.efficiency]
    missing = [f"{row.devices} devices: not compared: {row.reason}" for row in found.rows if row.reason]
    notes = ("efficiency: tokens/s per device over that of the smallest runs", *dict.fromkeys((*reasons, *missing)))
    if not any(row.predicted for row in found.rows):
        yield Sheet(_KINDS[found.kind], _HEADER, tuple(map(_cells, found.rows)), notes)
        return
    rows = tuple((*_cells(row), _predicted(row)) for row in found.rows)
    notes = (*notes, "predicted: by the planner before the runs, tokens/s per device and efficiency")
    yield Sheet(_KINDS[found.kind], (*_HEADER, "predicted"), rows, notes)


def as_values(found: Scaling) -> dict[str, Any]:
    """Return the scaling as a JSON object, in full precision."""
    return {
        "schema": SCHEMA,
        "kind": found.kind,
        "comparable": not found.unequal,
        "unequal": {field.name: [list(values) for values in field.values] for field in found.unequal},
        "rows": [_row_values(row) for row in found.rows],
    }


def _cells(row: ScaledRuns) -> tuple[str, ...]:
    median = row.rate.interval.median if row.rate.interval else None
    return (
        str(row.devices),
        str(len(row.rate.values)),
        number(None if median is None else median * row.devices),
        RATE.column.shown(median),
        number(row.speed_up, 2),
        _efficiency(row.efficiency),
    )


def _efficiency(found: Ratio | None) -> str:
    """Return the efficiency with its 95 % interval, where there is one."""
    if found is None or found.value is None:
        return NOTHING
    is_known = found.low is not None and found.high is not None
    return f"{found.value:.3f}" + (f" [{found.low:.3f}, {found.high:.3f}]" if is_known else "")


def _predicted(row: ScaledRuns) -> str:
    if row.predicted is None:
        return NOTHING
    ratio = "" if row.predicted_efficiency is None else f" {row.predicted_efficiency:.3f}"
    return f"{number(row.predicted)}{ratio}"


def _row_values(row: ScaledRuns) -> dict[str, Any]:
    return {
        "devices": row.devices,
        "series": row.side.first.series.label,
        "runs": [record.run_id for record in row.side.counted],
        "tokens_per_second_per_device": list(row.rate.values),
        "speed_up": row.speed_up,
        "efficiency": asdict(row.efficiency) if row.efficiency else None,
        "predicted_tokens_per_second_per_device": row.predicted,
        "predicted_efficiency": row.predicted_efficiency,
        "reason": row.reason,
    }
