"""Many series that move alike on one node in one night: one finding about the node instead of one for each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.series.examination import Examination
from levelfield.series.judgement import Surroundings
from levelfield.specs.record import Gated

FEWEST_ALIKE = 3
ALIKE = (0.5, 1.5)  # of the median excess

Judged = tuple[Surroundings, Examination]


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
