"""From what the nights show, and the pairs that confirm it or not, to one finding.

A figure is in one state (`state_of`). `word_of` is the table of what the night's pairs make of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from levelfield.measure.student import t_quantile
from levelfield.series.examination import Examination
from levelfield.series.findings import Finding, FindingWord, percent_change
from levelfield.series.level import FEWEST, MEDIAN_VARIANCE
from levelfield.series.pairs import PairRuling
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
Pair = tuple[float | None, float | None]
Pairs = Sequence[Pair]

# Builds under new conditions: they are no others, or pairs decided nothing; pairs are due; pairs found tonight's no
# slower; slower; and slower, so that pairs are due again.
BuildState = Literal["open", "due", "no slower", "slower", "slower, due"]
# What other series say: nothing; as much is expected by chance; one finding about the change stands for several.
Share = Literal["own", "chance", "together"]
State = Literal[
    "new", "steady", "stale", "worse", "better", "worse twice", "better twice",
    "moved worse", "moved better", "moved together", "moved by chance", "slower build",
]  # fmt: skip
# What the pairs of a night say to a state. A bad night cannot be told from new conditions that have no level yet.
PairsWord = Literal[
    "none", "put off", "regression", "improvement", "no change", "bad night", "bad night or conditions", "inconclusive"
]
WITHOUT_PAIRS: dict[State, FindingWord] = {
    "new": "new series",
    "steady": "no change",
    "stale": "stale",
    "worse": "inconclusive",
    "better": "inconclusive",
    "worse twice": "regression",
    "better twice": "improvement",
    "moved worse": "environment step",
    "moved better": "improvement",
    "moved by chance": "inconclusive",
    "slower build": "inconclusive",
}


def word_of(state: State, pairs: PairsWord) -> FindingWord:
    """Return what pairs make of a state. Where they are put off to another night, nights alone decide nothing."""
    if pairs == "put off" and state in ("worse twice", "better twice"):
        return "inconclusive"
    is_moved = state in ("moved worse", "moved better")  # the conditions moved it, unless pairs show the build
    if pairs in ("none", "put off") or (is_moved and pairs != "regression"):
        return WITHOUT_PAIRS[state]
    if pairs in ("inconclusive", "bad night or conditions"):
        return "new series" if state == "new" else "inconclusive"
    return pairs  # type: ignore[return-value]


@dataclass(frozen=True)
class NoPairs:
    """Why pairs that were wanted did not run. word: `put off` where they can run another night."""

    reason: str
    word: Literal["none", "put off"] = "none"


@dataclass(frozen=True)
class Judged:
    """One figure of one series tonight. fields: of the conditions that changed, such as `driver 550 -> 560`.

    cause: these, or the digests of the conditions where those are not known: the same for all series with the change.
    build_excess: what pairs under the new conditions found of the build, as a cost.
    """

    series: str
    label: str
    found: Examination
    fields: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    build: BuildState = "open"
    build_excess: float = 0.0
    share: Share = "own"

    @property
    def name(self) -> tuple[str, Gated]:
        return self.series, self.found.figure

    @property
    def change(self) -> str:
        return ", ".join(self.fields) or "the new conditions"

    @property
    def is_due(self) -> bool:
        return self.build in ("due", "slower, due")

    @property
    def is_slower(self) -> bool:
        return self.build in ("slower", "slower, due")

    @property
    def wants_pairs(self) -> bool:
        """Whether to spend runs on a confirmation. A gain is no alarm, so further nights confirm it.

        A change of conditions may hide one of the build, so both builds run under the new ones, once. A regression that
        was named gets pairs until they find it gone.
        """
        found = self.found
        if found.opened is not None or (self.is_due and found.level is not None):
            return True
        if found.level is None or self.share == "chance" or (found.has_stepped and found.is_under_change):
            return False
        return found.suspicion is not None and found.suspicion.direction > 0

    def less_build(self, ruling: PairRuling | NoPairs | None) -> Judged:
        """Return the same with the step of the conditions alone, less the build's part by the last pairs."""
        excess = ruling.shown if isinstance(ruling, PairRuling) and ruling.is_decided else self.build_excess
        return replace(self, found=self.found.less_build(excess))


