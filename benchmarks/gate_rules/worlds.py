"""Simulated nights of a series: noise with memory, bad nights, nodes that differ, and a change in the software.

A cost is the logarithm of a step time: more is worse. Half of the noise's variance belongs to the night (AR(1), 0.5),
half to the run. A pair of runs in one night shares the night and the node, and has two runs' noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEMORY = 0.5
BAD_SHARE, BAD_LEAST, BAD_MOST = 0.02, 0.05, 0.20
NODES, NODE_DEVIATION = 2, 0.007

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WorldKind:
    """deviation: of one night's value, relative. tail: degrees of Student's t; None for normal noise.

    is_real: with bad nights and nodes that differ. ramp, shift: in the software, from night `start` on.
    """

    deviation: float
    is_real: bool
    tail: int | None = None
    shift: float = 0.0
    ramp: float = 0.0
    start: int = 40
    bad_at_start: str | None = None  # `night` or `run`: the night `start` is bad


@dataclass(frozen=True)
class Nights:
    """shared: cost of the night on its node, without the run's noise; observed: of the nightly's run; both by series.

    change: of the software, by night. node: by series and night.
    """

    kind: WorldKind
    shared: Array
    observed: Array
    change: Array
    node: NDArray[np.int64]

    def pairs(self, series: int, night: int, count: int, random: np.random.Generator) -> list[tuple[float, float]]:
        """Return `count` pairs of step times: of the accepted build and of the night's, in that night on that node."""
        noise = noise_of(random, (count, 2), self.kind.tail) * self.kind.deviation * np.sqrt(0.5)
        costs = self.shared[series, night] + noise
        return [(float(np.exp(a)), float(np.exp(b + self.change[night]))) for a, b in costs]


def simulated(kind: WorldKind, series: int, nights: int, random: np.random.Generator) -> Nights:
    """Return the nights of independent series."""
    part = kind.deviation * np.sqrt(0.5)
    shared = _with_memory(noise_of(random, (series, nights), kind.tail)) * part
    run = noise_of(random, (series, nights), kind.tail) * part
    node = random.integers(0, NODES, (series, nights))
    if kind.is_real:
        offsets = random.normal(0, NODE_DEVIATION, (series, NODES))
        shared = shared + np.take_along_axis(offsets, node, axis=1)
        bad = np.where(random.random((series, nights)) < BAD_SHARE, _badness(random, (series, nights)), 0.0)
        is_night = random.random((series, nights)) < 0.5
        shared, run = shared + np.where(is_night, bad, 0.0), run + np.where(is_night, 0.0, bad)
    if kind.bad_at_start:
        extra = _badness(random, (series,))
        target = shared if kind.bad_at_start == "night" else run
        target[:, kind.start] += extra
    after = np.maximum(0, np.arange(nights) - kind.start + 1)
    change = np.log1p(kind.shift) * (after > 0) + np.log1p(kind.ramp) * after
    return Nights(kind, shared, shared + run + change, change, node)


def noise_of(random: np.random.Generator, shape: tuple[int, ...], tail: int | None) -> Array:
    """Return noise of variance 1, with the tail of Student's t where one is given."""
    if tail is None:
        return random.standard_normal(shape)
    return random.standard_t(tail, shape) * np.sqrt((tail - 2) / tail)


def _with_memory(innovations: Array) -> Array:
    """Return AR(1) noise of variance 1 along the last axis, from innovations of variance 1."""
    found = innovations.copy()
    for night in range(1, found.shape[1]):
        found[:, night] = MEMORY * found[:, night - 1] + np.sqrt(1 - MEMORY**2) * innovations[:, night]
    return found


def _badness(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.log1p(random.uniform(BAD_LEAST, BAD_MOST, shape))
