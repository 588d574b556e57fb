"""Judges a figure by its examination and by pairs: one finding each; many alike on a node are one about the node.

A is the accepted build and B tonight's. A cost is the logarithm of a figure, with the sign that makes more worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from levelfield.measure.student import t_quantile
from levelfield.series.examination import EnvironmentStep, Examination
from levelfield.series.findings import Finding, FindingWord, percent_change
from levelfield.series.level import MEDIAN_VARIANCE, MIN_LEVEL_NIGHTS, Level
from levelfield.series.pairs import Pair, PairRuling
from levelfield.series.segments import change_interval, change_of, days_between, value_of
from levelfield.series.trigger import DRIFT_NIGHTS, Rule, detectable_excess
from levelfield.specs.record import GatedFigure
from levelfield.specs.short_names import short_digest

STALE_DAYS = 14
MAX_PAIRS_NAMED = 100  # a message names no larger number of pairs: it only says that the noise is large
_RULE_TEXTS: dict[Rule, str] = {
    "tonight": "tonight alone is beyond the baseline",
    "sum of nights": "the nights together are beyond the baseline",
    "drift": "the last nights have drifted from the baseline",
}
Pairs = Sequence[Pair]
MIN_ALIKE_SERIES = 3
# Series that moved alike have from the first to the second share of their median excess.
ALIKE_EXCESS_SHARES = (0.5, 1.5)


@dataclass(frozen=True)
class JudgementContext:
    """What the judgement of a figure takes into account beside its nights."""

    series: str
    label: str
    fields: tuple[str, ...] = ()  # of the conditions that changed, such as `driver 550 -> 560`
    # `fields`, or without any the digests of both conditions: equal for all series with the same change
    cause: tuple[str, ...] = ()
    # no pairs have compared the builds under the new conditions yet, or the last ones found the new one worse
    are_pairs_due: bool = False
    is_build_worse: bool = False  # the last pairs under the new conditions found tonight's build worse
    is_build_cleared: bool = False  # the last pairs under the new conditions found it no worse
    build_excess: float = 0.0  # how much worse those pairs found it, as a cost
    is_likely_chance: bool = False  # such a suspicion is expected by chance among so many series
    is_covered_by_group: bool = False  # one finding about the change stands for it and others

    @property
    def change(self) -> str:
        return ", ".join(self.fields) or "the new conditions"


class ExaminedFigure(NamedTuple):
    """One figure of one series tonight."""

    context: JudgementContext
    examination: Examination


def needs_pairs(examination: Examination, context: JudgementContext) -> bool:
    """Whether to spend runs on a confirmation. A gain is no alarm, so further nights confirm it.

    A change of conditions may hide one of the build, so both builds run under the new ones, once. A regression that was
    named gets one pair a night, and further ones where this pair does not show it, until they find it gone.
    """
    if examination.open_regression is not None:
        return True
    if examination.level is None:
        return False
    if context.are_pairs_due:
        return True
    if context.is_likely_chance or (
        examination.are_conditions_new and examination.step is not None and examination.step.is_beyond
    ):
        return False
    return examination.suspicion is not None and examination.suspicion.direction > 0


@dataclass(frozen=True)
class NoPairs:
    """Why pairs that were due did not run."""

    reason: str
    is_postponed: bool = False  # they can run in another night, so nights alone decide nothing


def judge_figure(
    examination: Examination, context: JudgementContext, ruling: PairRuling | NoPairs | None = None
) -> Finding:
    """Return the finding about one figure. ruling: of pairs, or why there are none; None: none were wanted."""
    level = examination.level
    if level is None:
        detail = f"not judged yet: {len(examination.history)} of the {MIN_LEVEL_NIGHTS} nights that a baseline needs"
        new_finding = Finding(
            series=context.series, label=context.label, figure=examination.figure, word="new series", detail=detail,
            nights=len(examination.history), run_id=examination.tonight.run_id, node=examination.tonight.node,
        )  # fmt: skip
        if not isinstance(ruling, PairRuling) or not ruling.is_decided:
            return new_finding
        # Pairs need no level to decide about a regression that was named before the series began anew.
        low, high = sorted(change_of(cost or 0.0, examination.figure) for cost in (ruling.low, ruling.high))
        update = {
            "word": ruling.build_word, "change": change_of(ruling.excess or 0.0, examination.figure),
            "low": low, "high": high, "pairs": ruling.pairs,
            "build_change": change_of(ruling.proven_excess, examination.figure), "against": examination.baseline_run,
            "detail": f"{_pairs_text(examination, context, ruling)}; {detail}",
        }  # fmt: skip
        return new_finding.model_copy(update=update)
    if isinstance(ruling, PairRuling):
        return _paired_finding(examination, context, level, ruling)
    examination = examination.without_build_excess(context.build_excess)
    step = (
        examination.step if examination.step and examination.step.is_beyond and not context.is_likely_chance else None
    )
    if context.is_build_worse and not (step and step.excess > 0):
        detail = f"pairs found a regression under {context.change}; {ruling.reason if ruling else 'none ran tonight'}"
        return _finding(examination, context, level, "inconclusive", detail)
    if step and not (
        examination.suspicion and not examination.are_conditions_new and examination.is_second_night_beyond
    ):
        return _step_finding(examination, context, step)
    return _nights_finding(examination, context, level, ruling)


def build_excess(context: JudgementContext, ruling: PairRuling | NoPairs | None) -> float:
    """Return how much worse tonight's build is than the accepted one, as a cost, by the last pairs that decided."""
    return ruling.proven_excess if isinstance(ruling, PairRuling) and ruling.is_decided else context.build_excess


