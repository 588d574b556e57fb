"""Tensor parallelism (Shoeybi et al., 2019) by fleet's layers: heads, MLP and vocabulary are split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from layers import Layers
from paddle.distributed.fleet.layers.mpu import mp_ops
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
    get_rng_state_tracker,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from paddle import nn
    from paddle.distributed.collective import Group

PRIVATE = "private"  # fleet's name of the random numbers that differ between the ranks


class SplitLayers(Layers):
    """Layers whose hidden state is whole, and the same, on every rank of `group`."""

    def __init__(self, group: Group) -> None:
        self.group, self.ranks = group, group.nranks
        self.loss = ParallelCrossEntropy(mp_group=group)

    def embedding(self, rows: int, hidden: int) -> nn.Layer:
        return VocabParallelEmbedding(rows, hidden, mp_group=self.group)

    def columns(self, inputs: int, outputs: int, bias: bool) -> nn.Layer:
        return ColumnParallelLinear(inputs, outputs, has_bias=bias, gather_output=False, mp_group=self.group)

    def rows(self, inputs: int, outputs: int, bias: bool) -> nn.Layer:
        return RowParallelLinear(inputs, outputs, has_bias=bias, input_is_parallel=True, mp_group=self.group)

    def tied_logits(self, x: paddle.Tensor, weight: paddle.Tensor) -> paddle.Tensor:
        whole = mp_ops._c_identity(x, group=self.group)  # its gradient is summed over the ranks
        # [batch, sequence, vocabulary / ranks]
        return paddle.matmul(whole, weight, transpose_y=True)

    def cross_entropy(self, logits: paddle.Tensor, targets: paddle.Tensor) -> paddle.Tensor:
        return self.loss(logits.astype("float32"), targets)

    def private_randomness(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = get_rng_state_tracker().rng_state(PRIVATE)
        return context


def seed_private(seed: int) -> None:
    """Start the random numbers anew that differ between the ranks."""
    tracker = get_rng_state_tracker()
    tracker.reset()
    tracker.add(PRIVATE, seed)
