"""Tensors in unequal parts, gathered and summed over ranks; gloo does both with equal parts only.

Megatron needs them where tensor-parallel ranks share the tokens that expert-parallel ranks sent, as each got other
numbers. Equal parts go the usual way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core.tensor_parallel import mappings

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def exchange_uneven_parts() -> None:
    """Have Megatron do both by sums over all ranks, until the process ends."""
    mappings._gather_along_first_dim = _make_gather(mappings._gather_along_first_dim)
    mappings._reduce_scatter_along_first_dim = _make_reduce_scatter(mappings._reduce_scatter_along_first_dim)


def _make_gather(even: Callable[..., Any]) -> Callable[..., Any]:
    def gather(
        part: torch.Tensor, group: dist.ProcessGroup, sizes: list[int] | None = None, use_global_buffer: bool = False
    ) -> Any:
        if sizes is None or group.size() == 1:
            return even(part, group, sizes, use_global_buffer)
        whole = part.new_zeros(sum(sizes), *part.shape[1:])
        whole.split(sizes)[group.rank()].copy_(part)
        dist.all_reduce(whole, group=group)
        return whole

    return gather


def _make_reduce_scatter(even: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_scatter(
        whole: torch.Tensor, group: dist.ProcessGroup, sizes: list[int] | None = None, use_global_buffer: bool = False
    ) -> Any:
        if sizes is None or group.size() == 1:
            return even(whole, group, sizes, use_global_buffer)
        total = whole.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total.split(sizes)[group.rank()].clone()

    return reduce_scatter
