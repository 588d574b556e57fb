"""From an examination, and the pairs that confirm it or not, to one finding; many on one node are one of the node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.measure.student import t_quantile
from levelfield.series.examination import EnvironmentStep, Examination
from levelfield.series.findings import Finding, FindingWord, percent_change
from levelfield.series.level import FEWEST, MEDIAN_VARIANCE, Level
from levelfield.series.pairs import Pair, PairRuling
from levelfield.series.segments import change_of, days_between, shown_change, value_of
from levelfield.series.trigger import DRIFT_NIGHTS, Rule, detectable
from levelfield.specs.record import Gated
from levelfield.specs.short_names import short_digest

STALE_DAYS = 14
MOST_NAMED = 100  # pairs: a larger number only says that the noise is large
_SEEN_BY: dict[Rule, str] = {
    "tonight": "tonight alone is beyond the level",
    "sum of nights": "the nights together are beyond the accepted level",
    "drift": "the last nights have drifted from the accepted level",
}
Pairs = Sequence[Pair]
Judged = tuple["Surroundings", Examination]
FEWEST_ALIKE = 3
ALIKE = (0.5, 1.5)  # of the median excess


@dataclass(frozen=True)
class Surroundings:
    """What a judgement knows beside the nights."""

    series: str
    label: str
    fields: tuple[str, ...] = ()  # of the conditions that changed, such as `driver 550 -> 560`
    # `fields`, or where not known the digests of the conditions: the same for all series with the change
    cause: tuple[str, ...] = ()
    # no pairs have compared the builds under the new conditions yet, or they found the new one worse
    is_due: bool = False
    is_known_worse: bool = False  # they found it worse
    is_cleared: bool = False  # they found it no worse
    build_excess: float = 0.0  # what they found, as a cost
    is_chance: bool = False  # as much is expected by chance among so many series
    is_of_group: bool = False  # one finding about the change stands for it and others

    @property
    def change(self) -> str:
        return ", ".join(self.fields) or "the new conditions"


def wants_pairs(night: Examination, around: Surroundings) -> bool:
    """Whether to spend runs on a confirmation. A gain is no alarm, so further nights confirm it.

    A change of conditions may hide one of the build, so both builds run under the new ones, once. A regression that was
    named gets pairs until they find it gone.
    """
    if night.opened is not None:
        return True
    if night.level is None:
        return False
    if around.is_due:
        return True
    if around.is_chance or (night.is_young and night.step is not None and night.step.is_beyond):
        return False
    return night.suspicion is not None and night.suspicion.direction > 0


@dataclass(frozen=True)
class NoPairs:
    """Why pairs that were due did not run."""

    reason: str
    is_put_off: bool = False  # they can run another night: nights alone decide nothing


def judged_night(night: Examination, around: Surroundings, ruling: PairRuling | NoPairs | None = None) -> Finding:
    """Return the finding about one figure. ruling: of pairs, or why there are none; None: none were wanted."""
    level = night.level
    if level is None:
        detail = f"{len(night.history)} of {FEWEST} nights before this one"
        new = Finding(
            series=around.series, label=around.label, figure=night.figure, word="new series", detail=detail,
            nights=len(night.history), run_id=night.tonight.run_id, node=night.tonight.node,
        )  # fmt: skip
        if not isinstance(ruling, PairRuling) or not ruling.is_decided:
            return new
        # Pairs need no level to decide about a regression that was named before the series began anew.
        low, high = sorted(change_of(cost or 0.0, night.figure) for cost in (ruling.low, ruling.high))
        update = {
            "word": ruling.build, "change": change_of(ruling.excess or 0.0, night.figure), "low": low, "high": high,
            "pairs": ruling.pairs, "build_change": change_of(ruling.proven_excess, night.figure),
            "against": night.against, "detail": f"{_pairs_detail(night, around, ruling)}; {detail}",
        }  # fmt: skip
        return new.model_copy(update=update)
    if isinstance(ruling, PairRuling):
        return _paired_finding(night, around, level, ruling)
    night = night.less_build(around.build_excess)
    step = night.step if night.step and night.step.is_beyond and not around.is_chance else None
    if around.is_known_worse and not (step and step.excess > 0):
        detail = f"pairs found a regression under {around.change}; {ruling.reason if ruling else 'none ran tonight'}"
        return _finding(night, around, level, "inconclusive", detail)
    if step and not (night.suspicion and not night.is_young and night.runs_two_nights):
        return _step_finding(night, around, step)
    return _nights_finding(night, around, level, ruling)


def build_excess(around: Surroundings, ruling: PairRuling | NoPairs | None) -> float:
    """Return how much worse tonight's build is than the accepted one, as a cost, by the last pairs that decided."""
    return ruling.proven_excess if isinstance(ruling, PairRuling) and ruling.is_decided else around.build_excess


