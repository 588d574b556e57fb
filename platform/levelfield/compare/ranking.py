"""The sides of one training in order of a figure, and chips or frameworks over all trainings that two of them have.

Every ratio is that of `compare`: by the same function, with the same interval, and a word where it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from levelfield.compare.comparability import HARMLESS, NOTHING, WHY, cautions, chip_of, covering
from levelfield.compare.comparison import Histories, side_figure, side_ratio, side_values
from levelfield.compare.matrix import ColumnRatio, MatrixCell, column_ratio, difference
from levelfield.compare.ratios import LEAST_RUNS, Ratio, SideValues, own_interval, own_mean
from levelfield.compare.sides import ENERGY, MFU, RATE, ComparedSide, Quantity, busy, cost_quantity, tuning_of
from levelfield.specs.prices import Prices
from levelfield.specs.record import RunRecord

PartName = Literal["aligned", "certified", "sealed", "quiet", "repeats"]
PARTS: tuple[PartName, ...] = get_args(PartName)


@dataclass(frozen=True)
class Metric:
    """What sides are ranked by. name: of its texts."""

    name: str
    quantity: Quantity
    is_less_better: bool = False

    def order(self, value: float) -> float:
        """Return what sorts the better value first."""
        return value if self.is_less_better else -value


TOKENS = Metric("tokens", RATE)
_METRICS = (TOKENS, Metric("mfu", MFU), Metric("energy", ENERGY, True))


def metrics(prices: Prices | None = None) -> tuple[Metric, ...]:
    """Return what sides are ranked by, throughput first. With the user's prices also the cost of a token."""
    return (*_METRICS, Metric("cost", cost_quantity(prices), True)) if prices else _METRICS


@dataclass(frozen=True)
class Contender:
    """A chip with a framework in one training: the newest counted runs of its fastest series.

    tuning: `base` or `peak`; empty for runs of an earlier version.
    """

    chip: str
    framework: str
    tuning: str
    side: ComparedSide
    trust: tuple[TrustPart, ...]


@dataclass(frozen=True)
class RankedBar:
    """One contender by a metric. value: the geometric mean of its runs, so that two bars divide to their ratio.

    low, high: its 95 % interval; None where no noise is known.
    ratio: to the best one; None of the best itself.
    """

    contender: Contender
    values: SideValues
    value: float
    low: float | None
    high: float | None
    ratio: Ratio | None


@dataclass(frozen=True)
class Unranked:
    """A contender without a bar. why: it lacks the figure, or must not be compared with the others."""

    contender: Contender
    why: str


@dataclass(frozen=True)
class Ranking:
    """The bars of one training by a metric, the best first."""

    bars: tuple[RankedBar, ...]
    unranked: tuple[Unranked, ...]


def contender(cell: MatrixCell) -> Contender:
    """Return the contender of a measured cell. Raises ValueError for another one."""
    if cell.side is None or cell.values is None:
        raise ValueError(f"found a cell that is {cell.state}, expected a measured one")
    series = cell.side.first.series
    found = trust(cell.side, cell.values)
    return Contender(chip_of(series), series.framework_label, tuning_of(cell.side.first) or "", cell.side, found)


def ranking(contenders: Sequence[Contender], metric: Metric, histories: Histories) -> Ranking:
    """Return the contenders of a training in order. One that must not be compared with most others has no bar."""
    alike, unranked = _most_alike(contenders)
    known: list[tuple[float, RankedBar]] = []
    for each in alike:
        found = _bar(each, metric, histories)
        if isinstance(found, Unranked):
            unranked.append(found)
        else:
            known.append((metric.order(found.value), found))
    known.sort(key=lambda pair: (pair[0], pair[1].contender.chip, pair[1].contender.framework))
    bars = [bar for _, bar in known]
    against = [replace(bar, ratio=side_ratio(metric.quantity, bar.values, bars[0].values)) for bar in bars[1:]]
    return Ranking((*bars[:1], *against), tuple(unranked))


def _most_alike(contenders: Sequence[Contender]) -> tuple[list[Contender], list[Unranked]]:
    """Return the largest group of contenders that may be compared, and the others with what they differ in."""
    groups: list[list[Contender]] = []
    for each in contenders:
        group = next((group for group in groups if not difference(group[0].side, each.side)), None)
        if group is None:
            groups.append(group := [])
        group.append(each)
    alike = max(groups, key=len, default=[])  # of equal groups the first, which has the fastest
    rest = [
        Unranked(each, difference(alike[0].side, each.side)) for group in groups if group is not alike for each in group
    ]
    return alike, rest


def _bar(each: Contender, metric: Metric, histories: Histories) -> RankedBar | Unranked:
    """Return the bar, still without its ratio. Every run of the side must have the figure."""
    values = side_values(metric.quantity, each.side, histories)
    value = own_mean(values)
    if value is None or len(values.values) < len(each.side.counted):
        reason = side_figure(metric.quantity, each.side.counted).reason
        return Unranked(each, reason or f"found {list(values.values)}, expected positive numbers")
    low, high = own_interval(values) or (None, None)  # of logarithms, as the ratio's: it never ends below zero
    return RankedBar(each, values, value, low, high, None)


