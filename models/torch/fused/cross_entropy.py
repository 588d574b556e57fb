"""Cross-entropy: a row's loss, and the gradient of its logits in their place. Two reads and one write of each logit.

    loss = log(sum_j exp(x_j - m)) - (x_t - m),    gradient_j = exp(x_j - m) / sum - (1 where j = t else 0)

x: the logits of one token, m: the largest of them, t: its target. m is subtracted before the logarithm, so that large
logits lose nothing (model/head_loss.py has the same in torch's operations). All is computed in float32.

m and the sum come from one pass: where a block has a larger logit, the sum so far shrinks by exp(old m - new m)
(Milakov and Gimelshein, 2018). One program has one row: 16 warps with 8,192 logits at a time, 16 of each thread. A row
of 128,256 logits in 16 bits is 256 KB, so the second read mostly comes from a chip's cache of level 2.
"""

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from fused.launching import QuickLaunch

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BLOCK, WARPS = 8192, 16
ROWS = 1024  # of a program with one number a row


def cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed cross-entropy of logits [rows, vocabulary], which become their gradient."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    _whole[(logits.shape[0],)](logits, targets, losses, *shape(logits), BLOCK=BLOCK, num_warps=WARPS)
    return losses.sum()


def part_cross_entropy_(logits: torch.Tensor, targets: torch.Tensor, group: "ProcessGroup") -> torch.Tensor:
    """Return `cross_entropy_` of this rank's columns of the vocabulary; a target may lie in another's."""
    part = Part(logits, targets)
    dist.all_reduce(part.largest(), dist.ReduceOp.MAX, group=group)
    dist.all_reduce(part.sums(), dist.ReduceOp.SUM, group=group)
    return part.loss_()


class Part:
    """This rank's columns of the logits. Between these calls the ranks exchange numbers of each row, in place."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        self.common_largest: torch.Tensor
        self.local_largest: torch.Tensor
        self.logits, self.targets, self.rows = logits, targets, logits.shape[0]
        self.common_largest, self.local_largest = torch.empty(2, self.rows, dtype=torch.float32, device=logits.device)
        self.row_sums = torch.empty(2, self.rows, dtype=torch.float32, device=logits.device)

    def largest(self) -> torch.Tensor:
        """Return the largest logit here of each row, [rows]."""
        self.launch(_largest_and_sums, self.targets, self.common_largest, self.local_largest, self.row_sums)
        return self.common_largest

    def sums(self) -> torch.Tensor:
        """Return each row's sum here, and the target's logit or 0, by the largest logit of all ranks: [2, rows]."""
        tensors = (self.targets, self.common_largest, self.local_largest, self.row_sums)
        _to_common_largest[(triton.cdiv(self.rows, ROWS),)](*tensors, self.rows, self.logits.shape[1], ROWS=ROWS)
        return self.row_sums

    def loss_(self) -> torch.Tensor:
        """Return the summed loss, equal on all ranks; the logits become their gradient."""
        losses = torch.empty_like(self.common_largest)
        self.launch(_part, self.targets, self.common_largest, self.row_sums, losses)
        return losses.sum()

    def launch(self, kernel: QuickLaunch, *tensors: torch.Tensor) -> None:
        kernel[(self.rows,)](self.logits, *tensors, self.rows, *shape(self.logits), BLOCK=BLOCK, num_warps=WARPS)


def shape(logits: torch.Tensor) -> tuple[int, int]:
    """Return (columns, elements from a row to the next)."""
    return logits.shape[1], logits.stride(0)


@QuickLaunch
@triton.jit
def _whole(logits, targets, losses, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)  # rows x columns may pass 2^31
    logits += row * stride
    target = tl.load(targets + row)
    target_logit = tl.load(logits + target).to(tl.float32)
    largest, total = _largest_and_sum(logits, columns, BLOCK)
    tl.store(losses + row, tl.log(total) - (target_logit - largest))
    _gradient(logits, target, largest, total, columns, BLOCK)


@QuickLaunch
@triton.jit
def _largest_and_sums(logits, targets, largest, local_largest, sums, rows, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    here = (target >= 0) & (target < columns)
    local, total = _largest_and_sum(logits, columns, BLOCK)
    tl.store(largest + row, local)
    tl.store(local_largest + row, local)
    tl.store(sums + row, total)
    tl.store(sums + rows + row, tl.load(logits + target, mask=here, other=0.0).to(tl.float32))


@QuickLaunch
@triton.jit
def _to_common_largest(targets, largest, local_largest, sums, rows, columns, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum and the target's logit less the largest one of all ranks, in place of this rank's."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < rows
    target = tl.load(targets + row, mask=is_row, other=-1)
    common = tl.load(largest + row, mask=is_row, other=0.0)
    local = tl.load(local_largest + row, mask=is_row, other=0.0)
    total = tl.load(sums + row, mask=is_row, other=0.0)
    target_logit = tl.load(sums + rows + row, mask=is_row, other=0.0)
    here = (target >= 0) & (target < columns)
    tl.store(sums + row, total * tl.exp(local - common), mask=is_row)
    tl.store(sums + rows + row, tl.where(here, target_logit - common, 0.0), mask=is_row)


@QuickLaunch
@triton.jit
def _part(logits, targets, largest, sums, losses, rows, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    total = tl.load(sums + row)
    tl.store(losses + row, tl.log(total) - tl.load(sums + rows + row))
    _gradient(logits, tl.load(targets + row), tl.load(largest + row), total, columns, BLOCK)


@triton.jit
def _largest_and_sum(logits, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A row's largest logit m, 0 where all are -inf, and the sum of exp(x - m)."""
    infinite: tl.constexpr = float("-inf")
    largest, total, shift = infinite, 0.0, 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + at, mask=at < columns, other=infinite).to(tl.float32)
        largest = tl.maximum(largest, tl.max(logit))
        new_shift = tl.where(largest == infinite, 0.0, largest)  # -inf less -inf would be NaN
        total = total * tl.exp(shift - new_shift) + tl.sum(tl.exp(logit - new_shift))
        shift = new_shift
    return shift, total


@triton.jit
def _gradient(logits, target, largest, total, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    log_total = tl.log(total)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + at, mask=at < columns, other=0.0).to(tl.float32)
        gradient = tl.exp(logit - largest - log_total) - tl.where(at == target, 1.0, 0.0)
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < columns)
