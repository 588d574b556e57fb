"""From an examination, and the pairs that confirm it or not, to one finding; many on one node are one of the node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.measure.student import t_quantile
from levelfield.series.examination import Examination
from levelfield.series.findings import Finding, FindingWord, short
from levelfield.series.level import FEWEST, MEDIAN_VARIANCE, Level
from levelfield.series.pairs import PairRuling, judged_pairs
from levelfield.series.segments import change_of, days_between, value_of
from levelfield.series.trigger import DRIFT_NIGHTS, Rule, Suspicion, detectable
from levelfield.specs.record import Gated

STALE_DAYS = 14
MOST_NAMED = 100  # pairs: a larger number only says that the noise is large
_SEEN_BY: dict[Rule, str] = {
    "tonight": "tonight alone is beyond the level",
    "sum of nights": "the nights together are beyond the accepted level",
    "drift": "the last nights have drifted from the accepted level",
}
Pairs = Sequence[tuple[float | None, float | None]]
Judged = tuple["Surroundings", Examination]
FEWEST_ALIKE = 3
ALIKE = (0.5, 1.5)  # of the median excess


@dataclass(frozen=True)
class Surroundings:
    """What a judgement knows beside the nights. fields: of the conditions that changed, such as `driver 550 -> 560`.

    is_known_step: an earlier night was judged to be after this step, so no pairs are spent on it again. is_chance: as
    much is expected by chance among so many series.
    """

    series: str
    label: str
    fields: tuple[str, ...] = ()
    is_known_step: bool = False
    is_chance: bool = False


def wants_pairs(found: Examination, around: Surroundings) -> bool:
    """Whether to spend runs on a confirmation. A gain is no alarm, so further nights confirm it."""
    if found.level is None or around.is_chance:
        return False
    if found.has_stepped and found.is_young:
        return not around.is_known_step
    return found.suspicion is not None and found.suspicion.direction > 0


def judged_night(found: Examination, around: Surroundings, source: Callable[[], Pairs | None]) -> Finding:
    """Return the finding about one figure, after a confirmation where one is needed.

    source: runs pairs and returns the values of A and B; None where none can be run.
    """
    if found.level is None:
        detail = f"{len(found.history)} of {FEWEST} nights before this one"
        return Finding(
            series=around.series, label=around.label, figure=found.figure, word="new series", detail=detail,
            nights=len(found.history), run_id=found.tonight.run_id, node=found.tonight.node,
        )  # fmt: skip
    pairs = source() if wants_pairs(found, around) else None
    if pairs is not None:
        return _by_pairs(found, around, found.level, pairs)
    if found.has_stepped and not (found.suspicion and not found.is_young and found.runs_two_nights):
        return _of_step(found, around, found.level)
    return _by_nights(found, around, found.level)


def _by_pairs(found: Examination, around: Surroundings, level: Level, pairs: Pairs) -> Finding:
    ruling = judged_pairs(list(pairs), found.figure, found.direction, found.expected_first)
    if found.has_stepped and ruling.word in ("no change", "bad night", "inconclusive"):
        return _of_step(found, around, level)
    if found.step is not None and found.is_young and ruling.word == "bad night":
        detail = f"{_pairs_detail(found, ruling)}: a bad night, or {', '.join(around.fields) or 'the new conditions'}"
        return _finding(found, around, level, "inconclusive", detail, fields=around.fields, pairs=ruling.pairs)
    word: FindingWord = "inconclusive" if ruling.word == "more pairs" else ruling.word
    if word == "inconclusive" or ruling.excess is None or word == "bad night":
        return _finding(found, around, level, word, _pairs_detail(found, ruling), pairs=ruling.pairs)
    low, high = ruling.low or 0.0, ruling.high or 0.0
    low, high = sorted((change_of(low, found.figure), change_of(high, found.figure)))
    return _finding(
        found, around, level, word, _pairs_detail(found, ruling),
        change=change_of(ruling.excess, found.figure), low=low, high=high, pairs=ruling.pairs,
    )  # fmt: skip


def _of_step(found: Examination, around: Surroundings, level: Level) -> Finding:
    """Return the finding about a change of conditions that moved the figure. A gain has to be accepted too."""
    step = found.step
    assert step is not None
    word: FindingWord = "environment step" if step.excess > 0 else "improvement"
    nights = f"{step.nights} night{'s' * (step.nights > 1)} under the new conditions"
    only = "; a bad night looks the same" if step.nights == 1 else ""
    detail = f"{', '.join(around.fields) or 'the conditions changed'}; {nights}{only}"
    half = step.limit
    low, high = sorted(change_of(step.excess + side * half, found.figure) for side in (-1, 1))
    return _finding(
        found, around, step.before, word, detail, change=change_of(step.excess, found.figure), low=low, high=high,
        fields=around.fields,
    )  # fmt: skip


def _by_nights(found: Examination, around: Surroundings, level: Level) -> Finding:
    """Return the finding where no pairs were run: two nights running decide."""
    suspicion = found.suspicion
    if suspicion is None or around.is_chance:
        age = days_between(level.last, found.tonight.began) or 0
        if age > STALE_DAYS:
            return _finding(found, around, level, "stale", f"the level's last night is {age} days old")
        detail = "beyond its level, as is expected by chance among so many series" if suspicion else ""
        return _finding(found, around, level, "no change", detail)
    word: FindingWord = "regression" if suspicion.direction > 0 else "improvement"
    if suspicion.rule == "drift" and suspicion.is_clear:
        return _of_drift(found, around, word, suspicion)
    if suspicion.rule == "tonight" and found.runs_two_nights:
        return _finding(found, around, level, word, "two nights running, without pairs")
    detail = f"{_SEEN_BY[suspicion.rule]}; further nights or pairs decide"
    return _finding(found, around, level, "inconclusive", detail)


def _of_drift(found: Examination, around: Surroundings, word: FindingWord, suspicion: Suspicion) -> Finding:
    level = found.expected_first
    assert level is not None
    half = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 / DRIFT_NIGHTS)
    low, high = sorted(change_of(suspicion.excess + side * half, found.figure) for side in (-1, 1))
    return _finding(
        found, around, level, word, f"the median of the last {DRIFT_NIGHTS} nights, without pairs",
        change=change_of(suspicion.excess, found.figure), low=low, high=high,
    )  # fmt: skip


def _finding(
    found: Examination,
    around: Surroundings,
    level: Level,
    word: FindingWord,
    detail: str,
    change: float | None = None,
    low: float | None = None,
    high: float | None = None,
    fields: tuple[str, ...] = (),
    pairs: int = 0,
) -> Finding:
    excess = found.tonight.cost - level.cost
    if change is None:
        half = t_quantile(0.025, level.freedom) * level.scale * math.sqrt(1 + MEDIAN_VARIANCE / level.n)
        change = change_of(excess, found.figure)
        low, high = sorted(change_of(excess + side * half, found.figure) for side in (-1, 1))
    return Finding(
        series=around.series, label=around.label, figure=found.figure, word=word, change=change, low=low, high=high,
        level=value_of(level.cost, found.figure), level_since=level.since, nights=level.n,
        detectable=abs(change_of(detectable(level), found.figure)), run_id=found.tonight.run_id, detail=detail,
        fields=fields, node=found.tonight.node, pairs=pairs,
    )  # fmt: skip


def _pairs_detail(found: Examination, ruling: PairRuling) -> str:
    counted = f"{ruling.pairs} pairs"
    if ruling.word == "bad night" and ruling.first is not None and found.expected_first is not None:
        off = change_of(ruling.first - found.expected_first.cost, found.figure)
        return f"node {short(found.tonight.node)}: the accepted build is {off:+.1%} off its level too, by {counted}"
    if ruling.word in ("inconclusive", "more pairs"):
        if (ruling.more or 0) > MOST_NAMED:
            return f"too noisy: 1 % would need more than {MOST_NAMED} further pairs, after {ruling.pairs}"
        return f"about {ruling.more} more pairs, after {ruling.pairs}"
    return f"against the last accepted build, by {counted}"


@dataclass(frozen=True)
class NodeGroup:
    """Series on one node whose figure moved alike. of: how many series ran there. excess: the median, as a cost.

    is_alone: whether series on other nodes ran in the same night and did not move, so that the build is no cause.
    """

    node: str
    figure: Gated
    members: tuple[Judged, ...]
    of: int
    excess: float
    is_alone: bool

    @property
    def clearest(self) -> Judged:
        """The member that is farthest from its level: its pairs stand for the group."""
        return max(self.members, key=lambda m: abs(m[1].tonight.cost - m[1].level.cost) / m[1].level.scale)  # type: ignore[union-attr]


def node_groups(examined: Sequence[Judged]) -> list[NodeGroup]:
    """Return the groups of at least FEWEST_ALIKE series, and half of those on the node, that moved alike tonight."""
    found = []
    for node, figure in dict.fromkeys((e.tonight.node, e.figure) for _, e in examined):
        here = [m for m in examined if (m[1].tonight.node, m[1].figure) == (node, figure) and m[1].level]
        others = [m for m in examined if m[1].tonight.node != node and m[1].figure == figure and m[1].level]
        for direction in (1, -1):
            moved = [m for m in here if _moved(m[1], direction)]
            alike = _alike(moved)
            if len(alike) >= max(FEWEST_ALIKE, len(here) / 2):
                excess = median(_excess(m[1]) for m in alike)
                still = sum(not _moved(m[1], direction) for m in others)
                is_alone = still >= FEWEST_ALIKE and still > len(others) / 2
                found.append(NodeGroup(node, figure, tuple(alike), len(here), excess, is_alone))
    return found


def _moved(found: Examination, direction: int) -> bool:
    suspicion = found.suspicion
    return suspicion is not None and suspicion.rule == "tonight" and suspicion.direction == direction


def _excess(found: Examination) -> float:
    return found.suspicion.excess if found.suspicion else 0.0


def _alike(moved: Sequence[Judged]) -> list[Judged]:
    if not moved:
        return []
    middle = abs(median(_excess(m[1]) for m in moved))
    return [m for m in moved if ALIKE[0] * middle <= abs(_excess(m[1])) <= ALIKE[1] * middle]
