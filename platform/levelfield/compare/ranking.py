"""Ranks the sides of one training by a figure, and chips or frameworks over all trainings that two of them share.

Every ratio is that of `compare`: by the same function, with the same interval, and a word where it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from levelfield.compare.comparability import (
    CAUTION_REASONS,
    HARMLESS_VALUES,
    NO_VALUE,
    cautions,
    chip_of,
    cost_cautions,
)
from levelfield.compare.comparison import Duels, Histories, side_figure, side_ratio, side_values
from levelfield.compare.matrix import (
    ColumnRatio,
    MatrixCell,
    TrainingPair,
    column_ratio,
    most_results_first,
    unequal_fields_text,
)
from levelfield.compare.ratios import MIN_RUNS, Ratio, SideValues, geometric_mean, geometric_mean_interval
from levelfield.compare.sides import ENERGY, MFU, RATE, ComparedSide, Quantity, cost_quantity, excess_use, tuning_of
from levelfield.specs.prices import Prices

PartName = Literal["aligned", "certified", "sealed", "quiet", "repeats"]
TRUST_PARTS: tuple[PartName, ...] = get_args(PartName)


@dataclass(frozen=True)
class Metric:
    """A figure by which sides are ranked."""

    name: str  # a part of the keys of its texts and of the names of its pages
    quantity: Quantity
    is_lower_better: bool = False

    def sort_key(self, value: float | None) -> float:
        """Return a sort key by which the better value comes first."""
        return (value or 0.0) if self.is_lower_better else -(value or 0.0)


TOKENS = Metric("tokens", RATE)
_METRICS = (TOKENS, Metric("mfu", MFU), Metric("energy", ENERGY, True))


def metrics(prices: Prices | None = None) -> tuple[Metric, ...]:
    """Return the figures by which sides are ranked, throughput first; with prices also the cost of a token."""
    return (*_METRICS, Metric("cost", cost_quantity(prices), True)) if prices else _METRICS


@dataclass(frozen=True)
class Contender:
    """A chip with a framework in one training: the newest counted runs of its fastest series."""

    chip: str
    framework: str
    tuning: str  # `base` or `peak`; empty for runs of an earlier version
    side: ComparedSide
    trust: tuple[TrustPart, ...]


@dataclass(frozen=True)
class RankedBar:
    """One contender by a metric."""

    contender: Contender
    values: SideValues
    value: float  # the geometric mean of its runs, so that two bars divide to their ratio
    low: float | None  # of its 95 % interval; None where no noise is known
    high: float | None
    ratio: Ratio | None = None  # to the best one; None for the best itself


@dataclass(frozen=True)
class Unranked:
    """A contender without a bar: it lacks the figure, or must not be compared with the others."""

    contender: Contender
    reason: str


@dataclass(frozen=True)
class Ranking:
    """The bars of one training by a metric, the best first."""

    bars: tuple[RankedBar, ...]
    unranked: tuple[Unranked, ...]


def contender_of_cell(cell: MatrixCell) -> Contender:
    """Return the contender of a measured cell. Raises ValueError for another one."""
    if cell.side is None or cell.values is None:
        raise ValueError(f"found a cell that is {cell.state}, expected a measured one")
    first = cell.side.first
    parts = trust_parts(cell.side, cell.values)
    return Contender(chip_of(first.series), first.series.framework_label, tuning_of(first) or "", cell.side, parts)


def rank_contenders(
    contenders: Sequence[Contender], metric: Metric, histories: Histories, duels: Duels = ()
) -> Ranking:
    """Return the contenders of a training in order. One that must not be compared with most others has no bar."""
    comparable, unranked = _largest_comparable_group(contenders)
    bars = []
    for contender in comparable:  # it has a bar only where every counted run has the figure
        values = side_values(metric.quantity, contender.side, histories, duels)
        value = geometric_mean(values)
        if value is None or len(values.values) < len(contender.side.counted):
            reason = side_figure(metric.quantity, contender.side.counted).reason
            reason = reason or f"found {list(values.values)}, expected positive numbers"
            unranked.append(Unranked(contender, reason))
        else:  # the interval is of logarithms, as the ratio's: it never ends below zero
            bars.append(RankedBar(contender, values, value, *(geometric_mean_interval(values) or (None, None))))
    bars.sort(key=lambda bar: (metric.sort_key(bar.value), bar.contender.chip, bar.contender.framework))
    other_bars = [replace(bar, ratio=side_ratio(metric.quantity, bar.values, bars[0].values)) for bar in bars[1:]]
    return Ranking((*bars[:1], *other_bars), tuple(unranked))


def _largest_comparable_group(contenders: Sequence[Contender]) -> tuple[list[Contender], list[Unranked]]:
    """Return the largest group of contenders that may be compared, and the others with what they differ in."""
    groups: list[list[Contender]] = []
    for contender in contenders:
        for group in groups:
            if not unequal_fields_text(group[0].side, contender.side):
                group.append(contender)
                break
        else:
            groups.append([contender])
    largest = max(groups, key=len, default=[])  # of equally large groups the first, which has the fastest contender
    others = [contender for group in groups if group is not largest for contender in group]
    return largest, [Unranked(contender, unequal_fields_text(largest[0].side, contender.side)) for contender in others]


def caution_fields(best: Contender, other: Contender, metric: Metric) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the fields of `other` beside the best that ask for caution, with their values, and others that differ."""
    sides = [other.side] if other is best else [best.side, other.side]
    fields = [*cautions(sides), *cost_cautions(metric.quantity, sides)]
    explained = [(field.name, field.cells[-1]) for field in fields if field.name in CAUTION_REASONS]
    caution_values = [(name, value) for name, value in explained if value not in (NO_VALUE, HARMLESS_VALUES.get(name))]
    return caution_values, [field.name for field in fields if field.name not in CAUTION_REASONS]


