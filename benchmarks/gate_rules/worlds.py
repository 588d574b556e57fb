"""Simulated nights of a series: noise with memory, bad nights, nodes that differ, and a change in the software.

A cost is the logarithm of a step time: more is worse. Half of the noise's variance belongs to the night (AR(1), 0.5),
half to the run. A pair of runs in one night shares the night and the node, and has two runs' noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MEMORY = 0.5
BAD_SHARE, BAD_LEAST, BAD_MOST = 0.02, 0.05, 0.20
NODES, NODE_DEVIATION = 2, 0.007
STATE_SHARE, STATE_COST = 0.3, 0.03  # of the slower of two clock states

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WorldKind:
    """deviation: of one night's value, relative. tail: degrees of Student's t; None for normal noise.

    is_scaled: whether such noise has variance 1; the plain t has more. is_real: with bad nights and nodes that differ.
    start: the nights before the first one that is judged. ramp, shift: in the software, from then on, for `lasts`
    nights where that is given, of the first `fallen` series where that is; noise: the factor of the noise from then on;
    driver: how much slower a new driver makes every build from then on; None: it stays. memory: correlation of a night
    with the next. outliers: share of runs, also those of pairs, that are 5 to 20 % slower. states: whether each night
    or each run has one of two clocks. missing: share of nights without a run. arm_bias: how much slower the new side of
    every pair is, whatever its build. is_accepted: whether somebody accepted the level of the nights before the first
    one that is judged.
    """

    deviation: float
    is_real: bool
    tail: int | None = None
    shift: float = 0.0
    ramp: float = 0.0
    lasts: int | None = None
    fallen: int | None = None
    start: int = 40
    bad_at_start: Literal["night", "run"] | None = None  # the night `start` is bad
    is_scaled: bool = True
    noise: float = 1.0
    driver: float | None = None
    memory: float = MEMORY
    outliers: float = 0.0
    states: Literal["night", "run"] | None = None
    missing: float = 0.0
    nodes: int = NODES
    arm_bias: float = 0.0
    is_accepted: bool = False


@dataclass(frozen=True)
class Nights:
    """shared: cost of the night on its node, without the run's noise; observed: of the nightly's run; both by series.

    change: of the software, node: by series and night. A night without a run is nan in `observed`.
    """

    kind: WorldKind
    shared: Array
    observed: Array
    change: Array
    node: NDArray[np.int64]

    def pairs(
        self, series: int, night: int, builds: tuple[int, int], count: int, random: np.random.Generator
    ) -> list[tuple[float, float]]:
        """Return `count` pairs of step times in a night on its node. builds: the nights that first ran each side's."""
        costs = self.shared[series, night] + _run_noise(self.kind, random, (count, 2)) * _growth(self.kind, night)
        costs += _extras(self.kind, random, (count, 2))
        costs += self.change[series, list(builds)]
        costs[:, 1] += np.log1p(self.kind.arm_bias)
        return [(float(a), float(b)) for a, b in np.exp(costs)]


def simulated(kind: WorldKind, series: int, nights: int, random: np.random.Generator) -> Nights:
    """Return the nights of independent series."""
    shape, index = (series, nights), np.arange(nights)
    after = np.maximum(0, index - kind.start + 1)
    growth = _growth(kind, index)
    shared = _with_memory(noise_of(random, shape, kind), kind.memory) * kind.deviation * np.sqrt(0.5) * growth
    run = _run_noise(kind, random, shape) * growth + _extras(kind, random, shape)
    node = random.integers(0, kind.nodes, shape)
    if kind.is_real:
        offsets = random.normal(0, NODE_DEVIATION, (series, kind.nodes))
        shared = shared + np.take_along_axis(offsets, node, axis=1)
        bad = np.where(random.random(shape) < BAD_SHARE, _badness(random, shape), 0.0)
        is_night = random.random(shape) < 0.5
        shared, run = shared + np.where(is_night, bad, 0.0), run + np.where(is_night, 0.0, bad)
    if kind.states == "night":
        shared = shared + _slow_state(random, shape)
    if kind.driver is not None:
        shared = shared + np.log1p(kind.driver) * (after > 0)
    if kind.bad_at_start:
        target = shared if kind.bad_at_start == "night" else run
        target[:, kind.start] += _badness(random, (series,))
    is_changed = (after > 0) & (after <= (kind.lasts or nights))
    is_fallen = np.arange(series) < (series if kind.fallen is None else kind.fallen)
    change = np.outer(is_fallen, (np.log1p(kind.shift) + np.log1p(kind.ramp) * after) * is_changed)
    observed = shared + run + change
    if kind.missing:
        observed[random.random(shape) < kind.missing] = np.nan
    return Nights(kind, shared, observed, change, node)


def noise_of(random: np.random.Generator, shape: tuple[int, ...], kind: WorldKind) -> Array:
    """Return noise of variance 1, with the tail of Student's t where one is given; the plain t where not scaled."""
    if kind.tail is None:
        return random.standard_normal(shape)
    return random.standard_t(kind.tail, shape) * (np.sqrt((kind.tail - 2) / kind.tail) if kind.is_scaled else 1.0)


def _run_noise(kind: WorldKind, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return noise_of(random, shape, kind) * kind.deviation * np.sqrt(0.5)


def _growth(kind: WorldKind, night: int | NDArray[np.int64]) -> Array:
    return np.where(np.asarray(night) >= kind.start, kind.noise, 1.0)


def _extras(kind: WorldKind, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return what single runs cost more: outliers, and the slower clock where each run has its own."""
    extra = np.zeros(shape)
    if kind.outliers:
        extra += np.where(random.random(shape) < kind.outliers, _badness(random, shape), 0.0)
    if kind.states == "run":
        extra += _slow_state(random, shape)
    return extra


def _slow_state(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(random.random(shape) < STATE_SHARE, np.log1p(STATE_COST), 0.0)


def _with_memory(innovations: Array, memory: float) -> Array:
    """Return AR(1) noise of variance 1 along the last axis, from innovations of variance 1."""
    noise = innovations.copy()
    for night in range(1, noise.shape[1]):
        noise[:, night] = memory * noise[:, night - 1] + np.sqrt(1 - memory**2) * innovations[:, night]
    return noise


def _badness(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.log1p(random.uniform(BAD_LEAST, BAD_MOST, shape))
