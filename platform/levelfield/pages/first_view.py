"""The first page: which chip is better, by how much, and how sure; then the bars of every training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar

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
    contender_of_cell,
    overall_ranking,
    rank_contenders,
)
from levelfield.compare.ratios import Ratio
from levelfield.compare.series_runs import recent_runs
from levelfield.compare.sides import count_steady_runs, headline_utilisation, tuning_of
from levelfield.errors import LevelfieldError, UsageError
from levelfield.pages.content import PagesContent
from levelfield.pages.series_history import SeriesRuns, StoredResults, group_by
from levelfield.predict.pass_timing import memory_traffic_bytes
from levelfield.predict.setup import training_setup
from levelfield.specs.record import RunRecord
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import HOST_SHARE

MAX_BARS = 100  # of the first page, so that it stays small; each case page has all of its series
TRUST_CAUTIONS = ("alignment", "other programs")  # cautions that a part of the trust names already
MFU_CAUTION = "peak of MFU"  # a caution that concerns no other figure
ONE_SIDE_CAUTIONS = ("left out", "source")  # cautions about a side alone; the others are about it and the best
MAX_LISTED_BARS = 120  # contenders that are listed below the bars of their training
_READ_BATCH_SIZE = 4  # runs of a series that are read at once: most have too few repeats for more
# An axis is at most this many times as long as its longest bar. An interval beyond it is clipped, with a mark.
MAX_AXIS_OVER_LONGEST = 1.5
BAR_CSV_COLUMNS = (
    "chip",
    "framework",
    "tuning",
    "value",
    "low",
    "high",
    "ratio",
    "ratio low",
    "ratio high",
    "standing",
)
MEAN_CSV_COLUMNS = ("name", "ratio", "low", "high", "standing", "trainings")


@dataclass(frozen=True)
class AbsentContender:
    """A chip and framework without a run that counts."""

    chip: str
    framework: str
    state: str  # of its cell in a comparison: how its last run ended
    runs: SeriesRuns


@dataclass(frozen=True)
class TrainingContenders:
    """One work at one scale and precision on one number of devices, with who ran it."""

    example: SeriesRuns  # any series of it
    digest: str  # tells trainings of one name apart, else empty
    contenders: tuple[Contender, ...]
    absent: tuple[AbsentContender, ...]
    slug_by_run: Mapping[str, str]  # of each contender's series, by the id of its first run
    is_host_share: bool


@dataclass(frozen=True)
class DrawnBar:
    """A bar with its place on the axis, in percent of it."""

    ranked: RankedBar
    run_id: str  # its first run
    name: str  # what tells it from the others
    subtitle: str  # the rest of its name
    slug: str
    length_percent: float
    low_percent: float | None
    high_percent: float | None
    is_clipped: bool  # whether its interval goes on beyond the axis
    trust_count: int  # parts of the trust that hold
    csv_row: tuple[str | float | None, ...]  # under BAR_CSV_COLUMNS
    cautions: tuple[tuple[str, str], ...] = ()  # with their values
    differing_fields: tuple[str, ...] = ()  # fields that differ from the best bar's without a caution
    steady_counts: tuple[int, int] = (0, 0)  # its steady runs, and those checked, as `count_steady_runs` counts them
    is_other_framework: bool = False  # whether it is of another framework than the bars that are compared

    @property
    def achieved_and_peak(self) -> tuple[float, float] | None:
        """Achieved and peak TFLOP/s of the last run by the headline formula; None where one is not known."""
        row = headline_utilisation(self.ranked.contender.side.last)
        if row is None or row.achieved_tflops is None or row.peak_tflops is None:
            return None
        return row.achieved_tflops, row.peak_tflops


@dataclass(frozen=True)
class DrawnTraining:
    """A training with its bars."""

    training_contenders: TrainingContenders
    ranking: Ranking
    best_bars: tuple[DrawnBar, ...]  # the bar of each chip, or of each framework where all ran on one chip
    listed_bars: tuple[DrawnBar, ...]  # all bars; empty where the best are all, or where the page has no more room
    is_decided: bool  # whether the first is better than the second by more than noise
    # Chips without a best bar, as they ran it by other frameworks alone. Each text names chip and framework.
    uncompared: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrawnMean:
    """A column over all trainings, as a bar with its place on the axis, in percent of it."""

    mean: ColumnRatio
    length_percent: float
    low_percent: float | None
    high_percent: float | None
    is_clipped: bool
    csv_row: tuple[str | float | None, ...]  # under MEAN_CSV_COLUMNS


@dataclass(frozen=True)
class FirstView:
    """The first page by one metric."""

    metric: Metric
    overall: OverallRanking
    lead: Ratio | None  # the best over the second; None with fewer than two
    is_decided: bool  # whether the lead is more than noise, and in favour of the best
    means: tuple[DrawnMean, ...]
    shows_means: bool  # whether it has bars over all trainings: with one training, they would tell nothing more
    scale: str  # of the trainings that the answer is over
    side_count: int  # sides that the answer compares
    trust_counts: Mapping[str, int]  # by part, how many of the sides hold it
    clear_counts: Mapping[str, tuple[int, int]]  # by caution that any side calls for, how many do not, and of how many
    steady_counts: tuple[int, int]  # runs of all sides whose step times hold, and runs in which that was checked
    tunings: Sequence[str]  # of all bars
    trainings: tuple[DrawnTraining, ...]
    left_out_count: int  # trainings beyond those that are drawn
    only_chip: str | None  # where frameworks are compared on one chip
    is_host_share: bool  # whether any training is on shares of a host
    other_names: tuple[str, ...] = ()  # where nothing stands beside the best, who else has a bar
    others_differ_by_devices: bool = False  # whether these did the same training on another number of devices
    others_differ_by_framework: bool = False  # whether these did the same training by another framework
    bar_csv_columns: ClassVar = BAR_CSV_COLUMNS
    mean_csv_columns: ClassVar = MEAN_CSV_COLUMNS
    one_side_cautions: ClassVar = ONE_SIDE_CAUTIONS


# -- who ran what


def read_trainings(content: PagesContent, results: StoredResults) -> list[TrainingContenders]:
    """Return the trainings: full scale first, then by name.

    Of each chip and framework the fastest series is taken: one with the defaults alone (base), and one with chosen
    fields (peak).
    """
    rows = sorted(group_by(content.series.values(), lambda runs: training_of(runs.series)).items())
    names = Counter(training_key.name_fields for training_key, _ in rows)
    trainings = [_read_contenders(row, names[training_key.name_fields] > 1, results) for training_key, row in rows]
    return sorted(trainings, key=lambda training: training.example.series.scale != "full")


def _read_contenders(series: Sequence[SeriesRuns], is_ambiguous: bool, results: StoredResults) -> TrainingContenders:
    by_digest = {runs.digest: runs for runs in series}
    groups: dict[tuple[str, str, str | None], list[RunRecord]] = {}
    for runs in series:
        ids = [point.run_id for point in reversed(runs.points) if point.is_trend_point] or [runs.points[-1].run_id]
        records = (
            record
            for at in range(0, len(ids), _READ_BATCH_SIZE)
            for record in results.records(ids[at : at + _READ_BATCH_SIZE])
        )
        for record in recent_runs(records):
            group = chip_of(runs.series), runs.series.framework_label, tuning_of(record)
            groups.setdefault(group, []).append(record)
    contenders, absent, slugs = [], [], {}
    histories = {runs.digest: runs.points for runs in series}
    for (chip, framework, _), members in groups.items():
        cell = column_cell(members, histories)
        if cell.state == "measured" and cell.side:
            contenders.append(contender_of_cell(cell))
            slugs[cell.side.first.run_id] = by_digest[cell.side.first.series.fingerprint()].slug
        else:
            newest = max(members, key=attrgetter("began"))
            absent.append(AbsentContender(chip, framework, cell.state, by_digest[newest.series.fingerprint()]))
    contenders.sort(key=lambda contender: -(contender.side.first.tokens_per_second_per_device or 0.0))
    first, counted = series[0], {(contender.chip, contender.framework) for contender in contenders}
    absent_by_name = {(contender.chip, contender.framework): contender for contender in absent}
    missing = [contender for name, contender in absent_by_name.items() if name not in counted]
    return TrainingContenders(
        example=first,
        digest=training_of(first.series).digests if is_ambiguous else "",
        contenders=tuple(contenders),
        absent=tuple(missing),
        slug_by_run=slugs,
        is_host_share=first.series.device_is == HOST_SHARE,
    )


# -- the roofline, as far as it is known


@dataclass(frozen=True)
class PlannedIntensity:
    """FLOP per byte of memory: the model's FLOPs by the headline formula over the planner's count of bytes."""

    flops_per_byte: float
    ridge: float | None  # the chip's peak over its memory bandwidth, below which that is the roof; None: not known


_SETUP_FIELDS = ("layout", "micro_batch", "virtual_pipeline", "recompute", "recompute_layers")


def planned_intensity(record: RunRecord, registry: Registry) -> PlannedIntensity | None:
    """Return the arithmetic intensity of a run.

    None where the planner does not know its framework or the catalogue has no such case, or another work of this name.
    """
    series, row = record.series, headline_utilisation(record)
    rate, achieved = record.tokens_per_second_per_device, row.achieved_tflops if row else None
    constants = registry.planner_constants(series.framework)
    if not constants or not rate or row is None or not (achieved and achieved > 0):
        return None
    try:
        work = registry.case(series.case).work(series.scale)
    except LevelfieldError:
        return None
    if work.fingerprint() != series.work:
        return None
    on_host = series.device_is == HOST_SHARE
    setup = training_setup(
        work, Tuning(**{name: getattr(series, name) for name in _SETUP_FIELDS}), on_host, constants.keeping
    )
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
    trainings: Sequence[TrainingContenders], metric: Metric, histories: Histories, duels: Duels = ()
) -> FirstView:
    """Return the page by one metric. The answer is over trainings of one scale."""
    rankings = [(training, rank_contenders(training.contenders, metric, histories, duels)) for training in trainings]
    bars = [bar for _, ranked in rankings for bar in ranked.bars]
    answer = overall_ranking([ranked for _, ranked in rankings], metric)
    chips = {bar.contender.chip for bar in bars}
    drawn, left_out = _fit_first_page([_draw_training(*pair, metric, len(chips) > 1) for pair in rankings])
    answer_trainings = [
        drawn_training
        for drawn_training in drawn
        if drawn_training.training_contenders.example.series.scale == answer.scale
    ]
    compared_bars = [bar for drawn_training in answer_trainings for bar in drawn_training.best_bars]
    trust_holds = Counter(part.name for bar in compared_bars for part in bar.ranked.contender.trust if part.holds)
    caution_counts = Counter(name for bar in compared_bars for name, _ in bar.cautions)
    count_but_best = len(compared_bars) - sum(bool(drawn_training.best_bars) for drawn_training in answer_trainings)
    checked_counts = {
        name: len(compared_bars) if name in ONE_SIDE_CAUTIONS else count_but_best for name in caution_counts
    }
    others = _other_names(rankings, answer, len(chips) > 1) if len(answer.rows) == 1 else {}
    lead, means = answer.rows[1].ratio.inverse if len(answer.rows) > 1 else None, _draw_means(answer.rows)
    return FirstView(
        metric=metric,
        overall=answer,
        lead=lead,
        is_decided=lead is not None and lead.standing == ("lower" if metric.is_lower_better else "higher"),
        means=means,
        shows_means=len(means) > 1 and answer.trainings > 1,
        scale=answer.scale,
        side_count=len(compared_bars),
        trust_counts={name: trust_holds[name] for name in TRUST_PARTS},
        clear_counts={
            name: (checked_counts[name] - count, checked_counts[name]) for name, count in caution_counts.items()
        },
        steady_counts=(
            sum(bar.steady_counts[0] for bar in compared_bars),
            sum(bar.steady_counts[1] for bar in compared_bars),
        ),
        tunings=sorted({bar.contender.tuning for bar in bars} - {""}),
        trainings=tuple(drawn),
        left_out_count=left_out,
        only_chip=next(iter(chips)) if len(chips) == 1 else None,
        is_host_share=any(drawn_training.training_contenders.is_host_share for drawn_training in drawn),
        other_names=tuple(others),
        others_differ_by_devices=any(others.values()),
        others_differ_by_framework=any(drawn_training.uncompared for drawn_training in drawn),
    )


def _other_names(
    rankings: Sequence[tuple[TrainingContenders, Ranking]], answer: OverallRanking, has_chips: bool
) -> dict[str, bool]:
    """Return who else has a bar, and whether that is of a training of the best on another number of devices."""
    bars = []  # column, name, and the training but for its number of devices
    for training, ranked in rankings:
        same_training_key = training_of(training.example.series).fields_without_devices
        for bar in ranked.bars:
            column = bar.contender.chip if answer.is_by_chip else bar.contender.framework
            name = f"{bar.contender.chip} {column}" if has_chips and not answer.is_by_chip else column
            bars.append((column, name, same_training_key))
    best = answer.rows[0].column
    same_training_keys = {key for column, _, key in bars if column == best}
    others: dict[str, bool] = {}
    for column, name, same_training_key in bars:
        if column != best:
            others[name] = others.get(name, False) or same_training_key in same_training_keys
    return others


def _draw_training(training: TrainingContenders, ranked: Ranking, metric: Metric, is_by_chip: bool) -> DrawnTraining:
    """Return the bars with their places. By MFU the axis ends at the peak of the chip."""
    axis = 1.0 if metric.name == "mfu" else _axis_end([(bar.value, bar.high) for bar in ranked.bars])
    named_elsewhere = TRUST_CAUTIONS if metric.name == "mfu" else (*TRUST_CAUTIONS, MFU_CAUTION)
    names = [(bar.contender.chip, bar.contender.framework, _tuning_name(bar.contender)) for bar in ranked.bars]
    is_varied = [len(set(column)) > 1 for column in zip(*names, strict=True)]
    best_bars: dict[str, DrawnBar] = {}
    listed_bars = []
    base = ranked.bars[0] if ranked.bars else None
    if is_by_chip:  # by the framework that most chips have, of equal ones by the fastest
        chips_of = Counter(framework for _, framework in dict.fromkeys((chip, name) for chip, name, _ in names))
        shared = max(chips_of, key=chips_of.__getitem__, default="")
        base = next((bar for bar in ranked.bars if bar.contender.framework == shared), None)
    for bar, (chip, framework, tuning) in zip(ranked.bars, names, strict=True):
        name_parts = list(zip((chip, framework, tuning), is_varied, strict=True))
        first = bar.contender.side.first
        is_alike = base is not None and (not is_by_chip or framework == base.contender.framework)
        ratio = None
        if base and is_alike and bar is not base:
            ratio = side_ratio(metric.quantity, bar.values, base.values)
        bar = replace(bar, ratio=ratio)
        without_ratio = (1.0 if is_alike else None, None, None, "")
        ratios = (ratio.value, ratio.low, ratio.high, ratio.standing) if ratio else without_ratio
        drawn = DrawnBar(
            ranked=bar,
            run_id=first.run_id,
            name=" ".join(word for word, varies in name_parts if word and varies),
            subtitle=" ".join(word for word, varies in name_parts if word and not varies),
            slug=training.slug_by_run[first.run_id],
            **_place_on_axis(bar, axis),
            trust_count=sum(part.holds for part in bar.contender.trust),
            csv_row=(chip, framework, bar.contender.tuning, bar.value, bar.low, bar.high, *ratios),
            is_other_framework=not is_alike,
        )
        listed_bars.append(drawn)
        column, rest = (chip, framework) if is_by_chip else (framework, chip)
        if column not in best_bars and base and is_alike:
            cautions, differs = caution_fields(base.contender, bar.contender, metric)
            best_bars[column] = replace(
                drawn,
                name=column,
                subtitle=" ".join(filter(None, (rest, tuning))),
                cautions=tuple(caution for caution in cautions if caution[0] not in named_elsewhere),
                differing_fields=tuple(differs),
                steady_counts=count_steady_runs(bar.contender.side.counted),
            )
    if metric.name != "mfu":  # the chart of the best ends at their longest bar, not at one of the folded list
        axis = _axis_end([(drawn.ranked.value, drawn.ranked.high) for drawn in best_bars.values()])
        best_bars = {
            column: replace(drawn, **_place_on_axis(drawn.ranked, axis)) for column, drawn in best_bars.items()
        }
    if len(listed_bars) == len(best_bars):  # the best bars are all: a list would repeat them
        listed_bars = []
    ratios_of_second = [drawn.ranked.ratio for drawn in [*best_bars.values()][1:2] if drawn.ranked.ratio]
    is_decided = any(ratio.standing in ("higher", "lower") for ratio in ratios_of_second)
    others = dict.fromkeys(
        f"{chip} ({framework})" for chip, framework, _ in names if is_by_chip and chip not in best_bars
    )
    return DrawnTraining(training, ranked, tuple(best_bars.values()), tuple(listed_bars), is_decided, tuple(others))


def _tuning_name(contender: Contender) -> str:
    """Return how a reader sees the tuning of a contender: peak is also what a chip can do at most."""
    return "tuned" if contender.tuning == "peak" else contender.tuning


def _axis_end(ends: Sequence[tuple[float, float | None]]) -> float:
    """Return where an axis ends: with the intervals, but not so far that a wide one makes the bars short."""
    longest = max((value for value, _ in ends), default=1.0)
    return min(max((high or value for value, high in ends), default=1.0), MAX_AXIS_OVER_LONGEST * longest) or 1.0


def _place_on_axis(bar: RankedBar, axis: float) -> dict[str, Any]:
    """Return where a bar and its interval end, in percent of an axis that ends at this value."""
    length, low, high = (_axis_percent(value, axis) for value in (bar.value, bar.low, bar.high))
    is_clipped = (bar.high or 0.0) > axis
    return {"length_percent": length or 0.0, "low_percent": low, "high_percent": high, "is_clipped": is_clipped}


def _axis_percent(value: float | None, axis: float) -> float | None:
    return None if value is None else round(min(100.0, max(0.0, value / axis * 100)), 1)


def _fit_first_page(trainings: Sequence[DrawnTraining]) -> tuple[list[DrawnTraining], int]:
    """Return as many trainings as the page has room for, and the number of the others."""
    drawn: list[DrawnTraining] = []
    best_count = listed_count = 0
    for training in trainings:
        if not best_count or best_count + len(training.best_bars) <= MAX_BARS:
            best_count, listed_count = best_count + len(training.best_bars), listed_count + len(training.listed_bars)
            drawn.append(training if listed_count <= MAX_LISTED_BARS else replace(training, listed_bars=()))
    return drawn, len(trainings) - len(drawn)


def _draw_means(rows: Sequence[ColumnRatio]) -> tuple[DrawnMean, ...]:
    """Return the columns as bars. The best has no interval: it is what the others are measured by."""
    intervals = [(row.ratio.low, row.ratio.high) if number else (None, None) for number, row in enumerate(rows)]
    axis = _axis_end([(row.ratio.value or 0.0, high) for row, (_, high) in zip(rows, intervals, strict=True)])
    means = []
    for row, interval in zip(rows, intervals, strict=True):
        length, low, high = (_axis_percent(value, axis) for value in (row.ratio.value, *interval))
        ends = (None, None, "") if row.column == row.base else (row.ratio.low, row.ratio.high, row.ratio.standing)
        values = (row.column, row.ratio.value, *ends, row.trainings)
        means.append(DrawnMean(row, length or 0.0, low, high, (interval[1] or 0.0) > axis, values))
    return tuple(means)