def state_of(judged: Judged, has_pairs: bool) -> State:
    """Return the state of a figure. has_pairs: of tonight; then earlier ones, and nights, have nothing to decide."""
    found, level, suspicion = judged.found, judged.found.level, judged.found.suspicion
    if level is None:
        return "new"
    moved: State | None = None
    if found.step is not None and found.step.is_beyond:
        moved = "moved worse" if found.step.excess > 0 else "moved better"
        if judged.share != "own" and (has_pairs or judged.share == "chance"):
            moved = "moved by chance" if judged.share == "chance" else "moved together"
    if judged.is_slower and not has_pairs and moved != "moved worse":
        return "slower build"
    is_seen_since = suspicion is not None and found.basis != "before" and found.runs_two_nights and not has_pairs
    if moved is not None and (moved == "moved by chance" or not is_seen_since):
        return moved
    if suspicion is None or judged.share == "chance":
        return "stale" if (days_between(level.last, found.tonight.began) or 0) > STALE_DAYS else "steady"
    is_twice = suspicion.is_clear if suspicion.rule == "drift" else found.runs_two_nights
    if suspicion.direction > 0:
        return "worse twice" if is_twice else "worse"
    return "better twice" if is_twice else "better"


def judged_night(judged: Judged, ruling: PairRuling | NoPairs | None = None) -> Finding:
    """Return the finding about one figure. ruling: of pairs, or why there are none; None: none were wanted."""
    judged = judged.less_build(ruling)
    found, pairs = judged.found, ruling if isinstance(ruling, PairRuling) else None
    state = state_of(judged, pairs is not None)
    said = ruling.word if isinstance(ruling, NoPairs) else _pairs_word(judged, state, pairs) if pairs else "none"
    word = word_of(state, said)
    if found.level is None:
        return _without_level(judged, word, pairs)
    level, shown = found.level, None
    fields: tuple[str, ...] = ()
    if state in ("moved worse", "moved better") and word != "regression":
        assert found.step is not None
        detail, fields, level = _step_detail(judged, pairs), judged.fields, found.step.before
        shown = shown_change(found.step.excess, found.step.limit, found.figure)
    elif pairs is not None:
        detail = _pairs_detail(judged, pairs)
        if said == "bad night or conditions":
            detail, fields = f"{detail}: a bad night, or {judged.change}", judged.fields
        elif word not in ("inconclusive", "bad night"):
            shown = _pairs_change(found.figure, pairs)
    else:
        detail = _nights_detail(judged, state, word, ruling.reason if isinstance(ruling, NoPairs) else None)
        if word in ("regression", "improvement") and found.suspicion and found.suspicion.rule == "drift":
            level = found.expected_first or level
            half = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 / DRIFT_NIGHTS)
            shown = shown_change(found.suspicion.excess, half, found.figure)
    if found.basis == "gain":
        detail += f"; the level is provisional, of a gain since {level.since} that nobody accepted"
    half = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.n)
    change, low, high = shown or shown_change(found.tonight.cost - level.cost, half, found.figure)
    return Finding(
        series=judged.series, label=judged.label, figure=found.figure, word=word, change=change, low=low, high=high,
        level=value_of(level.cost, found.figure), level_since=level.since, nights=level.n,
        detectable=abs(change_of(detectable(level), found.figure)), run_id=found.tonight.run_id, detail=detail,
        fields=fields, node=found.tonight.node, pairs=pairs.pairs if pairs else 0,
        build_change=change_of(pairs.shown, found.figure) if pairs and pairs.is_decided else None,
        conditions_change=_conditions_change(found, pairs) if pairs else None,
        against=found.against or None if pairs or word == "regression" else None,
    )  # fmt: skip


def _pairs_word(judged: Judged, state: State, ruling: PairRuling) -> PairsWord:
    """Return what pairs say. Where a finding about the conditions stands beside it, or no level: of the build alone."""
    word = ruling.build if state in ("new", "moved together") else ruling.word
    if word == "bad night" and judged.found.is_under_change:
        return "bad night or conditions"
    return "inconclusive" if word == "more pairs" else word


