"""AdamW, with the whole layout's gradient measured and clipped right before it is used.

Fleet's optimizers sum gradients over data-parallel ranks inside their step; what they hand to the clipping object are
finished gradients of the parameters that this rank updates. So the measuring is there, in every layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import _C_ops
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import AdamW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from levelfield.worker.job import Training
    from parameters import LocalParameter

    Pairs = Sequence[tuple[paddle.Tensor, paddle.Tensor]]  # of parameters and their gradients

SLICE = "slice@"  # what sharding stage 3 puts before a parameter's name to name this rank's slice of it


class GlobalNorm(ClipGradBase):
    """Clips by the norm of the whole gradient (Pascanu et al., 2013), over all ranks of any layout.

    Paddle's own clipping counts a tied embedding twice in a pipeline, and keeps the norm to itself.
    replicas: on how many ranks each parameter is updated, by Paddle's name of it. After a step `norm` is its norm, a
    tensor; before, and after a skipped step, it is None. `watch` is called with each step's gradients before clipping.
    """

    watch: Callable[[Pairs, paddle.Tensor], None]
    norm: paddle.Tensor | None

    def __init__(self, limit: float, replicas: Mapping[str, int]) -> None:
        super().__init__()
        self.limit, self.replicas = limit, replicas
        self.watch = lambda pairs, squares: None
        self.forget_norm()

    def forget_norm(self) -> None:
        self.norm = None

    def _dygraph_clip(self, params_grads: Sequence[tuple[paddle.Tensor, paddle.Tensor | None]]) -> Pairs:
        pairs = [(parameter, gradient) for parameter, gradient in params_grads if gradient is not None]
        squares = self.shares(pairs)
        self.watch(pairs, squares)
        total = squares.sum()
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
        self.norm = total.sqrt()
        factor = (self.limit / paddle.clip(self.norm, min=self.limit)).astype("float32")
        for parameter, gradient in pairs:
            gradient.multiply_(factor)
            parameter._reset_grad_inplace_version(True)
        return pairs

    def shares(self, pairs: Pairs) -> paddle.Tensor:
        """Return this rank's shares of the squared norms: the shares of all ranks add up to the whole gradient's."""
        squares = paddle.stack([_C_ops.squared_l2_norm(gradient).reshape([]) for _, gradient in pairs])
        counts = np.array([self.replicas[parameter.name] for parameter, _ in pairs], dtype=np.float64)
        return squares.astype("float64") / paddle.to_tensor(counts)


def adamw(parts: Sequence[LocalParameter], training: Training, clip: GlobalNorm) -> AdamW:
    """Make decoupled AdamW (Loshchilov and Hutter, 2019); decay on parameters of two or more dimensions only."""
    decayed_names = {part.parameter.name for part in parts if len(part.shape) >= 2}
    settings = training.optimizer
    return AdamW(
        learning_rate=0.0,
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.eps,
        parameters=[part.parameter for part in parts],
        weight_decay=settings.weight_decay,
        apply_decay_param_fun=lambda name: name.removeprefix(SLICE) in decayed_names,
        grad_clip=clip,
    )
