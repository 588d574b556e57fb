"""Loss against its reference, and memory by part against the device, as SVG that needs no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.compare.ranking import Contender
from levelfield.pages.first_view import RankedTraining
from levelfield.specs.record import RunRecord

WIDTH, HEIGHT, LEFT = 360.0, 200.0, 44.0  # of a chart of losses; LEFT has the axis' numbers
MOST_POINTS = 120  # of a line
PARTS = ("allocated", "reserved", "device")  # each contains the one before it


@dataclass(frozen=True)
class LossLine:
    """The losses of the last run of a side, or of the reference: then `contender` is None.

    apart: the largest relative difference from the reference; None without one.
    """

    contender: Contender | None
    losses: tuple[float, ...]
    points: str
    apart: float | None


@dataclass(frozen=True)
class MemoryBar:
    """Memory of the fullest device of the last run of a side. whole: the headline peak, in bytes; None with its reason.

    parts: name, bytes and percent of the device that each adds to those before.
    """

    contender: Contender
    whole: float | None
    capacity: float | None
    parts: tuple[tuple[str, float, float], ...]
    reason: str


@dataclass(frozen=True)
class TrainingFigures:
    """reference: the name of the stored one; None without one. ticks: of the vertical axis of the losses."""

    training: RankedTraining
    reference: str | None
    lines: tuple[LossLine, ...]
    ticks: tuple[tuple[str, float], ...]
    memory: tuple[MemoryBar, ...]


def training_figures(
    training: RankedTraining, references: Mapping[tuple[str, str], tuple[str, list[float]]]
) -> TrainingFigures:
    """Return the charts of one training, of the last run of each contender, as the table of the case has."""
    series = training.first.series
    name, known = references.get((series.work, series.corpus), (None, []))
    curves = [(each, _finite(each.side.last.losses)) for each in training.contenders]
    drawn = [(None, tuple(known)), *curves] if known else curves
    values = [loss for _, losses in drawn for loss in losses]
    low, high = min(values, default=0.0), max(values, default=1.0)
    most = max((len(losses) for _, losses in drawn), default=1)
    lines = tuple(
        LossLine(each, losses, _points(losses, low, high, most), _apart(losses, known) if each else None)
        for each, losses in drawn
    )
    ticks = tuple((f"{value:.2f}", _y(value, low, high)) for value in (low, (low + high) / 2, high))
    return TrainingFigures(training, name, lines, ticks, tuple(map(_memory, training.contenders)))


def _finite(losses: Sequence[float | None]) -> tuple[float, ...]:
    """Return the losses up to the first that is no number: what follows it would stand at a wrong step."""
    known: list[float] = []
    for loss in losses:
        if loss is None or not math.isfinite(loss):
            break
        known.append(loss)
    return tuple(known)


def _apart(losses: Sequence[float], known: Sequence[float]) -> float | None:
    pairs = [(loss, reference) for loss, reference in zip(losses, known, strict=False) if reference]
    return max((abs(loss / reference - 1) for loss, reference in pairs), default=None)


def _points(losses: Sequence[float], low: float, high: float, most: int) -> str:
    """Return the `points` of a polyline. Of a long curve every n-th step is drawn, and the last one."""
    every = max(1, math.ceil(len(losses) / MOST_POINTS))
    steps = sorted({*range(0, len(losses), every), len(losses) - 1} - {-1})
    across = (WIDTH - LEFT) / max(1, most - 1)
    return " ".join(f"{LEFT + step * across:.1f},{_y(losses[step], low, high):.1f}" for step in steps)


def _y(value: float, low: float, high: float) -> float:
    return 10 + (HEIGHT - 20) * (1 - (value - low) / ((high - low) or 1))


def _memory(contender: Contender) -> MemoryBar:
    record = contender.side.last
    capacity = record.result.memory.capacity_bytes
    whole = record.memory_bytes
    found = () if whole is None or not capacity else tuple(_parts(record, whole, capacity))
    reason = "" if whole is not None else record.result.memory.device_used_peak.reason or ""
    return MemoryBar(contender, whole, capacity, found, reason)


def _parts(record: RunRecord, whole: float, capacity: float) -> list[tuple[str, float, float]]:
    """Return what each part adds. A part that is not known, or not within the next, is drawn as one with it."""
    inner = [getattr(record.result.memory, f"{name}_peak").value for name in PARTS[:-1]]
    found, below = [], 0.0
    for name, value in [*zip(PARTS, inner, strict=False), (PARTS[-1], whole)]:
        if value is not None and below <= value <= whole:
            found.append((name, value - below, round(min(100.0, (value - below) / capacity * 100), 1)))
            below = value
    return [part for part in found if part[1] > 0]