@dataclass(frozen=True)
class OverallRanking:
    """Columns over all trainings, the best first."""

    rows: tuple[ColumnRatio, ...]  # the first is compared with itself
    is_by_chip: bool  # the columns are chips; else they are the frameworks of one chip
    trainings: int  # number of trainings of `scale` in which any column has a bar
    left_out: tuple[str, ...] = ()  # columns that share no training with the first
    scale: str = "smoke"  # of the trainings over which the second is compared with the first


_Table = dict[str, dict[str, RankedBar]]  # of one training: by column and framework (or an empty text) the best bar


def overall_ranking(rankings: Sequence[Ranking], metric: Metric) -> OverallRanking:
    """Return the comparison of chips, each by the frameworks that both have; of the frameworks where all ran on one
    chip."""
    is_by_chip = len({bar.contender.chip for ranking in rankings for bar in ranking.bars}) > 1
    tables: list[_Table] = []
    for ranked in rankings:
        table: _Table = {}
        for bar in ranked.bars:
            names = bar.contender.chip, bar.contender.framework
            column, other = names if is_by_chip else (names[1], "")
            table.setdefault(column, {}).setdefault(other, bar)
        tables.append(table)
    columns = most_results_first(Counter(column for table in tables for column in table))
    if not columns:
        return OverallRanking((), is_by_chip, 0)
    means = [_column_mean(tables, column, columns[0]) for column in columns]
    shared = [mean for mean in means if mean.ratio.value is not None]
    shared.sort(key=lambda mean: metric.sort_key(mean.ratio.value))
    rows = [_column_mean(tables, mean.column, shared[0].column) for mean in shared]
    left_out = dict.fromkeys(mean.column for mean in [*means, *rows] if mean.ratio.value is None)
    compared = tuple(row for row in rows if row.ratio.value is not None)
    scale = compared[min(1, len(compared) - 1)].scale
    scales: list[str] = [bar.contender.side.first.series.scale for r in rankings for bar in r.bars[:1]]
    return OverallRanking(compared, is_by_chip, scales.count(scale), tuple(left_out), scale)


def _column_mean(tables: Sequence[_Table], column: str, base: str) -> ColumnRatio:
    pairs = []
    for number, table in enumerate(tables):
        bars, others = table.get(column, {}), table.get(base, {})
        for name in (name for name in bars if name in others):
            bar, other = bars[name], others[name]
            series, sides = bar.contender.side.first.series, (bar.contender.side, other.contender.side)
            label = f"{series.case} ({series.scale}) {series.precision} {series.nodes}x{series.devices // series.nodes}"
            pairs.append(TrainingPair(label, sides, (bar.values, other.values), number))
    return column_ratio(column, base, pairs)


@dataclass(frozen=True)
class TrustPart:
    """Whether a figure can be trusted in one respect."""

    name: PartName
    holds: bool
    detail: str  # what was found, such as the verdict, or the number of runs


def trust_parts(side: ComparedSide, values: SideValues) -> tuple[TrustPart, ...]:
    """Return how far a side's figures can be trusted: each part is known to hold, or says why not.

    values: the speeds of the side, with the noise of its history.
    """
    runs = side.counted
    verdicts = ", ".join(dict.fromkeys(run.verdict for run in runs))
    evidence = ", ".join(dict.fromkeys(run.evidence for run in runs))
    uncertified_reason = ""  # why no certificate of the first such run holds
    for run in runs:
        certificate = run.result.certificate
        if certificate is not None:
            reason = "" if certificate.holds else certificate.reason or "none holds"
        elif (run.series.scale, run.series.precision) != ("smoke", "fp32"):
            reason = "not recorded"
        else:  # it needs none: its own verdict is what one shows
            reason = "" if run.verdict == "aligned" else run.verdict
        uncertified_reason = uncertified_reason or reason
    uses = [run.result.other_use for run in runs]
    is_unrecorded = any(use is None or use.host_in_window.value is None for use in uses)
    disturbed = "not recorded" if is_unrecorded else max(map(excess_use, runs), default=(0.0, ""))[1]
    return (
        TrustPart("aligned", verdicts == "aligned", verdicts),
        TrustPart("certified", bool(runs) and not uncertified_reason, uncertified_reason),
        TrustPart("sealed", evidence == "sealed", evidence),
        TrustPart("quiet", bool(runs) and not disturbed, disturbed),
        TrustPart("repeats", len(values.values) >= MIN_RUNS or values.history is not None, str(len(values.values))),
    )