def _paired_finding(examination: Examination, context: JudgementContext, level: Level, ruling: PairRuling) -> Finding:
    """Return what the pairs show: B against A is the build, A against its level the conditions, and both can be."""
    examination, word = examination.without_build_excess(build_excess(context, ruling)), ruling.word
    if examination.step is not None and ruling.build_word != "regression":
        if examination.step.is_beyond and not context.is_likely_chance:
            if not context.is_covered_by_group:
                return _step_finding(examination, context, examination.step, ruling)
            word = ruling.build_word
        elif examination.are_conditions_new and word == "bad night":
            detail = f"{_pairs_text(examination, context, ruling)}: a bad night, or {context.change}"
            return _finding(examination, context, level, "inconclusive", detail, fields=context.fields, ruling=ruling)
    # the build, with the figures of the pairs where they decide
    detail = _pairs_text(examination, context, ruling)
    if word in ("inconclusive", "more pairs"):
        return _finding(examination, context, level, "inconclusive", detail, ruling=ruling)
    interval = None
    if word != "bad night" and ruling.excess is not None:
        low, high = sorted(change_of(cost or 0.0, examination.figure) for cost in (ruling.low, ruling.high))
        interval = change_of(ruling.excess, examination.figure), low, high
    return _finding(examination, context, level, word, detail, interval, ruling=ruling)  # type: ignore[arg-type]


def _step_finding(
    examination: Examination, context: JudgementContext, step: EnvironmentStep, ruling: PairRuling | None = None
) -> Finding:
    """Return the finding about a change of conditions that moved the figure. A gain has to be accepted too."""
    word: FindingWord = "environment step" if step.excess > 0 else "improvement"
    nights = f"{step.night_count} night{'s' * (step.night_count > 1)} under the new conditions"
    caveat = "; a bad night looks the same" if step.night_count == 1 else ""
    build = f"; the build: {_pairs_text(examination, context, ruling)}" if ruling else ""
    detail, change = (
        f"{context.change}; {nights}{caveat}{build}",
        change_interval(step.excess, step.limit(), examination.figure),
    )
    return _finding(examination, context, step.level_before, word, detail, change, context.fields, ruling)