def _paired_finding(night: Examination, around: Surroundings, level: Level, ruling: PairRuling) -> Finding:
    """Return what the pairs show: B against A is the build, A against its level the conditions, and both can be."""
    night, word = night.less_build(build_excess(around, ruling)), ruling.word
    if night.step is not None and ruling.build != "regression":
        if night.step.is_beyond and not around.is_chance:
            if not around.is_of_group:
                return _step_finding(night, around, night.step, ruling)
            word = ruling.build
        elif night.is_young and word == "bad night":
            detail = f"{_pairs_detail(night, around, ruling)}: a bad night, or {around.change}"
            return _finding(night, around, level, "inconclusive", detail, fields=around.fields, ruling=ruling)
    # the build, with the figures of the pairs where they decide
    detail = _pairs_detail(night, around, ruling)
    if word in ("inconclusive", "more pairs"):
        return _finding(night, around, level, "inconclusive", detail, ruling=ruling)
    interval = None
    if word != "bad night" and ruling.excess is not None:
        low, high = sorted(change_of(cost or 0.0, night.figure) for cost in (ruling.low, ruling.high))
        interval = change_of(ruling.excess, night.figure), low, high
    return _finding(night, around, level, word, detail, interval, ruling=ruling)  # type: ignore[arg-type]


def _step_finding(
    night: Examination, around: Surroundings, step: EnvironmentStep, ruling: PairRuling | None = None
) -> Finding:
    """Return the finding about a change of conditions that moved the figure. A gain has to be accepted too."""
    word: FindingWord = "environment step" if step.excess > 0 else "improvement"
    nights = f"{step.nights} night{'s' * (step.nights > 1)} under the new conditions"
    only = "; a bad night looks the same" if step.nights == 1 else ""
    build = f"; the build: {_pairs_detail(night, around, ruling)}" if ruling else ""
    detail, change = f"{around.change}; {nights}{only}{build}", shown_change(step.excess, step.limit(), night.figure)
    return _finding(night, around, step.before, word, detail, change, around.fields, ruling)


def _nights_finding(night: Examination, around: Surroundings, level: Level, missing: NoPairs | None) -> Finding:
    """Return the finding where no pairs were run: two nights running decide, unless pairs were only put off."""
    suspicion = night.suspicion
    if night.step is not None and night.step.is_beyond and around.is_chance:
        off = percent_change(change_of(night.step.excess, night.figure))
        is_first = night.step.nights == 1
        reason = "one night may be off by chance; the next one decides" if is_first else "as much is expected by chance"
        detail = f"{off} since {around.change}: {reason}"
        return _finding(night, around, level, "inconclusive", detail)
    if suspicion is None or around.is_chance:
        age = days_between(level.last, night.tonight.began) or 0
        if age > STALE_DAYS:
            return _finding(night, around, level, "stale", f"the level's last night is {age} days old")
        detail = "beyond its level, as is expected by chance among so many series" if suspicion else ""
        return _finding(night, around, level, "no change", detail)
    word: FindingWord = "regression" if suspicion.direction > 0 else "improvement"
    if missing is None or not missing.is_put_off:
        if suspicion.rule == "drift" and suspicion.is_clear:
            expected = night.expected_first
            assert expected is not None
            half = t_quantile(0.025, expected.freedom) * expected.scale * math.sqrt(1 / DRIFT_NIGHTS)
            detail = f"the median of the last {DRIFT_NIGHTS} nights, without pairs"
            change = shown_change(suspicion.excess, half, night.figure)
            return _finding(night, around, expected, word, detail, change)
        if suspicion.rule == "tonight" and night.runs_two_nights:
            return _finding(night, around, level, word, "two nights running, without pairs")
    detail = f"{_SEEN_BY[suspicion.rule]}; {missing.reason if missing else 'further nights or pairs decide'}"
    return _finding(night, around, level, "inconclusive", detail)


