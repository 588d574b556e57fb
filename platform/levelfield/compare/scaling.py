"""Computes speed-up and efficiency of one training on several numbers of devices.

Strong scaling: the same work on more devices. Weak scaling: the global batch grows with the devices, so each device has
the same work. Speed-up is tokens/s of all devices over those of the smallest run. Efficiency is the speed-up over the
ratio of the device counts, which is the ratio of tokens/s per device; its interval is that of this ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from levelfield.compare.comparability import (
    FIXED_READERS,
    NO_VALUE,
    ComparedField,
    FieldReader,
    chip_of,
    equal_and_unequal,
    window_tokens,
)
from levelfield.compare.comparison import SideFigure, side_figure, side_ratio
from levelfield.compare.ratios import Ratio, SideValues
from levelfield.compare.sides import RATE, ComparedSide, side_of
from levelfield.errors import UsageError
from levelfield.report.sheets import Sheet
from levelfield.report.words import format_number
from levelfield.specs.derivation import split_name
from levelfield.specs.record import RunRecord

ScalingKind = Literal["strong", "weak"]

SCHEMA = "levelfield.scaling/1"
_KIND_TEXTS = {
    "strong": "strong scaling: the same work on every number of devices",
    "weak": "weak scaling: the global batch grows with the devices",
}
_HEADER = ("devices", "runs", "tokens/s", "tokens/s/device", "speed-up", "efficiency", "predicted")


@dataclass(frozen=True)
class ScaledRuns:
    """The runs of one number of devices."""

    side: ComparedSide
    devices: int
    rate: SideFigure
    speed_up: float | None  # of all devices, against the smallest runs
    efficiency: Ratio | None  # of each device, against the smallest runs
    reason: str | None  # why these runs are not compared
    predicted: float | None = None  # tokens/s per device by the planner before the runs; None without one
    predicted_efficiency: float | None = None  # `predicted` over the smallest runs' own prediction


@dataclass(frozen=True)
class Scaling:
    """Runs by number of devices, the smallest first."""

    kind: ScalingKind
    rows: tuple[ScaledRuns, ...]
    unequal: tuple[ComparedField, ...]  # the fields that differ, so that nothing is compared


def compute_scaling(records: Sequence[RunRecord]) -> Scaling:
    """Return the scaling over runs of one training. Raises UsageError below two numbers of devices."""
    counts = sorted({record.series.devices for record in records})
    if len(counts) < 2:
        numbers = f"{counts[0]} device(s)" if counts else "no device"
        raise UsageError(f"--scaling: found runs of {numbers} only, expected at least two numbers of devices")
    sides = [side_of(f"{n} devices", [record for record in records if record.series.devices == n]) for n in counts]
    kind: ScalingKind = "strong" if len({record.series.work for record in records}) == 1 else "weak"
    counted_sides = [side for side in sides if side.counted]
    unequal = (
        equal_and_unequal(counted_sides, _EQUAL_READERS | (_STRONG_READERS if kind == "strong" else _WEAK_READERS))[1]
        if counted_sides
        else ()
    )
    base = None if unequal or not counted_sides else side_figure(RATE, counted_sides[0].counted)
    rows = []
    for side in sides if counted_sides else ():
        devices, rate = side.first.series.devices, side_figure(RATE, side.counted)
        if not side.counted:
            exclusion_reasons = "; ".join(reason for _, reason in side.excluded)
            rows.append(ScaledRuns(side, devices, rate, None, None, exclusion_reasons))
            continue
        predicted, first_predicted = _predicted_rate(side), _predicted_rate(counted_sides[0])
        efficiency, speed_up, predicted_efficiency = None, None, None
        if base and side is not counted_sides[0]:
            efficiency = side_ratio(RATE, SideValues(rate.values), SideValues(base.values))
            device_ratio = devices / counted_sides[0].first.series.devices
            speed_up = None if efficiency.value is None else efficiency.value * device_ratio
            predicted_efficiency = predicted / first_predicted if predicted and first_predicted else None
        rows.append(ScaledRuns(side, devices, rate, speed_up, efficiency, None, predicted, predicted_efficiency))
    return Scaling(kind, tuple(rows), unequal)


def _predicted_rate(side: ComparedSide) -> float | None:
    """Return the planner's tokens/s per device of a side; None where its runs have none, or differ."""
    rates = {record.result.predicted_rate for record in side.counted}
    rate = rates.pop() if len(rates) == 1 else None
    return rate if rate is not None and rate > 0 else None