def caution_fields(best: Contender, each: Contender, metric: Metric) -> tuple[list[tuple[str, str]], list[str]]:
    """Return what calls for caution in `each` beside the best, with its values, and other fields that differ."""
    sides = [each.side] if each is best else [best.side, each.side]
    found = [*cautions(sides), *covering(metric.quantity, sides)]
    named = [(field.name, field.cells[-1]) for field in found if field.name in WHY]
    own = [(name, value) for name, value in named if value not in (NOTHING, HARMLESS.get(name))]
    return own, [field.name for field in found if field.name not in WHY]


# -- over all trainings


@dataclass(frozen=True)
class Overall:
    """Columns over all trainings, the best first. The first row is against itself.

    is_by_chip: whether the columns are chips; else they are the frameworks of one chip. trainings: of which any column
    has a bar. left_out: columns that share no training with the first.
    """

    rows: tuple[ColumnRatio, ...]
    is_by_chip: bool
    trainings: int
    left_out: tuple[str, ...] = ()


def overall(rankings: Sequence[Ranking], metric: Metric) -> Overall:
    """Return the comparison of chips, each by its best framework; of the frameworks where all ran on one chip."""
    chips = {bar.contender.chip for ranking in rankings for bar in ranking.bars}
    is_by_chip = len(chips) > 1
    tables = [_best_bars(ranking, is_by_chip) for ranking in rankings]
    columns = _by_results(tables)
    if not columns:
        return Overall((), is_by_chip, 0)
    found = [_mean(tables, column, columns[0]) for column in columns]
    shared = [each for each in found if each.ratio.value is not None]
    shared.sort(key=lambda each: metric.order(each.ratio.value or 0.0))
    best = shared[0].column
    rows = [_mean(tables, each.column, best) for each in shared]
    left_out = [each.column for each in [*found, *rows] if each.ratio.value is None]
    kept = [each for each in rows if each.ratio.value is not None]
    return Overall(tuple(kept), is_by_chip, sum(map(bool, tables)), tuple(dict.fromkeys(left_out)))


def _best_bars(ranking: Ranking, is_by_chip: bool) -> dict[str, RankedBar]:
    """Return the best bar of each column."""
    found: dict[str, RankedBar] = {}
    for bar in ranking.bars:
        found.setdefault(bar.contender.chip if is_by_chip else bar.contender.framework, bar)
    return found


def _by_results(tables: Sequence[dict[str, RankedBar]]) -> list[str]:
    """Return the columns, the one with most trainings first."""
    counts = Counter(column for table in tables for column in table)
    return sorted(counts, key=lambda column: (-counts[column], column))


def _mean(tables: Sequence[dict[str, RankedBar]], column: str, base: str) -> ColumnRatio:
    both = [(table[column], table[base]) for table in tables if column in table and base in table]
    disturbed = [any(bar.contender.side.is_disturbed for bar in pair) for pair in both]
    return column_ratio(column, base, [(own.values, other.values) for own, other in both], disturbed)


@dataclass(frozen=True)
class TrustPart:
    """detail: what was found, such as the verdict, or the number of runs."""

    name: PartName
    holds: bool
    detail: str


def trust(side: ComparedSide, values: SideValues) -> tuple[TrustPart, ...]:
    """Return how far a side's figures can be trusted: each part is known to hold, or says why not.

    values: the speeds of the side, with the noise of its history.
    """
    runs = side.counted
    verdicts = ", ".join(dict.fromkeys(record.verdict for record in runs))
    evidence = ", ".join(dict.fromkeys(record.evidence for record in runs))
    uncertified = next((why for record in runs if (why := _uncertified(record))), "")
    disturbed = _disturbed(runs)
    return (
        TrustPart("aligned", bool(runs) and verdicts == "aligned", verdicts),
        TrustPart("certified", bool(runs) and not uncertified, uncertified),
        TrustPart("sealed", bool(runs) and evidence == "sealed", evidence),
        TrustPart("quiet", bool(runs) and not disturbed, disturbed),
        TrustPart("repeats", len(values.values) >= LEAST_RUNS or values.history is not None, str(len(values.values))),
    )


def _uncertified(record: RunRecord) -> str:
    """Return why no certificate holds. A run in fp32 at smoke scale needs none: its own verdict is what one shows."""
    certificate = record.result.certificate
    if certificate is None:
        needs = (record.series.scale, record.series.precision) != ("smoke", "fp32")
        return "not recorded" if needs else "" if record.verdict == "aligned" else record.verdict
    return "" if certificate.holds else certificate.reason or "none holds"


def _disturbed(runs: Sequence[RunRecord]) -> str:
    """Return the most that others used of the machine during a run; also where nobody recorded it."""
    uses = [record.result.other_use for record in runs]
    if any(use is None or use.host_in_window.value is None for use in uses):
        return "not recorded"
    return max(map(busy, runs), default=(0.0, ""))[1]
