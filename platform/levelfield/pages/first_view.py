"""The first page: which chip is better, by how much, and how sure; then the bars of every training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.compare.comparability import chip_of
from levelfield.compare.comparison import Histories
from levelfield.compare.matrix import ColumnRatio, newest_cell
from levelfield.compare.ranking import (
    PARTS,
    Contender,
    Metric,
    Overall,
    RankedBar,
    Ranking,
    caution_fields,
    contender,
    overall,
    ranking,
)
from levelfield.compare.ratios import LEAST_RUNS, Ratio
from levelfield.compare.sides import is_within_a_day, palm, steady_runs, tuning_of
from levelfield.errors import LevelfieldError, UsageError
from levelfield.pages.content import PagesContent
from levelfield.pages.results import StoredResults
from levelfield.pages.series_history import SeriesRuns, grouped
from levelfield.predict.pass_timing import moved_bytes
from levelfield.predict.setup import setup_of
from levelfield.specs.case import Work
from levelfield.specs.record import Point, RunRecord, Series
from levelfield.specs.short_names import short_digest
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import HOST_SHARE

MOST_BARS = 100  # of the first page, so that it stays small; each case page has all of its series
OF_TRUST = ("alignment", "other programs")  # cautions that a part of the trust names already
OF_MFU = "peak of MFU"  # a caution that concerns no other figure
OF_ONE_SIDE = ("left out", "source")  # cautions about a side alone; the others are about it and the best
MOST_LISTED = 120  # contenders that are listed below the bars of their training
MOST_BEYOND = 1.5  # an axis ends there, of its longest bar; an interval that goes on is clipped, with a mark
BAR_COLUMNS = ("chip", "framework", "tuning", "value", "low", "high", "ratio", "ratio low", "ratio high", "standing")
MEAN_COLUMNS = ("name", "ratio", "low", "high", "standing", "trainings")


@dataclass(frozen=True)
class AbsentRuns:
    """A chip and framework without a run that counts. word: how its last run ended."""

    chip: str
    framework: str
    word: str
    runs: SeriesRuns


@dataclass(frozen=True)
class RankedTraining:
    """One work at one scale and precision on one number of devices, with who ran it.

    digest: tells trainings of one name apart, else empty. first: any series of it. slugs: of series, by their runs.
    """

    first: SeriesRuns
    digest: str
    contenders: tuple[Contender, ...]
    absent: tuple[AbsentRuns, ...]
    slugs: Mapping[str, str]

    @property
    def is_host_share(self) -> bool:
        return self.first.series.device_is == HOST_SHARE


@dataclass(frozen=True)
class DrawnBar:
    """A bar with its place on the axis, in percent of it. name: what tells it from the others. beside: the rest of it.

    is_clipped: whether its interval goes on beyond the axis. cautions: with their values. differs: other fields.
    steady: of its runs, as `steady_runs` counts them.
    """

    bar: RankedBar
    name: str
    beside: str
    slug: str
    length: float
    low: float | None
    high: float | None
    is_clipped: bool
    cautions: tuple[tuple[str, str], ...] = ()
    differs: tuple[str, ...] = ()
    steady: tuple[int, int] = (0, 0)

    @property
    def run_id(self) -> str:
        return self.bar.contender.side.first.run_id

    @property
    def held(self) -> int:
        """Return how many parts of the trust hold."""
        return sum(part.holds for part in self.bar.contender.trust)

    @property
    def row(self) -> tuple[str | float | None, ...]:
        """Return the bar as a row of a CSV, under BAR_COLUMNS."""
        found, ratio = self.bar.contender, self.bar.ratio or Ratio(1.0, None, None, "no ratio", "")
        ends = (self.bar.value, self.bar.low, self.bar.high)
        standing = self.bar.ratio.standing if self.bar.ratio else ""
        return (found.chip, found.framework, found.tuning, *ends, ratio.value, ratio.low, ratio.high, standing)

    @property
    def achieved(self) -> tuple[float, float] | None:
        """Return achieved and peak TFLOP/s of the last run by the headline formula; None where one is not known."""
        row = palm(self.bar.contender.side.last)
        if row is None or row.achieved_tflops is None or row.peak_tflops is None:
            return None
        return row.achieved_tflops, row.peak_tflops


@dataclass(frozen=True)
class DrawnTraining:
    """best: the bar of each chip, or of each framework where all ran on one chip. each: all of them, where listed."""

    training: RankedTraining
    ranking: Ranking
    best: tuple[DrawnBar, ...]
    each: tuple[DrawnBar, ...]

    @property
    def is_told(self) -> bool:
        """Return whether the first is better than the second by more than noise."""
        ratios = [drawn.bar.ratio for drawn in self.best[1:2] if drawn.bar.ratio]
        return any(ratio.standing in ("higher", "lower") for ratio in ratios)


@dataclass(frozen=True)
class DrawnMean:
    """A column over all trainings, as a bar."""

    mean: ColumnRatio
    length: float
    low: float | None
    high: float | None
    is_clipped: bool

    @property
    def row(self) -> tuple[str | float | None, ...]:
        """Return the bar as a row of a CSV, under MEAN_COLUMNS."""
        found, is_best = self.mean.ratio, self.mean.column == self.mean.base
        ends = (None, None, "") if is_best else (found.low, found.high, found.standing)
        return (self.mean.column, found.value, *ends, self.mean.trainings)


@dataclass(frozen=True)
class FirstView:
    """scale: of the trainings that the answer is over. trust: by part, how many of the `sides` in the answer hold it.

    clear: by caution that any of them calls for, how many do not, and of how many. steady: runs of all sides whose step
    times hold, and runs in which that was checked. tunings: of all bars. left_out: trainings beyond those that are
    drawn. chip: the only one, where frameworks are compared. others: where nothing stands beside the best, who else has
    a bar; by_devices: and did the same training on another number of devices.
    """

    metric: Metric
    overall: Overall
    means: tuple[DrawnMean, ...]
    scale: str
    sides: int
    trust: Mapping[str, int]
    clear: Mapping[str, tuple[int, int]]
    steady: tuple[int, int]
    tunings: Sequence[str]
    trainings: tuple[DrawnTraining, ...]
    left_out: int
    chip: str | None
    others: tuple[str, ...] = ()
    by_devices: bool = False
    bar_columns: ClassVar = BAR_COLUMNS
    mean_columns: ClassVar = MEAN_COLUMNS
    of_one_side: ClassVar = OF_ONE_SIDE

    @property
    def lead(self) -> Ratio | None:
        """Return the best over the second; None with fewer than two."""
        return self.overall.rows[1].ratio.inverse if len(self.overall.rows) > 1 else None

    @property
    def is_told(self) -> bool:
        """Return whether the lead is more than noise, and in favour of the best."""
        wanted = "lower" if self.metric.is_less_better else "higher"
        return self.lead is not None and self.lead.standing == wanted

    @property
    def has_means(self) -> bool:
        """Whether the bars over all trainings tell more than those of the only training would."""
        return len(self.means) > 1 and self.overall.trainings > 1

    @property
    def is_host_share(self) -> bool:
        return any(each.training.is_host_share for each in self.trainings)


# -- who ran what


def ranked_trainings(content: PagesContent, results: StoredResults) -> list[RankedTraining]:
    """Return the trainings: full scale first, then by name.

    Of each chip and framework the fastest series is taken: one with the defaults alone (base), and one with chosen
    fields (peak).
    """
    ordered = sorted(content.series.values(), key=_order, reverse=True)
    columns = grouped(ordered, lambda runs: (*_training(runs), chip_of(runs.series), runs.series.framework_label))
    chosen, newest = _fastest_by_tuning(list(columns.values()), results)
    records = _with_repeats(chosen, newest, results)
    fastest = grouped(chosen, _training)
    names = Counter(place[:5] for place in fastest)
    found = [_ranked(row, names[place[:5]] > 1, records) for place, row in sorted(fastest.items())]
    return sorted(found, key=lambda each: each.first.series.scale != "full")


def _fastest_by_tuning(
    columns: Sequence[Sequence[SeriesRuns]], results: StoredResults
) -> tuple[list[SeriesRuns], dict[str, RunRecord]]:
    """Return the fastest series of each column as base and as peak, and their newest records.

    columns: series, the fastest first. A record says which of both it is, so series are read until both are found.
    """
    chosen: list[SeriesRuns] = []
    newest: dict[str, RunRecord] = {}
    left = [(iter(column), set[str]()) for column in columns]
    while ahead := [(runs, rest, seen) for rest, seen in left if (runs := next(rest, None))]:
        newest |= _read([run_id for runs, _, _ in ahead for run_id in _ends(runs)], results)
        for runs, _, seen in ahead:
            if (word := _tuning(runs, newest)) not in seen:
                seen.add(word)
                chosen.append(runs)
        left = [(rest, seen) for _, rest, seen in ahead if seen in ({"base"}, {"peak"})]
    return chosen, newest


def _training(runs: SeriesRuns) -> tuple[str, ...]:
    s = runs.series
    return (s.case, s.scale, s.precision, f"{s.nodes:06}", f"{s.devices:06}", s.work, s.corpus, s.device_is)


def _order(runs: SeriesRuns) -> tuple[float, str]:
    """Return what the fastest series has most of; one without a speed comes last."""
    latest = _last_good(runs)
    speed = latest.tokens_per_second_per_device if latest else None
    return (speed if speed is not None and 0 < speed < math.inf else -1.0, runs.points[-1].began)


def _last_good(runs: SeriesRuns) -> Point | None:
    return next(reversed(runs.counted), None)


def _ends(runs: SeriesRuns) -> list[str]:
    """Return the ids of the newest run that counts, and of the newest of all."""
    last = next((point for point in reversed(runs.points) if point.is_of_trend), runs.points[-1])
    return list(dict.fromkeys(point.run_id for point in (_last_good(runs), last) if point))


def _tuning(runs: SeriesRuns, newest: Mapping[str, RunRecord]) -> str:
    return next((tuning_of(newest[run_id]) or "" for run_id in _ends(runs) if run_id in newest), "")


def _with_repeats(
    series: Sequence[SeriesRuns], newest: Mapping[str, RunRecord], results: StoredResults
) -> dict[str, list[RunRecord]]:
    """Return by series its newest runs with the repeats before the one that counts, and disturbed ones after it."""
    before: dict[str, list[str]] = {}
    for runs in series:
        if (good := _last_good(runs)) and good.run_id in newest:
            ids = [point.run_id for point in runs.points if point.is_of_trend]
            place = ids.index(good.run_id)
            least = max(0, place + 1 - newest[good.run_id].result.repeat)
            began = [point.began for point in runs.points if point.is_of_trend]
            if place - least + 1 < LEAST_RUNS:  # as compare/sides.py takes the newest group
                least = next((at for at in range(least) if is_within_a_day(began[at], good.began)), least)
            before[runs.digest] = ids[least:place]
    disturbed = [run_id for runs in series for run_id in runs.disturbed]
    found = {**newest, **_read([*(run_id for ids in before.values() for run_id in ids), *disturbed], results)}
    wanted = {
        runs.digest: dict.fromkeys([*before.get(runs.digest, ()), *runs.disturbed, *_ends(runs)]) for runs in series
    }
    return {digest: [found[run_id] for run_id in ids if run_id in found] for digest, ids in wanted.items()}


def _read(run_ids: Sequence[str], results: StoredResults) -> dict[str, RunRecord]:
    return {record.run_id: record for record in results.records(run_ids)}


def _ranked(
    series: Sequence[SeriesRuns], is_ambiguous: bool, records: Mapping[str, Sequence[RunRecord]]
) -> RankedTraining:
    contenders, absent, slugs = [], [], {}
    for runs in series:
        cell = newest_cell(records[runs.digest], {runs.digest: runs.points}) if records[runs.digest] else None
        if cell and cell.state == "measured" and cell.side:
            contenders.append(contender(cell))
            slugs[cell.side.first.run_id] = runs.slug
        else:
            word = cell.state if cell else "not run"
            absent.append(AbsentRuns(chip_of(runs.series), runs.series.framework_label, word, runs))
    first, ran = series[0], {(each.chip, each.framework) for each in contenders}
    digest = (
        "/".join(short_digest(text, 6) for text in (first.series.work, first.series.corpus)) if is_ambiguous else ""
    )
    fastest = sorted(contenders, key=lambda each: -(each.side.first.tokens_per_second_per_device or 0.0))
    missing = tuple(each for each in absent if (each.chip, each.framework) not in ran)
    return RankedTraining(first, digest, tuple(fastest), missing, slugs)


# -- the roofline, as far as it is known


@dataclass(frozen=True)
class PlannedIntensity:
    """FLOP per byte of memory: the model's FLOPs by the headline formula over the planner's count of bytes.

    ridge: the chip's peak over its memory bandwidth; below it the bandwidth is the roof. None: it is not known.
    """

    value: float
    ridge: float | None


_TUNED = ("layout", "micro_batch", "virtual_pipeline", "recompute", "recompute_layers")


def planned_intensity(record: RunRecord, registry: Registry) -> PlannedIntensity | None:
    """Return the arithmetic intensity of a run; None where the planner does not know its work or its framework."""
    series, row = record.series, palm(record)
    rate, achieved = record.tokens_per_second_per_device, row.achieved_tflops if row else None
    constants = registry.constants(series.framework)
    work = _work_of(series, registry)
    if not work or not constants or not rate or row is None or not (achieved and achieved > 0):
        return None
    chosen = {name: getattr(series, name) for name in _TUNED}
    on_host = series.device_is == HOST_SHARE
    setup = setup_of(work, Tuning(**chosen), on_host, constants.keeping)
    flops = achieved * 1e12 / rate * setup.tokens / setup.layout.tensor
    value = flops / moved_bytes(setup, constants.pace_on(on_host))
    return PlannedIntensity(value, None if on_host else _ridge(series.chip, row.peak_tflops, registry))


def _work_of(series: Series, registry: Registry) -> Work | None:
    """Return the work of the case; None where the catalogue has another one of this name, or none."""
    try:
        work = registry.case(series.case).work(series.scale)
    except LevelfieldError:
        return None
    return work if work.fingerprint() == series.work else None


def _ridge(name: str, peak_tflops: object, registry: Registry) -> float | None:
    try:
        bandwidth = find_chip(registry, name)[1].memory_bandwidth_bytes_per_second
    except UsageError:
        return None
    return peak_tflops * 1e12 / bandwidth if bandwidth and isinstance(peak_tflops, (int, float)) else None


# -- the page


def first_view(trainings: Sequence[RankedTraining], metric: Metric, histories: Histories) -> FirstView:
    """Return the page by one metric. The answer is over full scale where anything ran at it, else over smoke."""
    found = [(each, ranking(each.contenders, metric, histories)) for each in trainings]
    scales = [each.first.series.scale for each, ranked in found if ranked.bars]
    scale = "full" if "full" in scales else "smoke"
    answer = overall([ranked for each, ranked in found if each.first.series.scale == scale], metric)
    chips = {bar.contender.chip for _, ranked in found for bar in ranked.bars}
    drawn, left_out = _within(_drawn(each, ranked, metric, len(chips) > 1) for each, ranked in found)
    answers = [each for each in drawn if each.training.first.series.scale == scale]
    sides = [bar for each in answers for bar in each.best]
    held = Counter(part.name for bar in sides for part in bar.bar.contender.trust if part.holds)
    warned = Counter(name for bar in sides for name, _ in bar.cautions)
    beside = len(sides) - sum(bool(each.best) for each in answers)
    of = {name: len(sides) if name in OF_ONE_SIDE else beside for name in warned}
    apart = _apart(found, answer) if len(answer.rows) == 1 else {}
    return FirstView(
        metric=metric,
        overall=answer,
        means=tuple(_drawn_means(answer.rows)),
        scale=scale,
        sides=len(sides),
        trust={name: held[name] for name in PARTS},
        clear={name: (of[name] - count, of[name]) for name, count in warned.items()},
        steady=(sum(bar.steady[0] for bar in sides), sum(bar.steady[1] for bar in sides)),
        tunings=sorted({bar.contender.tuning for _, ranked in found for bar in ranked.bars} - {""}),
        trainings=tuple(drawn),
        left_out=left_out,
        chip=next(iter(chips)) if len(chips) == 1 else None,
        others=tuple(apart),
        by_devices=any(apart.values()),
    )


def _apart(found: Sequence[tuple[RankedTraining, Ranking]], answer: Overall) -> dict[str, bool]:
    """Return who else has a bar, and whether that is of a training of the best on another number of devices."""
    best = answer.rows[0].column
    frameworks_of_chips = len({bar.contender.chip for _, ranked in found for bar in ranked.bars}) > 1

    def named(bar: RankedBar) -> str:
        chip, framework, _ = _words(bar)
        return chip if answer.is_by_chip else f"{chip} {framework}" if frameworks_of_chips else framework

    def is_best(bar: RankedBar) -> bool:
        return best == (bar.contender.chip if answer.is_by_chip else bar.contender.framework)

    def but_devices(training: RankedTraining) -> tuple[str, ...]:
        place = _training(training.first)
        return (*place[:3], *place[5:])

    own = {but_devices(each) for each, ranked in found if any(map(is_best, ranked.bars))}
    apart: dict[str, bool] = {}
    for each, ranked in found:
        for bar in ranked.bars:
            if not is_best(bar):
                apart[named(bar)] = apart.get(named(bar), False) or but_devices(each) in own
    return apart


def _drawn(training: RankedTraining, ranked: Ranking, metric: Metric, is_by_chip: bool) -> DrawnTraining:
    """Return the bars with their places. By MFU the axis ends at the peak of the chip."""
    axis = 1.0 if metric.name == "mfu" else _axis([(bar.value, bar.high) for bar in ranked.bars])
    best: dict[str, DrawnBar] = {}
    for bar in ranked.bars:
        chip, framework, tuning = _words(bar)
        column = chip if is_by_chip else framework
        if column not in best:
            cautions, differs = caution_fields(ranked.bars[0].contender, bar.contender, metric)
            elsewhere = OF_TRUST if metric.name == "mfu" else (*OF_TRUST, OF_MFU)
            further = tuple(caution for caution in cautions if caution[0] not in elsewhere)
            beside = " ".join(filter(None, (framework if is_by_chip else chip, tuning)))
            drawn = _placed(training, bar, axis, column, beside)
            steady = steady_runs(bar.contender.side.counted)
            best[column] = replace(drawn, cautions=further, differs=tuple(differs), steady=steady)
    each = [_placed(training, bar, axis, *_told_apart(bar, ranked.bars)) for bar in ranked.bars]
    return DrawnTraining(training, ranked, tuple(best.values()), tuple(each) if len(best) < len(each) else ())


def _words(bar: RankedBar) -> tuple[str, str, str]:
    return bar.contender.chip, bar.contender.framework, bar.contender.tuning


def _told_apart(bar: RankedBar, bars: Sequence[RankedBar]) -> tuple[str, str]:
    """Return the words of a bar that tell it from the others, and those that all of them have."""
    varied = [len(set(words)) > 1 for words in zip(*map(_words, bars), strict=True)]
    named = list(zip(_words(bar), varied, strict=True))
    name, beside = ([word for word, varies in named if word and varies is wanted] for wanted in (True, False))
    return " ".join(name), " ".join(beside)


def _axis(ends: Sequence[tuple[float, float | None]]) -> float:
    """Return where an axis ends: with the intervals, but not so far that a wide one makes the bars short."""
    longest = max((value for value, _ in ends), default=1.0)
    return min(max((high or value for value, high in ends), default=1.0), MOST_BEYOND * longest) or 1.0


def _placed(training: RankedTraining, bar: RankedBar, axis: float, name: str, beside: str) -> DrawnBar:
    slug = training.slugs[bar.contender.side.first.run_id]
    length, low, high = (_percent(value, axis) for value in (bar.value, bar.low, bar.high))
    return DrawnBar(bar, name, beside, slug, length or 0.0, low, high, (bar.high or 0.0) > axis)


def _percent(value: float | None, axis: float) -> float | None:
    return None if value is None else round(min(100.0, max(0.0, value / axis * 100)), 1)


def _within(found: Iterable[DrawnTraining]) -> tuple[list[DrawnTraining], int]:
    """Return as many trainings as the page has room for, and the number of the others."""
    drawn: list[DrawnTraining] = []
    bars = listed = left_out = 0
    for each in found:
        if bars and bars + len(each.best) > MOST_BARS:
            left_out += 1
            continue
        bars, listed = bars + len(each.best), listed + len(each.each)
        drawn.append(each if listed <= MOST_LISTED else DrawnTraining(each.training, each.ranking, each.best, ()))
    return drawn, left_out


def _drawn_means(rows: Sequence[ColumnRatio]) -> Iterator[DrawnMean]:
    """Yield the columns as bars. The best has no interval: it is what the others are measured by."""
    axis = _axis([(row.ratio.value or 0.0, row.ratio.high if number else None) for number, row in enumerate(rows)])
    for number, row in enumerate(rows):
        ends = (row.ratio.low, row.ratio.high) if number else (None, None)
        places = [_percent(value, axis) for value in (row.ratio.value, *ends)]
        yield DrawnMean(row, places[0] or 0.0, places[1], places[2], (ends[1] or 0.0) > axis)
