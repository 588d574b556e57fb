"""The first page: which chip is better, by how much, and how sure; then the bars of every training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.compare.comparability import chip_of
from levelfield.compare.comparison import Duels, Histories, side_ratio
from levelfield.compare.matrix import ColumnRatio, column_cell, training_of
from levelfield.compare.ranking import (
    TRUST_PARTS,
    Contender,
    Metric,
    OverallRanking,
    RankedBar,
    Ranking,
    caution_fields,
    contender,
    overall_ranking,
    ranking,
)
from levelfield.compare.ratios import Ratio
from levelfield.compare.series_runs import recent_runs
from levelfield.compare.sides import headline_utilisation, steady_runs, tuning_of
from levelfield.errors import LevelfieldError, UsageError
from levelfield.pages.content import PagesContent
from levelfield.pages.series_history import SeriesRuns, StoredResults, grouped
from levelfield.predict.pass_timing import memory_traffic_bytes
from levelfield.predict.setup import training_setup
from levelfield.specs.record import RunRecord
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import HOST_SHARE

MOST_BARS = 100  # of the first page, so that it stays small; each case page has all of its series
OF_TRUST = ("alignment", "other programs")  # cautions that a part of the trust names already
OF_MFU = "peak of MFU"  # a caution that concerns no other figure
OF_ONE_SIDE = ("left out", "source")  # cautions about a side alone; the others are about it and the best
MOST_LISTED = 120  # contenders that are listed below the bars of their training
_READ = 4  # runs of a series that are read at once: most have too few repeats for more
MOST_BEYOND = 1.5  # an axis ends there, of its longest bar; an interval that goes on is clipped, with a mark
BAR_COLUMNS = ("chip", "framework", "tuning", "value", "low", "high", "ratio", "ratio low", "ratio high", "standing")
MEAN_COLUMNS = ("name", "ratio", "low", "high", "standing", "trainings")


@dataclass(frozen=True)
class AbsentRuns:
    """A chip and framework without a run that counts."""

    chip: str
    framework: str
    word: str  # how its last run ended
    runs: SeriesRuns


@dataclass(frozen=True)
class RankedTraining:
    """One work at one scale and precision on one number of devices, with who ran it."""

    first: SeriesRuns  # any series of it
    digest: str  # tells trainings of one name apart, else empty
    contenders: tuple[Contender, ...]
    absent: tuple[AbsentRuns, ...]
    slugs: Mapping[str, str]  # of series, by their runs
    is_host_share: bool


@dataclass(frozen=True)
class DrawnBar:
    """A bar with its place on the axis, in percent of it."""

    bar: RankedBar
    run_id: str  # its first run
    name: str  # what tells it from the others
    beside: str  # the rest of its name
    slug: str
    length: float
    low: float | None
    high: float | None
    is_clipped: bool  # whether its interval goes on beyond the axis
    trusted: int  # parts of the trust that hold
    row: tuple[str | float | None, ...]  # of a CSV, under BAR_COLUMNS
    cautions: tuple[tuple[str, str], ...] = ()  # with their values
    differs: tuple[str, ...] = ()  # other fields
    steady: tuple[int, int] = (0, 0)  # of its runs, as `steady_runs` counts them
    is_apart: bool = False  # whether it is of another framework than the bars that are compared

    @property
    def achieved(self) -> tuple[float, float] | None:
        """Achieved and peak TFLOP/s of the last run by the headline formula; None where one is not known."""
        row = headline_utilisation(self.bar.contender.side.last)
        if row is None or row.achieved_tflops is None or row.peak_tflops is None:
            return None
        return row.achieved_tflops, row.peak_tflops


@dataclass(frozen=True)
class DrawnTraining:
    """A training with its bars."""

    training: RankedTraining
    ranking: Ranking
    best: tuple[DrawnBar, ...]  # the bar of each chip, or of each framework where all ran on one chip
    bars: tuple[DrawnBar, ...]  # all bars, where they are listed
    is_told: bool  # whether the first is better than the second by more than noise
    others: tuple[str, ...] = ()  # chips that ran it by other frameworks than that of the bars, which are named


@dataclass(frozen=True)
class DrawnMean:
    """A column over all trainings, as a bar with its place on the axis, in percent of it."""

    mean: ColumnRatio
    length: float
    low: float | None
    high: float | None
    is_clipped: bool
    row: tuple[str | float | None, ...]  # of a CSV, under MEAN_COLUMNS


@dataclass(frozen=True)
class FirstView:
    """The first page by one metric."""

    metric: Metric
    overall: OverallRanking
    lead: Ratio | None  # the best over the second; None with fewer than two
    is_told: bool  # whether the lead is more than noise, and in favour of the best
    means: tuple[DrawnMean, ...]
    has_means: bool  # whether the bars over all trainings tell more than those of the only training would
    scale: str  # of the trainings that the answer is over
    sides: int  # in the answer
    trust: Mapping[str, int]  # by part, how many of the sides hold it
    clear: Mapping[str, tuple[int, int]]  # by caution that any side calls for, how many do not, and of how many
    steady: tuple[int, int]  # runs of all sides whose step times hold, and runs in which that was checked
    tunings: Sequence[str]  # of all bars
    trainings: tuple[DrawnTraining, ...]
    left_out: int  # trainings beyond those that are drawn
    chip: str | None  # the only one, where frameworks are compared
    is_host_share: bool  # whether any training is on shares of a host
    others: tuple[str, ...] = ()  # where nothing stands beside the best, who else has a bar
    by_devices: bool = False  # whether these did the same training on another number of devices
    by_frameworks: bool = False  # whether these did the same training by another framework
    bar_columns: ClassVar = BAR_COLUMNS
    mean_columns: ClassVar = MEAN_COLUMNS
    of_one_side: ClassVar = OF_ONE_SIDE


# -- who ran what


def ranked_trainings(content: PagesContent, results: StoredResults) -> list[RankedTraining]:
    """Return the trainings: full scale first, then by name.

    Of each chip and framework the fastest series is taken: one with the defaults alone (base), and one with chosen
    fields (peak).
    """
    rows = sorted(grouped(content.series.values(), lambda runs: training_of(runs.series)).items())
    names = Counter(place[:5] for place, _ in rows)
    trainings = [_ranked(row, names[place[:5]] > 1, results) for place, row in rows]
    return sorted(trainings, key=lambda training: training.first.series.scale != "full")


def _ranked(series: Sequence[SeriesRuns], is_ambiguous: bool, results: StoredResults) -> RankedTraining:
    by_digest = {runs.digest: runs for runs in series}
    places: dict[tuple[str, str, str | None], list[RunRecord]] = {}
    for runs in series:
        ids = [point.run_id for point in reversed(runs.points) if point.is_of_trend] or [runs.points[-1].run_id]
        read = (record for at in range(0, len(ids), _READ) for record in results.records(ids[at : at + _READ]))
        for record in recent_runs(read):
            place = chip_of(runs.series), runs.series.framework_label, tuning_of(record)
            places.setdefault(place, []).append(record)
    contenders, absent, slugs = [], [], {}
    histories = {runs.digest: runs.points for runs in series}
    for (chip, framework, _), members in places.items():
        cell = column_cell(members, histories)
        if cell.state == "measured" and cell.side:
            contenders.append(contender(cell))
            slugs[cell.side.first.run_id] = by_digest[cell.side.first.series.fingerprint()].slug
        else:
            newest = max(members, key=attrgetter("began"))
            absent.append(AbsentRuns(chip, framework, cell.state, by_digest[newest.series.fingerprint()]))
    first, ran = series[0], {(side.chip, side.framework) for side in contenders}
    contenders.sort(key=lambda side: -(side.side.first.tokens_per_second_per_device or 0.0))
    missing = {(runs.chip, runs.framework): runs for runs in absent if (runs.chip, runs.framework) not in ran}
    return RankedTraining(
        first=first,
        digest=training_of(first.series).digests if is_ambiguous else "",
        contenders=tuple(contenders),
        absent=tuple(missing.values()),
        slugs=slugs,
        is_host_share=first.series.device_is == HOST_SHARE,
    )


# -- the roofline, as far as it is known


@dataclass(frozen=True)
class PlannedIntensity:
    """FLOP per byte of memory: the model's FLOPs by the headline formula over the planner's count of bytes."""

    value: float
    ridge: float | None  # the chip's peak over its memory bandwidth, below which that is the roof; None: not known


_TUNED = ("layout", "micro_batch", "virtual_pipeline", "recompute", "recompute_layers")


def planned_intensity(record: RunRecord, registry: Registry) -> PlannedIntensity | None:
    """Return the arithmetic intensity of a run.

    None where the planner does not know its framework or the catalogue has no such case, or another work of this name.
    """
    series, row = record.series, headline_utilisation(record)
    rate, achieved = record.tokens_per_second_per_device, row.achieved_tflops if row else None
    constants = registry.constants(series.framework)
    if not constants or not rate or row is None or not (achieved and achieved > 0):
        return None
    try:
        work = registry.case(series.case).work(series.scale)
    except LevelfieldError:
        return None
    if work.fingerprint() != series.work:
        return None
    on_host = series.device_is == HOST_SHARE
    setup = training_setup(work, Tuning(**{name: getattr(series, name) for name in _TUNED}), on_host, constants.keeping)
    flops = achieved * 1e12 / rate * setup.tokens / setup.layout.tensor
    value = flops / memory_traffic_bytes(setup, constants.pace_on(on_host))
    ridge = None
    if not on_host and row.peak_tflops is not None:
        with suppress(UsageError):  # a chip that no vendor has
            bandwidth = find_chip(registry, series.chip)[1].memory_bandwidth_bytes_per_second
            ridge = row.peak_tflops * 1e12 / bandwidth if bandwidth else None
    return PlannedIntensity(value, ridge)


# -- the page


def first_view(
    trainings: Sequence[RankedTraining], metric: Metric, histories: Histories, duels: Duels = ()
) -> FirstView:
    """Return the page by one metric. The answer is over trainings of one scale."""
    rankings = [(training, ranking(training.contenders, metric, histories, duels)) for training in trainings]
    bars = [bar for _, ranked in rankings for bar in ranked.bars]
    answer = overall_ranking([ranked for _, ranked in rankings], metric)
    chips = {bar.contender.chip for bar in bars}
    drawn, left_out = _first_page([_drawn(*pair, metric, len(chips) > 1) for pair in rankings])
    answers = [training for training in drawn if training.training.first.series.scale == answer.scale]
    sides = [bar for training in answers for bar in training.best]
    holding = Counter(part.name for bar in sides for part in bar.bar.contender.trust if part.holds)
    warned = Counter(name for bar in sides for name, _ in bar.cautions)
    beside_best = len(sides) - sum(bool(training.best) for training in answers)
    checked = {name: len(sides) if name in OF_ONE_SIDE else beside_best for name in warned}
    others = _others(rankings, answer, len(chips) > 1) if len(answer.rows) == 1 else {}
    lead, means = answer.rows[1].ratio.inverse if len(answer.rows) > 1 else None, _drawn_means(answer.rows)
    return FirstView(
        metric=metric,
        overall=answer,
        lead=lead,
        is_told=lead is not None and lead.standing == ("lower" if metric.is_lower_better else "higher"),
        means=means,
        has_means=len(means) > 1 and answer.trainings > 1,
        scale=answer.scale,
        sides=len(sides),
        trust={name: holding[name] for name in TRUST_PARTS},
        clear={name: (checked[name] - count, checked[name]) for name, count in warned.items()},
        steady=(sum(bar.steady[0] for bar in sides), sum(bar.steady[1] for bar in sides)),
        tunings=sorted({bar.contender.tuning for bar in bars} - {""}),
        trainings=tuple(drawn),
        left_out=left_out,
        chip=next(iter(chips)) if len(chips) == 1 else None,
        is_host_share=any(training.training.is_host_share for training in drawn),
        others=tuple(others),
        by_devices=any(others.values()),
        by_frameworks=any(training.others for training in drawn),
    )


def _others(
    rankings: Sequence[tuple[RankedTraining, Ranking]], answer: OverallRanking, has_chips: bool
) -> dict[str, bool]:
    """Return who else has a bar, and whether that is of a training of the best on another number of devices."""
    bars = []  # column, name, and the training but for its number of devices
    for training, ranked in rankings:
        place = training_of(training.first.series)
        for bar in ranked.bars:
            column = bar.contender.chip if answer.is_by_chip else bar.contender.framework
            name = f"{bar.contender.chip} {column}" if has_chips and not answer.is_by_chip else column
            bars.append((column, name, (*place[:3], *place[5:])))
    best = answer.rows[0].column
    trainings = {work for column, _, work in bars if column == best}
    others: dict[str, bool] = {}
    for column, name, work in bars:
        if column != best:
            others[name] = others.get(name, False) or work in trainings
    return others


def _drawn(training: RankedTraining, ranked: Ranking, metric: Metric, is_by_chip: bool) -> DrawnTraining:
    """Return the bars with their places. By MFU the axis ends at the peak of the chip."""
    axis = 1.0 if metric.name == "mfu" else _axis_end([(bar.value, bar.high) for bar in ranked.bars])
    elsewhere = OF_TRUST if metric.name == "mfu" else (*OF_TRUST, OF_MFU)
    words = [(bar.contender.chip, bar.contender.framework, _tuning_name(bar.contender)) for bar in ranked.bars]
    varied = [len(set(column)) > 1 for column in zip(*words, strict=True)]
    best: dict[str, DrawnBar] = {}
    every = []
    base = ranked.bars[0] if ranked.bars else None
    if is_by_chip:  # by the framework that most chips have, of equal ones by the fastest
        chips_of = Counter(framework for _, framework in dict.fromkeys((chip, name) for chip, name, _ in words))
        shared = max(chips_of, key=chips_of.__getitem__, default="")
        base = next((bar for bar in ranked.bars if bar.contender.framework == shared), None)
    for bar, (chip, framework, tuning) in zip(ranked.bars, words, strict=True):
        parts = list(zip((chip, framework, tuning), varied, strict=True))
        first = bar.contender.side.first
        is_alike = base is not None and (not is_by_chip or framework == base.contender.framework)
        ratio = None
        if base and is_alike and bar is not base:
            ratio = side_ratio(metric.quantity, bar.values, base.values)
        bar = replace(bar, ratio=ratio)
        alone = (1.0 if is_alike else None, None, None, "")
        ratios = (ratio.value, ratio.low, ratio.high, ratio.standing) if ratio else alone
        length, low, high = (_percent(value, axis) for value in (bar.value, bar.low, bar.high))
        drawn = DrawnBar(
            bar=bar,
            run_id=first.run_id,
            name=" ".join(word for word, varies in parts if word and varies),
            beside=" ".join(word for word, varies in parts if word and not varies),
            slug=training.slugs[first.run_id],
            length=length or 0.0,
            low=low,
            high=high,
            is_clipped=(bar.high or 0.0) > axis,
            trusted=sum(part.holds for part in bar.contender.trust),
            row=(chip, framework, bar.contender.tuning, bar.value, bar.low, bar.high, *ratios),
            is_apart=not is_alike,
        )
        every.append(drawn)
        column, rest = (chip, framework) if is_by_chip else (framework, chip)
        if column not in best and base and is_alike:
            cautions, differs = caution_fields(base.contender, bar.contender, metric)
            best[column] = replace(
                drawn,
                name=column,
                beside=" ".join(filter(None, (rest, tuning))),
                cautions=tuple(caution for caution in cautions if caution[0] not in elsewhere),
                differs=tuple(differs),
                steady=steady_runs(bar.contender.side.counted),
            )
    bars = tuple(every) if len(best) < len(every) else ()
    ratios_of_second = [drawn.bar.ratio for drawn in [*best.values()][1:2] if drawn.bar.ratio]
    is_told = any(ratio.standing in ("higher", "lower") for ratio in ratios_of_second)
    others = dict.fromkeys(f"{chip} ({framework})" for chip, framework, _ in words if is_by_chip and chip not in best)
    return DrawnTraining(training, ranked, tuple(best.values()), bars, is_told, tuple(others))


def _tuning_name(side: Contender) -> str:
    """Return how a reader sees the tuning of a side: peak is also what a chip can do at most."""
    return "tuned" if side.tuning == "peak" else side.tuning


def _axis_end(ends: Sequence[tuple[float, float | None]]) -> float:
    """Return where an axis ends: with the intervals, but not so far that a wide one makes the bars short."""
    longest = max((value for value, _ in ends), default=1.0)
    return min(max((high or value for value, high in ends), default=1.0), MOST_BEYOND * longest) or 1.0


def _percent(value: float | None, axis: float) -> float | None:
    return None if value is None else round(min(100.0, max(0.0, value / axis * 100)), 1)


def _first_page(trainings: Sequence[DrawnTraining]) -> tuple[list[DrawnTraining], int]:
    """Return as many trainings as the page has room for, and the number of the others."""
    drawn: list[DrawnTraining] = []
    bars = listed_bars = 0
    for training in trainings:
        if not bars or bars + len(training.best) <= MOST_BARS:
            bars, listed_bars = bars + len(training.best), listed_bars + len(training.bars)
            drawn.append(training if listed_bars <= MOST_LISTED else replace(training, bars=()))
    return drawn, len(trainings) - len(drawn)


def _drawn_means(rows: Sequence[ColumnRatio]) -> tuple[DrawnMean, ...]:
    """Return the columns as bars. The best has no interval: it is what the others are measured by."""
    intervals = [(row.ratio.low, row.ratio.high) if number else (None, None) for number, row in enumerate(rows)]
    axis = _axis_end([(row.ratio.value or 0.0, high) for row, (_, high) in zip(rows, intervals, strict=True)])
    means = []
    for row, interval in zip(rows, intervals, strict=True):
        length, low, high = (_percent(value, axis) for value in (row.ratio.value, *interval))
        ends = (None, None, "") if row.column == row.base else (row.ratio.low, row.ratio.high, row.ratio.standing)
        values = (row.column, row.ratio.value, *ends, row.trainings)
        means.append(DrawnMean(row, length or 0.0, low, high, (interval[1] or 0.0) > axis, values))
    return tuple(means)
