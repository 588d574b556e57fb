"""The first page: which chip is better, by how much, and how sure; then the bars of every training."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from levelfield.compare.comparability import chip_of
from levelfield.compare.comparison import Histories
from levelfield.compare.matrix import newest_cell
from levelfield.compare.ranking import (
    Contender,
    MeanRatio,
    Metric,
    Overall,
    RankedBar,
    Ranking,
    caution_fields,
    contender,
    overall,
    ranking,
)
from levelfield.compare.ratios import Ratio, Standing
from levelfield.compare.sides import palm, repeat_number
from levelfield.compare.trust import PARTS
from levelfield.pages.content import PagesContent
from levelfield.pages.results import StoredResults
from levelfield.pages.series_history import SeriesRuns
from levelfield.specs.record import Point, RunRecord
from levelfield.specs.vendor import HOST_SHARE

MOST_BARS = 100  # of the first page, so that it stays small; each case page has all of its series
OF_TRUST = ("alignment", "other programs")  # cautions that a part of the trust names already
MOST_LISTED = 120  # contenders that are listed below the bars of their training


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
    """A bar with its place on the axis, in percent of it. cautions: with their values. differs: other fields."""

    bar: RankedBar
    slug: str
    length: float
    low: float | None
    high: float | None
    cautions: tuple[tuple[str, str], ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def held(self) -> int:
        """Return how many parts of the trust hold."""
        return sum(part.holds for part in self.bar.contender.trust)

    @property
    def achieved(self) -> tuple[float, float] | None:
        """Return achieved and peak TFLOP/s by the headline formula; None where one is not known or withheld."""
        found = palm(self.bar.contender.side.first)
        both = found.get("achieved_tflops"), found.get("peak_tflops")
        known = [float(each) for each in both if isinstance(each, (int, float)) and math.isfinite(each)]
        return (known[0], known[1]) if len(known) == len(both) else None


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

    mean: MeanRatio
    length: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class FirstView:
    """scale: of the trainings that the answer is over. trust: by part, how many of the `sides` in the answer hold it.

    left_out: trainings beyond those that are drawn. chip: the only one, where frameworks are compared.
    """

    metric: Metric
    overall: Overall
    means: tuple[DrawnMean, ...]
    scale: str
    sides: int
    trust: Mapping[str, int]
    cautions: Mapping[str, int]
    trainings: tuple[DrawnTraining, ...]
    left_out: int
    chip: str | None

    @property
    def lead(self) -> Ratio | None:
        """Return the best over the second; None with fewer than two."""
        return inverse(self.overall.rows[1].ratio) if len(self.overall.rows) > 1 else None

    @property
    def is_told(self) -> bool:
        """Return whether the lead is more than noise, and in favour of the best."""
        wanted = "lower" if self.metric.is_less_better else "higher"
        return self.lead is not None and self.lead.standing == wanted

    @property
    def is_host_share(self) -> bool:
        return any(each.training.is_host_share for each in self.trainings)


def inverse(ratio: Ratio) -> Ratio:
    """Return the same comparison seen from the other side."""
    turned: dict[Standing, Standing] = {"higher": "lower", "lower": "higher"}
    value, low, high = (None if each is None else 1 / each for each in (ratio.value, ratio.high, ratio.low))
    return Ratio(value, low, high, turned.get(ratio.standing, ratio.standing), ratio.reason)


# -- who ran what


def ranked_trainings(content: PagesContent, results: StoredResults) -> list[RankedTraining]:
    """Return the trainings: full scale first, then by name. Of each chip and framework the fastest series is taken."""
    fastest: dict[tuple[str, ...], dict[tuple[str, str], SeriesRuns]] = defaultdict(dict)
    for runs in content.series.values():
        place, column = _training(runs), (chip_of(runs.series), runs.series.framework_label)
        if column not in fastest[place] or _order(runs) > _order(fastest[place][column]):
            fastest[place][column] = runs
    records = _newest_records([runs for row in fastest.values() for runs in row.values()], results)
    names = Counter(place[:5] for place in fastest)
    found = [_ranked(row, names[place[:5]] > 1, records, content) for place, row in sorted(fastest.items())]
    return sorted(found, key=lambda each: each.first.series.scale != "full")


def _training(runs: SeriesRuns) -> tuple[str, ...]:
    s = runs.series
    return (s.case, s.scale, s.precision, f"{s.nodes:06}", f"{s.devices:06}", s.work, s.corpus, s.device_is)


def _order(runs: SeriesRuns) -> tuple[float, str]:
    """Return what the fastest series has most of; one without a speed comes last."""
    latest = _last_good(runs)
    speed = latest.tokens_per_second_per_device if latest else None
    return (speed if speed is not None and 0 < speed < math.inf else -1.0, runs.points[-1].began)


def _trend(runs: SeriesRuns) -> Sequence[Point]:
    return [point for point in runs.points if point.is_of_trend] or runs.points


def _last_good(runs: SeriesRuns) -> Point | None:
    return next((point for point in reversed(runs.points) if point.is_of_trend and point.is_comparable), None)


def _newest_records(series: Sequence[SeriesRuns], results: StoredResults) -> dict[str, list[RunRecord]]:
    """Return by series the newest run that counts with the repeats before it, and the newest run of all."""
    ends = {runs.digest: dict.fromkeys(p.run_id for p in (_last_good(runs), _trend(runs)[-1]) if p) for runs in series}
    found = _read([run_id for ids in ends.values() for run_id in ids], results)
    before: dict[str, list[str]] = {}
    for runs in series:
        ids, good = [point.run_id for point in _trend(runs)], _last_good(runs)
        if good and good.run_id in found:
            place = ids.index(good.run_id)
            before[runs.digest] = ids[max(0, place + 1 - repeat_number(found[good.run_id])) : place]
    found |= _read([run_id for ids in before.values() for run_id in ids], results)
    wanted = {runs.digest: dict.fromkeys([*before.get(runs.digest, ()), *ends[runs.digest]]) for runs in series}
    return {digest: [found[run_id] for run_id in ids if run_id in found] for digest, ids in wanted.items()}


def _read(run_ids: Sequence[str], results: StoredResults) -> dict[str, RunRecord]:
    return {record.run_id: record for record in results.records(run_ids)}


def _ranked(
    row: Mapping[tuple[str, str], SeriesRuns],
    is_ambiguous: bool,
    records: Mapping[str, Sequence[RunRecord]],
    content: PagesContent,
) -> RankedTraining:
    contenders, absent, slugs = [], [], {}
    for (chip, framework), runs in row.items():
        histories = {runs.digest: runs.points}
        cell = newest_cell(records[runs.digest], histories) if records[runs.digest] else None
        if cell and cell.state == "measured" and cell.side:
            contenders.append(contender(cell))
            slugs[cell.side.first.run_id] = runs.slug
        else:
            absent.append(AbsentRuns(chip, framework, cell.state if cell else "not run", runs))
    first = next(iter(row.values()))
    digest = "/".join(_short(text) for text in (first.series.work, first.series.corpus)) if is_ambiguous else ""
    fastest = sorted(contenders, key=lambda each: -(each.side.first.tokens_per_second_per_device or 0.0))
    return RankedTraining(first, digest, tuple(fastest), tuple(absent), slugs)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:6]


# -- the page


def first_view(trainings: Sequence[RankedTraining], metric: Metric, histories: Histories) -> FirstView:
    """Return the page by one metric. The answer is over full scale where anything ran at it, else over smoke."""
    found = [(each, ranking(each.contenders, metric, histories)) for each in trainings]
    scales = [each.first.series.scale for each, ranked in found if ranked.bars]
    scale = "full" if "full" in scales else "smoke"
    answer = overall([ranked for each, ranked in found if each.first.series.scale == scale], metric)
    chips = {bar.contender.chip for _, ranked in found for bar in ranked.bars}
    drawn, left_out = _within(_drawn(each, ranked, metric, len(chips) > 1) for each, ranked in found)
    sides = [bar for each in drawn if each.training.first.series.scale == scale for bar in each.best]
    held = Counter(part.name for bar in sides for part in bar.bar.contender.trust if part.holds)
    return FirstView(
        metric=metric,
        overall=answer,
        means=tuple(_drawn_means(answer.rows)),
        scale=scale,
        sides=len(sides),
        trust={name: held[name] for name in PARTS},
        cautions=Counter(name for bar in sides for name, _ in bar.cautions),
        trainings=tuple(drawn),
        left_out=left_out,
        chip=chips.pop() if len(chips) == 1 else None,
    )


def _drawn(training: RankedTraining, ranked: Ranking, metric: Metric, is_by_chip: bool) -> DrawnTraining:
    """Return the bars with their places. By MFU the axis ends at the peak of the chip, else at the longest bar."""
    axis = 1.0 if metric.name == "mfu" else max((bar.most for bar in ranked.bars), default=1.0)
    best: dict[str, DrawnBar] = {}
    for bar in ranked.bars:
        column = bar.contender.chip if is_by_chip else bar.contender.framework
        if column not in best:
            cautions, differs = caution_fields(ranked.bars[0].contender, bar.contender)
            further = [caution for caution in cautions if caution[0] not in OF_TRUST]
            best[column] = _placed(training, bar, axis, further, differs)
    each = [_placed(training, bar, axis) for bar in ranked.bars] if len(best) < len(ranked.bars) else []
    return DrawnTraining(training, ranked, tuple(best.values()), tuple(each))


def _placed(
    training: RankedTraining,
    bar: RankedBar,
    axis: float,
    cautions: Sequence[tuple[str, str]] = (),
    differs: Sequence[str] = (),
) -> DrawnBar:
    slug = training.slugs[bar.contender.side.first.run_id]
    length, low, high = (_percent(value, axis) for value in (bar.value, bar.low, bar.high))
    return DrawnBar(bar, slug, length or 0.0, low, high, tuple(cautions), tuple(differs))


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


def _drawn_means(rows: Sequence[MeanRatio]) -> Iterator[DrawnMean]:
    """Yield the columns as bars. The best has no interval: it is what the others are measured by."""
    axis = max((max(row.ratio.value or 0.0, row.ratio.high or 0.0) for row in rows[1:]), default=1.0)
    for number, row in enumerate(rows):
        ends = (row.ratio.low, row.ratio.high) if number else (None, None)
        places = [_percent(value, max(1.0, axis)) for value in (row.ratio.value, *ends)]
        yield DrawnMean(row, places[0] or 0.0, places[1], places[2])