def _finding(
    night: Examination,
    around: Surroundings,
    level: Level,
    word: FindingWord,
    detail: str,
    interval: tuple[float, float, float] | None = None,
    fields: tuple[str, ...] = (),
    ruling: PairRuling | None = None,
) -> Finding:
    """Return a finding. interval: the change with its ends; None: tonight's against the level."""
    if night.is_provisional:
        detail += f"; the level is provisional, of a gain since {level.since} that nobody accepted"
    half = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.n)
    change, low, high = interval or shown_change(night.tonight.cost - level.cost, half, night.figure)
    return Finding(
        series=around.series, label=around.label, figure=night.figure, word=word, change=change, low=low, high=high,
        level=value_of(level.cost, night.figure), level_since=level.since, nights=level.n,
        detectable=abs(change_of(detectable(level), night.figure)), run_id=night.tonight.run_id, detail=detail,
        fields=fields, node=night.tonight.node, pairs=ruling.pairs if ruling else 0,
        build_change=change_of(ruling.proven_excess, night.figure) if ruling and ruling.is_decided else None,
        conditions_change=_conditions_change(night, ruling),
        against=night.against or None if ruling or word == "regression" else None,
    )  # fmt: skip


def _conditions_change(night: Examination, ruling: PairRuling | None) -> float | None:
    """Return how far the accepted build is off its level under new conditions; None where they did not change."""
    expected = night.expected_first
    if night.step is None or expected is None or ruling is None or ruling.first is None:
        return None
    return change_of(ruling.first - expected.cost, night.figure)


def _pairs_detail(night: Examination, around: Surroundings, ruling: PairRuling) -> str:
    """Return what the pairs say of the build, of its arms, and of the conditions where these changed."""
    first = "gain's build" if night.is_provisional else "last accepted build"
    text = f"against the {first}, by {ruling.pairs} pairs"
    if ruling.build in ("inconclusive", "more pairs"):
        text = f"about {ruling.more_pairs} more pairs, after {ruling.pairs}"
        if (ruling.more_pairs or 0) > MOST_NAMED:
            text = f"too noisy: 1 % would need more than {MOST_NAMED} further pairs, after {ruling.pairs}"
    if ruling.bias is not None:
        bias, reach = ruling.bias, ruling.bias.reach
        change, low, high = map(percent_change, shown_change(bias.excess, reach, night.figure))
        how = "less" if ruling.is_less_bias else "beside"
        text += f", {how} the arms' bias of {change} [{low}, {high}] by {bias.pairs} null pairs"
    off = _conditions_change(night, ruling)
    if off is not None:
        return f"{text}; the accepted build is {percent_change(off)} off its level since {around.change}"
    if ruling.word == "bad night" and ruling.first is not None and night.expected_first is not None:
        off = change_of(ruling.first - night.expected_first.cost, night.figure)
        build = f"the {first} is {off:+.1%} off its level too"
        return f"node {short_digest(night.tonight.node)}: {build}, by {ruling.pairs} pairs"
    return text


@dataclass(frozen=True)
class NodeGroup:
    """Series on one node whose figure moved alike."""

    node: str
    figure: Gated
    members: tuple[Judged, ...]
    of: int  # how many series ran there
    excess: float  # the median, as a cost
    is_alone: bool  # series on other nodes ran in the same night and did not move, so that the build is no cause
    clearest: Judged  # the member that is farthest from its level: its pairs stand for the group


def node_groups(examined: Sequence[Judged]) -> list[NodeGroup]:
    """Return the groups of at least FEWEST_ALIKE series, and half of those on the node, that moved alike tonight."""
    groups = []
    for node, figure in dict.fromkeys((e.tonight.node, e.figure) for _, e in examined):
        with_level = [m for m in examined if m[1].figure == figure and m[1].level]
        local = [m for m in with_level if m[1].tonight.node == node]
        for direction in (1, -1):
            suspicions = [(m, m[1].suspicion) for m in with_level if m[1].suspicion]
            moved = [(m, s.excess) for m, s in suspicions if s.rule == "tonight" and s.direction == direction]
            moved_here = [(m, excess) for m, excess in moved if m[1].tonight.node == node]
            middle = abs(median(excess for _, excess in moved_here)) if moved_here else 0.0
            alike = [(m, excess) for m, excess in moved_here if ALIKE[0] * middle <= abs(excess) <= ALIKE[1] * middle]
            if len(alike) >= max(FEWEST_ALIKE, len(local) / 2):
                excess = median(excess for _, excess in alike)
                others = len(with_level) - len(local)
                still = others - (len(moved) - len(moved_here))
                is_alone = still >= FEWEST_ALIKE and still > others / 2
                members = tuple(m for m, _ in alike)
                clearest = max(members, key=lambda m: abs(m[1].tonight.cost - m[1].level.cost) / m[1].level.scale)  # type: ignore[union-attr]
                groups.append(NodeGroup(node, figure, members, len(local), excess, is_alone, clearest))
    return groups