def _nights_finding(
    examination: Examination, context: JudgementContext, level: Level, no_pairs: NoPairs | None
) -> Finding:
    """Return the finding where no pairs were run: two nights in a row decide, unless pairs were only put off."""
    suspicion = examination.suspicion
    if examination.step is not None and examination.step.is_beyond and context.is_likely_chance:
        off = percent_change(change_of(examination.step.excess, examination.figure))
        is_first = examination.step.night_count == 1
        reason = "one night may be off by chance; the next one decides" if is_first else "as much is expected by chance"
        detail = f"{off} since {context.change}: {reason}"
        return _finding(examination, context, level, "inconclusive", detail)
    if suspicion is None or context.is_likely_chance:
        age = days_between(level.last_night, examination.tonight.began) or 0
        if age > STALE_DAYS:
            return _finding(examination, context, level, "stale", f"the baseline's last night is {age} days old")
        detail = "beyond its baseline, as is expected by chance among so many series" if suspicion else ""
        return _finding(examination, context, level, "no change", detail)
    word: FindingWord = "regression" if suspicion.direction > 0 else "improvement"
    if no_pairs is None or not no_pairs.is_postponed:
        if suspicion.rule == "drift" and suspicion.is_clear:
            expected = examination.expected_level_a
            assert expected is not None
            half_width = t_quantile(0.025, expected.freedom) * expected.scale * math.sqrt(1 / DRIFT_NIGHTS)
            detail = f"the median of the last {DRIFT_NIGHTS} nights, without pairs"
            change = change_interval(suspicion.excess, half_width, examination.figure)
            return _finding(examination, context, expected, word, detail, change)
        if suspicion.rule == "tonight" and examination.is_second_night_beyond:
            return _finding(examination, context, level, word, "two nights running, without pairs")
    is_gain = word == "improvement"
    decides = "a second night confirms a gain" if is_gain else "further nights or pairs decide"
    detail = f"{_RULE_TEXTS[suspicion.rule]}; {no_pairs.reason if no_pairs else decides}"
    finding = _finding(examination, context, level, "inconclusive", detail)
    return finding.model_copy(update={"is_gain_to_confirm": is_gain})


def _finding(
    examination: Examination,
    context: JudgementContext,
    level: Level,
    word: FindingWord,
    detail: str,
    interval: tuple[float, float, float] | None = None,
    fields: tuple[str, ...] = (),
    ruling: PairRuling | None = None,
) -> Finding:
    """Return a finding. interval: the change with its two ends; None: that of tonight against the level."""
    if examination.is_provisional:
        detail += f"; the baseline is provisional, of a gain since {level.since} that nobody accepted"
    half_width = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.night_count)
    change, low, high = interval or change_interval(
        examination.tonight.cost - level.cost, half_width, examination.figure
    )
    return Finding(
        series=context.series, label=context.label, figure=examination.figure, word=word, change=change,
        low=low, high=high, level=value_of(level.cost, examination.figure), level_since=level.since,
        nights=level.night_count, detectable=abs(change_of(detectable_excess(level), examination.figure)),
        run_id=examination.tonight.run_id, detail=detail, fields=fields, node=examination.tonight.node,
        pairs=ruling.pairs if ruling else 0,
        build_change=change_of(ruling.proven_excess, examination.figure) if ruling and ruling.is_decided else None,
        conditions_change=_conditions_change(examination, ruling),
        against=examination.baseline_run or None if ruling or word == "regression" else None,
    )  # fmt: skip


def _conditions_change(examination: Examination, ruling: PairRuling | None) -> float | None:
    """Return how far the accepted build is off its level under new conditions; None where they did not change."""
    expected = examination.expected_level_a
    if examination.step is None or expected is None or ruling is None or ruling.mean_cost_a is None:
        return None
    return change_of(ruling.mean_cost_a - expected.cost, examination.figure)