_EQUAL_READERS: dict[str, FieldReader] = {
    **{name: FIXED_READERS[name] for name in ("scale", "window", "device")},
    "precision": lambda r: r.series.precision,
    "framework": lambda r: r.series.framework_label,
    "framework version": lambda r: r.subject.framework_version,
    "chip": lambda r: chip_of(r.series),
    "corpus": FIXED_READERS["corpus"],
}
_STRONG_READERS: dict[str, FieldReader] = {
    name: FIXED_READERS[name] for name in ("work", "tokens of the window", "tokens read", "initial weights")
}
_WEAK_READERS: dict[str, FieldReader] = {
    "case": lambda r: case_without_batch(r.series.case),
    "parameters": lambda r: r.result.parameters,
    "tokens of the window per device": lambda r: (
        None if (tokens := window_tokens(r)) is None else tokens / r.series.devices
    ),
}


def case_without_batch(case: str) -> str:
    """Return the name of a derived case without its batch: `gpt+steps20+batch64` to `gpt+steps20`."""
    name, derivation = split_name(case)
    return name + derivation.model_copy(update={"global_batch": None}).suffix


def scaling_sheets(result: Scaling) -> Iterator[Sheet]:
    """Yield the table of speed-up and efficiency; or the fields that differ, and no ratio."""
    yield Sheet(
        "", ("devices", "series"), tuple((str(row.devices), row.side.first.series.label) for row in result.rows)
    )
    if result.unequal:
        header = ("field", *(f"{row.devices}" for row in result.rows if row.side.counted))
        rows = tuple((field.name, *field.cells) for field in result.unequal)
        yield Sheet("NOT COMPARABLE: these fields must be equal, so no ratio is printed", header, rows)
        return
    reasons = [row.efficiency.reason for row in result.rows if row.efficiency]
    missing = [f"{row.devices} devices: not compared: {row.reason}" for row in result.rows if row.reason]
    missing += [
        f"{row.devices} devices: left out: {record.run_id}: {reason}"
        for row in result.rows
        if row.side.counted
        for record, reason in row.side.excluded
    ]
    dash_note = "" if all(row.predicted for row in result.rows) else f"; {NO_VALUE} where it did not choose the layout"
    notes = (
        "efficiency: tokens/s per device over that of the smallest runs",
        *dict.fromkeys((*reasons, *missing)),
        f"predicted: by the planner before the runs, tokens/s/device and efficiency{dash_note}",
    )
    yield Sheet(_KIND_TEXTS[result.kind], _HEADER, tuple(map(_row_cells, result.rows)), notes)


def scaling_json(result: Scaling) -> dict[str, Any]:
    """Return the scaling as a JSON object, in full precision."""
    return {
        "schema": SCHEMA,
        "kind": result.kind,
        "comparable": not result.unequal,
        "unequal": {field.name: [list(values) for values in field.values] for field in result.unequal},
        "rows": [
            {
                "devices": row.devices,
                "series": row.side.first.series.label,
                "runs": [record.run_id for record in row.side.counted],
                "tokens_per_second_per_device": list(row.rate.values),
                "speed_up": row.speed_up,
                "efficiency": asdict(row.efficiency) if row.efficiency else None,
                "predicted_tokens_per_second_per_device": row.predicted,
                "predicted_efficiency": row.predicted_efficiency,
                "left_out": [{"run": record.run_id, "reason": reason} for record, reason in row.side.excluded],
                "disturbed": row.side.is_disturbed,
                "reason": row.reason,
            }
            for row in result.rows
        ],
    }


def _row_cells(row: ScaledRuns) -> tuple[str, ...]:
    median, ratio = row.rate.interval.median if row.rate.interval else None, row.efficiency
    efficiency = NO_VALUE if ratio is None or ratio.value is None else f"{ratio.value:.3f}"
    if ratio and ratio.value is not None and ratio.low is not None and ratio.high is not None:
        efficiency += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    predicted_efficiency = "" if row.predicted_efficiency is None else f" {row.predicted_efficiency:.3f}"
    return (
        str(row.devices),
        f"{len(row.rate.values)}{', disturbed' if row.side.is_disturbed else ''}",
        format_number(None if median is None else median * row.devices),
        RATE.column.text(median),
        format_number(row.speed_up, 2),
        efficiency,
        NO_VALUE if row.predicted is None else f"{format_number(row.predicted)}{predicted_efficiency}",
    )
