"""Initial weights, the same in every layout: a parameter's values depend on (seed, canonical name, index)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import numpy as np

from .architecture import Model
from .hashing import key_of
from .job import Job
from .normal import fill_normal
from .parameters import Parameters, list_parameters
from .slices import Slices, bounds_of, extent, row_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Initializer:
    """Computes the initial values of any slice of any parameter. The cost is proportional to the slice."""

    def __init__(self, job: Job) -> None:
        self._seed = job.training.seed
        self._positions = job.training.sequence_length
        self._known = self.parameters(job.model)

    def parameters(self, model: Model) -> Parameters:
        """Return every parameter of `model`: ParameterSpec by canonical name, in the order of the forward pass."""
        return list_parameters(model, self._positions)

    def array(
        self,
        name: str,
        shape: Sequence[int],
        slices: Slices = None,
        std: float | None = None,
        fill: float | None = None,
    ) -> NDArray[np.float32]:
        """Return the slice `slices` of parameter `name`, whose whole shape is `shape`, as a new float32 array.

        slices: a slice or None for each dimension. std: N(0, std) values; fill: a constant; neither: the values
        that `parameters` gives. Raises ValueError for both, or for a shape or slices that do not fit.
        """
        std, fill = self._values_of(name, tuple(shape), std, fill)
        bounds = bounds_of(shape, slices)
        if fill is not None:
            return np.full(extent(bounds), fill, dtype=np.float32)
        return normal_array(key_of("weights", self._seed, name), shape, slices, float(std or 0.0))

    def _values_of(
        self, name: str, shape: tuple[int, ...], std: float | None, fill: float | None
    ) -> tuple[float | None, float | None]:
        if std is not None and fill is not None:
            raise ValueError(f"{name}: found both std {std} and fill {fill}, expected one")
        if std is not None or fill is not None:
            return std, fill
        spec = self._known.get(name)
        if spec is None:
            raise ValueError(f"{name}: not a parameter of this model; give std or fill")
        if spec.shape != shape:
            raise ValueError(f"{name}: found shape {shape}, expected {spec.shape}")
        return spec.std, spec.fill


def normal_array(key: int, shape: Sequence[int], slices: Slices, std: float) -> NDArray[np.float32]:
    """Return a slice of the N(0, std) array that `key` and `shape` define."""
    whole = tuple(shape) or (1,)
    bounds = bounds_of(whole, slices if len(shape) else None)
    rows = row_numbers(whole, bounds)
    out = np.empty((len(rows), bounds[-1][1] - bounds[-1][0]), dtype=np.float32)
    fill_normal(out, key, rows, bounds[-1][0], std)
    return out.reshape(extent(bounds) if len(shape) else ())
