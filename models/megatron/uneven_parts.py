"""Tensors in unequal parts, gathered and summed over ranks; gloo does both with equal parts only.

Megatron needs them where tensor-parallel ranks share the tokens that expert-parallel ranks sent, as each got other
numbers. Equal parts go the usual way.
"""

import torch.distributed as dist
from megatron.core.tensor_parallel import mappings


def exchange_uneven_parts():
    """Have Megatron do both by sums over all ranks, until the process ends."""
    mappings._gather_along_first_dim = _gathered(mappings._gather_along_first_dim)
    mappings._reduce_scatter_along_first_dim = _summed(mappings._reduce_scatter_along_first_dim)


def _gathered(even):
    def gather(part, group, sizes=None, use_global_buffer=False):
        if sizes is None or group.size() == 1:
            return even(part, group, sizes, use_global_buffer)
        whole = part.new_zeros(sum(sizes), *part.shape[1:])
        whole.split(sizes)[group.rank()].copy_(part)
        dist.all_reduce(whole, group=group)
        return whole

    return gather


def _summed(even):
    def reduce_scatter(whole, group, sizes=None, use_global_buffer=False):
        if sizes is None or group.size() == 1:
            return even(whole, group, sizes, use_global_buffer)
        total = whole.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total.split(sizes)[group.rank()].clone()

    return reduce_scatter
