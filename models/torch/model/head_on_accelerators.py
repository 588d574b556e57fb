"""How the head computes on accelerators, imported there only: trainings on a processor do not rest on this file."""

from functools import cache

import torch
from model.head_loss import Way, accumulate_, of_group

# Each chunk of R rows has 6 R V h FLOPs of products, and adds one of V x h to the head's gradient. An H100 did 640e12
# FLOP/s, and moved 2.35e12 bytes/s in such sums. Of the products' time, adding 16 bits to float32 (10 V h bytes) is
# 450 / R: 86 % with 523 rows. In the product's own kernel (8 V h bytes) it is at most 360 / R: 23 % with the 1570 rows
# that these bytes are of Llama 3's 128,256 logits, 9 % with 4005 of GPT-2's.
#
# Bytes of logits in x's precision, bytes of float32 at a time, and the tensors that share these: of a whole vocabulary,
# and of a rank's part. Ranks exchange numbers in each softmax, so theirs are larger. A plan has memory for them.
WHOLE, PART = (3 * 2**27, 2**27, 2), (2**28, 2**28, 1)


def way_of(x, weight, group):
    """How much of x [tokens, hidden] a chunk takes, and by which functions."""
    vocabulary = weight.shape[0]
    chunk_bytes, softmax_bytes, tensors = WHOLE if group is None else PART
    rows = max(1, min(x.shape[0], chunk_bytes // (x.element_size() * vocabulary)))
    softmax_rows = max(1, min(rows, softmax_bytes // (4 * tensors * vocabulary)))
    added = weight.dtype == torch.float32 != x.dtype and adds_in_float32(x.device, x.dtype)
    loss = whole_cross_entropy_ if group is None else of_group(group)
    return Way(rows, softmax_rows, loss, add_in_float32_ if added else accumulate_)


def whole_cross_entropy_(logits, targets):
    """`cross_entropy_` of logits of the whole vocabulary, in fewer passes.

    torch's kernel subtracts a row's largest logit before the logarithm of the sum, so that large logits lose nothing.
    """
    index = targets[:, None]
    exact = torch.log_softmax(logits, 1, dtype=torch.float32)
    of_targets = exact.gather(1, index)
    torch.exp(exact, out=logits).scatter_(1, index, of_targets.expm1().to(logits.dtype))
    return -of_targets.sum()


def add_in_float32_(total, left, right, factor, first):
    """`accumulate_` of 16-bit matrices in one kernel, which rounds nothing to 16 bits."""
    torch.addmm(total, left, right, out_dtype=torch.float32, beta=0 if first else 1, alpha=factor, out=total)


@cache
def adds_in_float32(device, dtype):
    """Whether torch has such a kernel: for CUDA, and not in each version."""
    total, part = torch.zeros(8, 8, device=device), torch.zeros(8, 8, device=device, dtype=dtype)
    try:
        add_in_float32_(total, part.t(), part, 1.0, first=False)
    except (RuntimeError, TypeError):
        return False
    return True
