"""The rotary frequencies of a model whose positions are scaled, one function for every framework.

A rotary position embedding (Su et al., 2021) turns pair i of a head of width D by position x base^(-2 i / D). A scaling
changes these frequencies, so that the model takes longer sequences than those of its first training. Frameworks compute
the unscaled frequencies themselves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .architecture import RopeScaling
from .faults import JobError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def scaled_frequencies(scaling: RopeScaling, base: float, size: int) -> NDArray[np.float32]:
    """Return the angle for each position of the size / 2 pairs of a head, in radians; computed in float64."""
    plain = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    stretched = plain / scaling.factor
    shares = {"linear": _linear_share, "llama3": _llama3_share, "yarn": _yarn_share}
    share = shares[scaling.kind](scaling, base, plain)
    frequencies: NDArray[np.float32] = (share * plain + (1 - share) * stretched).astype(np.float32)
    return frequencies


def rotary_magnitude(scaling: RopeScaling) -> float:
    """Return the factor of cosines and sines: 1 except for yarn, which compensates the flatter softmax with it."""
    if scaling.kind != "yarn":
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1 if scaling.magnitude is None else float(scaling.magnitude)


def _linear_share(_scaling: RopeScaling, _base: float, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the unscaled share of each frequency: none, as positions are divided by the factor (Chen et al., 2023)."""
    return np.zeros_like(plain)


def _llama3_share(scaling: RopeScaling, _base: float, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Short wavelengths are kept and long ones divided (Grattafiori et al., 2024, and its reference code)."""
    low, high = _key(scaling, "low_factor"), _key(scaling, "high_factor")
    rotations = _key(scaling, "original_length") * plain / (2 * math.pi)  # in a sequence of the first training
    share: NDArray[np.float64] = np.clip((rotations - low) / (high - low), 0, 1)
    return share


def _yarn_share(scaling: RopeScaling, base: float, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same, linear in the pair's number between beta_fast and beta_slow rotations (Peng et al., 2023, and its
    reference code, which rounds both ends outwards)."""
    size, length = 2 * len(plain), _key(scaling, "original_length")

    def pair_of(rotations: float) -> float:
        return size * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair_of(_key(scaling, "beta_fast"))), 0)
    last = min(math.ceil(pair_of(_key(scaling, "beta_slow"))), size - 1)
    width = last - first if last != first else 0.001  # as in the reference code
    return 1 - np.clip((np.arange(len(plain)) - first) / width, 0, 1)


def _key(scaling: RopeScaling, name: str) -> float:
    """Return a number that this kind of scaling needs. Raises JobError where the job has none."""
    value: float | None = getattr(scaling, name)
    if value is None:
        raise JobError(f"rope_scaling {scaling.kind}: key '{name}': missing; it is required")
    return value
