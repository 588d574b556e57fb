"""Tensor parallelism (Shoeybi et al., 2019) by fleet's layers: heads, MLP and vocabulary are split over the ranks."""

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

PRIVATE = "private"  # fleet's name of the random numbers that differ between the ranks


class SplitLayers(Layers):
    """Layers whose hidden state is whole, and the same, on every rank of `group`."""

    def __init__(self, group):
        self.group, self.ranks = group, group.nranks
        self.loss = ParallelCrossEntropy(mp_group=group)

    def embedding(self, rows, hidden):
        return VocabParallelEmbedding(rows, hidden, mp_group=self.group)

    def columns(self, inputs, outputs, bias):
        return ColumnParallelLinear(inputs, outputs, has_bias=bias, gather_output=False, mp_group=self.group)

    def rows(self, inputs, outputs, bias):
        return RowParallelLinear(inputs, outputs, has_bias=bias, input_is_parallel=True, mp_group=self.group)

    def tied_logits(self, x, weight):
        whole = mp_ops._c_identity(x, group=self.group)  # its gradient is summed over the ranks
        return paddle.matmul(whole, weight, transpose_y=True)

    def cross_entropy(self, logits, targets):
        return self.loss(logits.astype("float32"), targets)

    def private_randomness(self):
        return get_rng_state_tracker().rng_state(PRIVATE)


def seed_private(seed):
    """Start this rank's own random numbers anew."""
    tracker = get_rng_state_tracker()
    tracker.reset()
    tracker.add(PRIVATE, seed)
