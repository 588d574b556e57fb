"""Where tensors lie: a placement of OneFlow for each pipeline stage, and how tensors are split over its processes.

Every process runs the whole program; OneFlow leaves out what is placed on other processes (Yuan et al., 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import oneflow as flow
from levelfield.worker import coordinates
from oneflow.nn import Parameter

if TYPE_CHECKING:
    from levelfield.worker.job import Job
    from numpy.typing import NDArray

REPLICATED = flow.sbp.broadcast  # whole on every process: how a tensor lies, or SBP, in OneFlow's terms


class Stage:
    """The processes of one pipeline stage, a grid [data, tensor]. A dimension of one process is left out of it."""

    def __init__(self, job: Job, index: int) -> None:
        layout = job.layout
        size = layout.data * layout.tensor
        self.data, self.tensor = layout.data, layout.tensor
        shape = [ranks for ranks in (self.data, self.tensor) if ranks > 1] or [1]
        ranks = np.arange(index * size, (index + 1) * size).reshape(shape)
        self.placement = flow.placement(job.device, ranks.tolist())
        self.is_local = job.rank in ranks
        self.rank = coordinates(job).tensor
        # random numbers for what is split over the tensor-parallel processes: OneFlow's own are equal on all of them
        self.private_generator = flow.Generator(job.device) if self.tensor > 1 else None

    def sbp(self, data: flow.sbp.sbp, tensor: flow.sbp.sbp) -> list[flow.sbp.sbp]:
        """Return OneFlow's SBP of a tensor, from its SBP over the data-parallel and over the tensor-parallel ones."""
        return [sbp for sbp, ranks in ((data, self.data), (tensor, self.tensor)) if ranks > 1] or [REPLICATED]

    def parameter(self, shape: tuple[int, ...], axis: int | None = None) -> Parameter:
        """Make a parameter, not yet filled, that is split along `axis` over the tensor-parallel processes."""
        sbp = REPLICATED if axis is None else flow.sbp.split(axis)
        values = flow.empty(*shape, placement=self.placement, sbp=self.sbp(REPLICATED, sbp))
        return Parameter(values)

    def constant(self, array: NDArray[np.generic]) -> flow.Tensor:
        """Return a tensor that is the same on every process."""
        return flow.tensor(array, placement=self.placement, sbp=self.sbp(REPLICATED, REPLICATED))

    def batch(self, array: NDArray[np.int64]) -> flow.Tensor:
        """Return the whole batch, of which each data-parallel process brings its `array`."""
        local = flow.tensor(array)
        return local.to_global(placement=self.placement, sbp=self.sbp(flow.sbp.split(0), REPLICATED))

    def move_here(self, x: flow.Tensor) -> flow.Tensor:
        """Return x on this stage, split as it is, from whichever stage it lies on; its gradient goes back there."""
        if x.placement == self.placement:
            return x
        return x.to_global(placement=self.placement, sbp=x.sbp)

    def make_whole(self, x: flow.Tensor) -> flow.Tensor:
        """Return x [batch, ...] whole on every tensor-parallel process, from parts or summands; so is its gradient."""
        if self.tensor == 1:
            return x
        sbp = self.sbp(flow.sbp.split(0), REPLICATED)
        return x.to_global(sbp=sbp, grad_sbp=sbp)

    def replicated_sum(self, x: flow.Tensor) -> flow.Tensor:
        """Return a number, whole on every process of this stage from its summands; so is its gradient."""
        sbp = self.sbp(REPLICATED, REPLICATED)
        return x.to_global(sbp=sbp, grad_sbp=sbp)