def _pairs_text(examination: Examination, context: JudgementContext, ruling: PairRuling) -> str:
    """Return what the pairs show about the build, the arms, and the conditions where these changed."""
    if ruling.is_reconfirmed:
        return f"one pair shows {percent_change(change_of(ruling.excess or 0.0, examination.figure))} again"
    build_a = "gain's build" if examination.is_provisional else "baseline build"
    text = f"against the {build_a}, by {ruling.pairs} pairs"
    if ruling.build_word in ("inconclusive", "more pairs"):
        text = f"about {ruling.more_pairs} more pairs, after {ruling.pairs}"
        if (ruling.more_pairs or 0) > MAX_PAIRS_NAMED:
            text = f"too noisy: 1 % would need more than {MAX_PAIRS_NAMED} further pairs, after {ruling.pairs}"
    if ruling.bias is not None:
        bias, half_width = ruling.bias, ruling.bias.half_width
        change, *ends = map(percent_change, change_interval(bias.excess, half_width, examination.figure))
        low, high = (end.removesuffix(" %") for end in ends)
        how = "corrected by" if ruling.is_bias_removed else "not corrected by"
        text += f", {how} the A/A difference of {change} [{low}, {high}] ({bias.pairs} A/A pairs)"
    off = _conditions_change(examination, ruling)
    if off is not None:
        return f"{text}; the baseline build is {percent_change(off)} off its baseline since {context.change}"
    if ruling.word == "bad night" and ruling.mean_cost_a is not None and examination.expected_level_a is not None:
        off = change_of(ruling.mean_cost_a - examination.expected_level_a.cost, examination.figure)
        sentence = f"the {build_a} is {percent_change(off)} off its baseline too"
        return f"node {short_digest(examination.tonight.node)}: {sentence}, by {ruling.pairs} pairs"
    return text


@dataclass(frozen=True)
class NodeGroup:
    """Series on one node whose figure moved alike."""

    node: str
    figure: GatedFigure
    members: tuple[ExaminedFigure, ...]
    series_count: int  # how many series with a level ran there
    excess: float  # the median, as a cost
    is_only_node: bool  # series on other nodes ran in the same night and did not move, so that the build is no cause
    clearest: ExaminedFigure  # the member that is farthest from its level: its pairs stand for the group


def node_groups(examined: Sequence[ExaminedFigure]) -> list[NodeGroup]:
    """Return the groups of series that moved alike: at least MIN_ALIKE_SERIES, and half of those on the node."""
    groups = []
    for node, figure in dict.fromkeys((examination.tonight.node, examination.figure) for _, examination in examined):
        with_level = [
            (member, member.examination)
            for member in examined
            if member.examination.figure == figure and member.examination.level
        ]
        on_node = sum(examination.tonight.node == node for _, examination in with_level)
        elsewhere = len(with_level) - on_node
        for direction in (1, -1):
            moved = [
                (member, examination.suspicion.excess)
                for member, examination in with_level
                if examination.suspicion
                and (examination.suspicion.rule, examination.suspicion.direction) == ("tonight", direction)
            ]
            moved_here = [(member, excess) for member, excess in moved if member.examination.tonight.node == node]
            least, most = (
                share * abs(median(e for _, e in moved_here)) if moved_here else 0.0 for share in ALIKE_EXCESS_SHARES
            )
            alike = [(member, excess) for member, excess in moved_here if least <= abs(excess) <= most]
            if len(alike) >= max(MIN_ALIKE_SERIES, on_node / 2):
                excess = median(excess for _, excess in alike)
                unmoved = elsewhere - (len(moved) - len(moved_here))
                is_only_node = unmoved >= MIN_ALIKE_SERIES and unmoved > elsewhere / 2
                members = tuple(member for member, _ in alike)
                clearest = max(members, key=_distance_in_scales)
                groups.append(NodeGroup(node, figure, members, on_node, excess, is_only_node, clearest))
    return groups


def _distance_in_scales(member: ExaminedFigure) -> float:
    """Return how far tonight is from its level. One pair that reconfirms a regression says nothing about the node."""
    examination = member.examination
    assert examination.level is not None
    if examination.reconfirmation_limit is not None:
        return 0.0
    return abs(examination.tonight.cost - examination.level.cost) / examination.level.scale
