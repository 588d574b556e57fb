"""Which node of several is out of line with its peers.

All limits are of the logarithm of a rate, so that half as fast and twice as fast are equally far away. The limit comes
from the other nodes: the median absolute deviation (MAD) of all, which one bad node of three or more does not move. A
MAD of few values may be small by chance, so its multiple depends on their number. No limit is a property of a machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

MAD_TO_DEVIATION = 1.4826  # the standard deviation of a normal distribution over its median absolute deviation
MIN_PEERS = 3
MANY_PEERS = 6
MIN_DIFFERENCE = 0.05  # differences below it are no finding, however alike the other nodes are
MIN_DIFFERENCE_OF_FEW = 0.10  # the same with fewer than MANY_PEERS nodes, whose MAD is small by chance more often
SPREAD_MULTIPLE = 4.0  # of the repeats within a node: a difference below that is noise of the check itself
GROUP_DISTANCE = 3.0  # two groups of nodes are more than that many times as far apart as the wider one is wide
# The multiple of the MAD that the farthest of n nodes exceeds with 1 % probability when only normal noise differs; with
# fewer than MANY_PEERS nodes with 10 %, as the limit could not be reached otherwise. By simulation, which the tests
# repeat. Between two numbers the multiple of the lower one counts.
MAD_MULTIPLES = {3: 10.8, 4: 4.8, 5: 5.4, 6: 10.7, 8: 8.7, 10: 7.4, 12: 6.6, 16: 5.7, 24: 5.1, 32: 4.7, 64: 4.4}
PeerWord = Literal["slow", "fast", "differ"]


@dataclass(frozen=True)
class PeerReading:
    """A node's rate."""

    value: float  # above zero and finite
    spread: float = 0.0  # of its repeats, relative


@dataclass(frozen=True)
class PeerFinding:
    """Nodes out of line."""

    word: PeerWord
    nodes: tuple[str, ...]
    ratio: float  # the worst one's rate over the median; for `differ` the slower rate over the faster
    limit: float  # the ratio that would still be in line, below 1 for `slow` and `differ`


def compare_peers(readings: Mapping[str, PeerReading]) -> list[PeerFinding]:
    """Return the nodes that are slower or faster than the others; with two nodes, both when they differ.

    Where the nodes fall into two groups of at least two each, `differ` names the slower group.
    """
    if len(readings) < 2:
        return []
    logs = {name: logarithm(reading.value) for name, reading in readings.items()}
    noise = SPREAD_MULTIPLE * median(reading.spread for reading in readings.values())
    min_difference_of_few = max(log_difference(MIN_DIFFERENCE_OF_FEW), noise)
    if len(logs) < MIN_PEERS:
        slow, fast = sorted(logs, key=lambda name: logs[name])
        difference = logs[fast] - logs[slow]  # nothing shows which of the two is at fault
        return (
            []
            if difference <= min_difference_of_few
            else [PeerFinding("differ", (slow, fast), math.exp(-difference), math.exp(-min_difference_of_few))]
        )
    middle = median(logs.values())
    deviation = MAD_TO_DEVIATION * median(abs(value - middle) for value in logs.values())
    min_difference = min_difference_of_few if len(logs) < MANY_PEERS else max(log_difference(MIN_DIFFERENCE), noise)
    multiple = MAD_MULTIPLES[max(count for count in MAD_MULTIPLES if count <= len(logs))]
    limit = max(min_difference, multiple * deviation)
    findings = _outlying_nodes("slow", logs, middle, limit) + _outlying_nodes("fast", logs, middle, limit)
    return findings or _separate_groups(logs, min_difference_of_few)


def log_difference(share: float) -> float:
    """Return how far a rate lies below another, as a logarithm, when it is less by this share of it."""
    return -math.log1p(-share)


def logarithm(value: float) -> float:
    """Return the logarithm of a rate. Raises ValueError for one that is not finite and above zero, also for NaN."""
    if not 0 < value < math.inf:
        raise ValueError(f"found a rate of {value}, expected a finite one above zero")
    return math.log(value)


def _outlying_nodes(word: PeerWord, logs: Mapping[str, float], middle: float, limit: float) -> list[PeerFinding]:
    """Return the finding about the nodes that are slow, or fast, by more than the limit; none without such nodes."""
    sign = 1 if word == "fast" else -1
    outliers = {name: value - middle for name, value in logs.items() if not sign * (value - middle) <= limit}
    if not outliers:
        return []
    worst = max(outliers.values(), key=abs)
    return [PeerFinding(word, tuple(sorted(outliers)), math.exp(worst), math.exp(sign * limit))]


def _separate_groups(logs: Mapping[str, float], min_difference: float) -> list[PeerFinding]:
    """Return the slower of two groups that are far apart, with at least two nodes each."""
    names = sorted(logs, key=lambda name: logs[name])
    gaps = [(logs[names[split]] - logs[names[split - 1]], split) for split in range(2, len(names) - 1)]
    gap, split = max(gaps, default=(0.0, 0))
    # without a gap the first group is empty
    widest = max(logs[group[-1]] - logs[group[0]] if group else math.inf for group in (names[:split], names[split:]))
    limit = max(min_difference, GROUP_DISTANCE * widest)
    if gap <= limit:
        return []
    return [PeerFinding("differ", tuple(sorted(names[:split])), math.exp(-gap), math.exp(-limit))]
