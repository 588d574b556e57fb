"""How the head computes on accelerators, imported there only: trainings on a processor do not rest on this file."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from model.head_loss import Way, accumulate_, cross_entropy_for_group
from model.kernels import chosen

if TYPE_CHECKING:
    import torch.distributed as dist

# Each chunk of R rows has 6 R V h FLOPs of products, and adds one of V x h to the head's gradient. An H100 did 640e12
# FLOP/s, and moved 2.35e12 bytes/s in such sums. Of the products' time, adding 16 bits to float32 (10 V h bytes) is
# 450 / R: 86 % with 523 rows. In the product's own kernel (8 V h bytes) it is at most 360 / R: 18 % with the 2,048 rows
# that KERNEL_BYTES hold of Llama 3's 128,256 logits, 7 % with 5,248 of GPT-2's.
#
# Bytes of logits in x's precision: all that a plan has memory for, where a kernel turns them into their gradient.
# torch's operations need some of them for float32: bytes of logits, bytes of float32 at a time, and the tensors that
# share these, of a whole vocabulary and of a rank's part. Ranks exchange numbers in each softmax, so theirs are larger.
KERNEL_BYTES = 2**29
WHOLE, PART = (3 * 2**27, 2**27, 2), (2**28, 2**28, 1)
TILE = 128  # rows; a product computes as many at a time, and takes as long with fewer


def way_of(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None) -> Way:
    """Return how much of x [tokens, hidden] a chunk takes, and by which functions."""
    adds_in_product = weight.dtype == torch.float32 != x.dtype and adds_in_float32(x.device, x.dtype)
    accumulate, kernel = add_in_float32_ if adds_in_product else accumulate_, chosen("cross_entropy")
    row_bytes, tokens = x.element_size() * weight.shape[0], x.shape[0]
    if kernel is None:
        chunk_bytes, softmax_bytes, tensors = WHOLE if group is None else PART
        rows = equal_chunks(tokens, chunk_bytes // row_bytes)
        softmax_rows = max(1, min(rows, softmax_bytes // (4 * tensors * weight.shape[0])))
        loss = whole_cross_entropy_ if group is None else cross_entropy_for_group(group)
        return Way(rows, softmax_rows, loss, accumulate)
    rows = equal_chunks(tokens, KERNEL_BYTES // row_bytes)
    loss = kernel.cross_entropy_ if group is None else partial(kernel.part_cross_entropy_, group=group)
    return Way(rows, rows, loss, accumulate)


def equal_chunks(tokens: int, max_rows: int) -> int:
    """Return the rows of one chunk, at most `max_rows`.

    They are whole tiles where `max_rows` is a tile or more, and as few chunks as that allows.
    """
    if tokens <= max_rows:
        return tokens
    tiles = max_rows // TILE
    if tiles == 0:
        return max(1, max_rows)
    chunks = math.ceil(tokens / (TILE * tiles))
    return TILE * math.ceil(tokens / (TILE * chunks))


def whole_cross_entropy_(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return `cross_entropy_` of logits of the whole vocabulary [rows, vocabulary], in fewer passes.

    torch's kernel subtracts a row's largest logit before the logarithm of the sum, so that large logits lose nothing.
    """
    index = targets[:, None]
    log_probabilities = torch.log_softmax(logits, 1, dtype=torch.float32)
    target_logs = log_probabilities.gather(1, index)  # [rows, 1]
    torch.exp(log_probabilities, out=logits).scatter_(1, index, target_logs.expm1().to(logits.dtype))
    return -target_logs.sum()


def add_in_float32_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, factor: float, first: bool) -> None:
    """Do `accumulate_` of 16-bit matrices in one kernel, which rounds nothing to 16 bits."""
    torch.addmm(total, left, right, out_dtype=torch.float32, beta=0 if first else 1, alpha=factor, out=total)


@cache
def adds_in_float32(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch has such a kernel: for CUDA, and not in each version."""
    total, part = torch.zeros(8, 8, device=device), torch.zeros(8, 8, device=device, dtype=dtype)
    try:
        add_in_float32_(total, part.t(), part, 1.0, first=False)
    except (RuntimeError, TypeError):
        return False
    return True
