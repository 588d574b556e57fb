"""The comparison of two or more sides: comparability first, then every figure with its interval and its ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.compare.comparability import Comparability, comparability
from levelfield.compare.evidence import ComparedSide
from levelfield.compare.quantities import QUANTITIES, Quantity
from levelfield.compare.ratios import HistoricNoise, Ratio, SideValues, historic_noise, ratio
from levelfield.errors import UsageError
from levelfield.measure.series import Interval, over_repeats
from levelfield.specs.record import Point, RunRecord

NEWEST = 30  # runs of a history whose noise is taken
Histories = Mapping[str, Sequence[Point]]  # by the digest of a series


@dataclass(frozen=True)
class SideFigure:
    """One figure of one side: the median over its runs with its interval. reason: why one of its runs lacks it."""

    values: tuple[float, ...]
    interval: Interval | None
    reason: str | None


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of all sides. ratios: of every side after the first against the first."""

    quantity: Quantity
    sides: tuple[SideFigure, ...]
    ratios: tuple[Ratio, ...]


@dataclass(frozen=True)
class Comparison:
    """figures: empty where the sides are not comparable."""

    sides: tuple[ComparedSide, ...]
    comparability: Comparability
    figures: tuple[ComparedFigure, ...]


def compare(
    sides: Sequence[ComparedSide], histories: Histories | None = None, across_precision: bool = False
) -> Comparison:
    """Compare sides with the first. histories: stored runs of their series. Raises UsageError below two sides."""
    if len(sides) < 2:
        raise UsageError(f"compare: found {len(sides)} side, expected at least 2: compare A B")
    found = comparability(sides, across_precision)
    figures = tuple(_compared(q, sides, histories or {}) for q in QUANTITIES) if found.holds else ()
    return Comparison(tuple(sides), found, figures)


def side_figure(quantity: Quantity, records: Sequence[RunRecord]) -> SideFigure:
    """Return the figure over runs. The median and its interval are those of `report` over repeats."""
    known = [(record, quantity.read(record)) for record in records]
    values = tuple(value for _, value in known if value is not None)
    lacking = [record for record, value in known if value is None]
    reason = quantity.missing(lacking[0]) if lacking else None
    return SideFigure(values, over_repeats(values) if values else None, reason)


def side_ratio(
    quantity: Quantity, side: SideFigure, base: SideFigure, noise: Sequence[HistoricNoise | None] = (None, None)
) -> Ratio:
    """Return side over base. noise: of the history of the side and of the base."""
    if not side.values or not base.values:
        return Ratio(None, None, None, "no ratio", "a side has no such figure")
    found = ratio(SideValues(side.values, noise[0]), SideValues(base.values, noise[1]))
    if quantity.is_noisy or found.value is None:
        return found
    why = "a loss differs by arithmetic, which statistics over repeats do not show; see the alignment verdict"
    return Ratio(found.value, None, None, "see alignment", why)


def _compared(quantity: Quantity, sides: Sequence[ComparedSide], histories: Histories) -> ComparedFigure:
    figures = [side_figure(quantity, side.counted) for side in sides]
    noise = [_noise(quantity, side, histories.get(side.first.series.fingerprint(), ())) for side in sides]
    ratios = [
        side_ratio(quantity, figure, figures[0], (own, noise[0]))
        for figure, own in zip(figures[1:], noise[1:], strict=True)
    ]
    return ComparedFigure(quantity, tuple(figures), tuple(ratios))


def _noise(quantity: Quantity, side: ComparedSide, points: Sequence[Point]) -> HistoricNoise | None:
    """Return the noise of the side's series: its newest accepted runs on the same node, under the same conditions."""
    record, own = side.counted[0], {run.run_id for run in side.runs}
    conditions = record.conditions.fingerprint()
    kept = [
        value
        for p in points
        if p.run_id not in own
        and (p.node, p.conditions) == (record.node, conditions)
        and p.is_comparable
        and p.is_of_trend
        and (value := getattr(p, quantity.column.name, None)) is not None
    ]
    return historic_noise(kept[-NEWEST:])