def _without_level(judged: Judged, word: FindingWord, ruling: PairRuling | None) -> Finding:
    """Return that the series is new. Pairs need no level to decide about a regression that was named before it."""
    found, detail = judged.found, f"{len(judged.found.history)} of {FEWEST} nights before this one"
    new = Finding(
        series=judged.series, label=judged.label, figure=found.figure, word=word, detail=detail,
        nights=len(found.history), run_id=found.tonight.run_id, node=found.tonight.node,
    )  # fmt: skip
    if ruling is None or word == "new series":
        return new
    change, low, high = _pairs_change(found.figure, ruling)
    update = {
        "change": change, "low": low, "high": high, "pairs": ruling.pairs, "against": found.against,
        "build_change": change_of(ruling.shown, found.figure), "detail": f"{_pairs_detail(judged, ruling)}; {detail}",
    }  # fmt: skip
    return new.model_copy(update=update)


def _pairs_change(figure: Gated, ruling: PairRuling) -> tuple[float, float, float]:
    low, high = sorted(change_of(each or 0.0, figure) for each in (ruling.low, ruling.high))
    return change_of(ruling.excess or 0.0, figure), low, high


def _step_detail(judged: Judged, ruling: PairRuling | None) -> str:
    """Return what a change of conditions did. A gain has to be accepted too."""
    nights = judged.found.step.nights if judged.found.step else 0
    only = "; a bad night looks the same" if nights == 1 else ""
    build = f"; the build: {_pairs_detail(judged, ruling)}" if ruling else ""
    return f"{judged.change}; {nights} night{'s' * (nights > 1)} under the new conditions{only}{build}"


def _nights_detail(judged: Judged, state: State, word: FindingWord, missing: str | None) -> str:
    """Return what the nights show where no pairs ran. missing: why, where some were wanted."""
    found, suspicion = judged.found, judged.found.suspicion
    if state == "slower build":
        return f"pairs found a regression under {judged.change}; {missing or 'none ran tonight'}"
    if state == "moved by chance" and found.step is not None:
        off = percent_change(change_of(found.step.excess, found.figure))
        is_first = found.step.nights == 1
        why = "one night may be off by chance; the next one decides" if is_first else "as much is expected by chance"
        return f"{off} since {judged.change}: {why}"
    if state == "stale" and found.level is not None:
        return f"the level's last night is {days_between(found.level.last, found.tonight.began)} days old"
    if state == "steady" or suspicion is None:
        return "beyond its level, as is expected by chance among so many series" if suspicion else ""
    if word == "inconclusive":
        return f"{_SEEN_BY[suspicion.rule]}; {missing or 'further nights or pairs decide'}"
    is_drift = suspicion.rule == "drift"
    return f"{f'the median of the last {DRIFT_NIGHTS} nights' if is_drift else 'two nights running'}, without pairs"


def _conditions_change(found: Examination, ruling: PairRuling) -> float | None:
    """Return how far the accepted build is off its level under new conditions; None where they did not change."""
    expected = found.expected_first
    if found.step is None or expected is None or ruling.first is None:
        return None
    return change_of(ruling.first - expected.cost, found.figure)


def _pairs_detail(judged: Judged, ruling: PairRuling) -> str:
    """Return what the pairs say of the build, and of the conditions where these changed."""
    found = judged.found
    first = "gain's build" if found.basis == "gain" else "last accepted build"
    text = f"against the {first}, by {ruling.pairs} pairs"
    if not ruling.is_decided:
        text = f"about {ruling.more} more pairs, after {ruling.pairs}"
        if (ruling.more or 0) > MOST_NAMED:
            text = f"too noisy: 1 % would need more than {MOST_NAMED} further pairs, after {ruling.pairs}"
    off = _conditions_change(found, ruling)
    if off is not None:
        return f"{text}; the accepted build is {percent_change(off)} off its level since {judged.change}"
    if ruling.word == "bad night" and ruling.first is not None and found.expected_first is not None:
        off = change_of(ruling.first - found.expected_first.cost, found.figure)
        build = f"the {first} is {off:+.1%} off its level too"
        return f"node {short_digest(found.tonight.node)}: {build}, by {ruling.pairs} pairs"
    return text
