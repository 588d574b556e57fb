"""The head and its cross-entropy as one operation that never holds the logits of more than a few rows.

The gradients are computed in the forward pass, chunk by chunk, while the logits are still in cache; nothing is
computed twice. The vocabulary may be sharded over a tensor-parallel group: then each rank has the rows of the
head for its part of the vocabulary, and only three numbers a token travel (Shoeybi et al., 2019, section 3).
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn import functional

# Bytes of float32 logits in one chunk: small enough for a processor's cache, large enough to fill an accelerator.
CHUNK_BYTES = {"cpu": 2**24}
ACCELERATOR_CHUNK_BYTES = 2**28


def head_loss(x, weight, targets, scale):
    """scale times the mean cross-entropy of the logits x W^T against `targets`, as float32 [1].

    x: [batch, sequence, hidden]; weight: [vocabulary, hidden], a DTensor where the vocabulary is sharded;
    targets: [batch, sequence]. The gradient is right for a backward pass that starts from this value: a factor
    belongs into `scale`, where it costs nothing. Raises ValueError on the cpu for any other use.
    """
    group, start = None, 0
    if isinstance(weight, DTensor):
        mesh, placements = weight.device_mesh, weight.placements
        group, start = mesh.get_group(), compute_local_shape_and_global_offset(weight.shape, mesh, placements)[1][0]
        weight = weight.to_local()
    return HeadLoss.apply(x.flatten(0, 1), weight, targets.flatten() - start, float(scale), group)


class HeadLoss(torch.autograd.Function):
    """x: [tokens, hidden]; weight: [vocabulary's part, hidden]; targets: [tokens], counted from that part's start."""

    @staticmethod
    def forward(ctx, x, weight, targets, scale, group):
        cast, factor = weight.to(x.dtype), scale / x.shape[0]
        x_gradient = torch.empty_like(x)
        weight_gradient = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        total = torch.zeros(1, dtype=torch.float32, device=x.device)
        rows = max(16, CHUNK_BYTES.get(x.device.type, ACCELERATOR_CHUNK_BYTES) // (4 * weight.shape[0]))
        for part, part_targets, out in zip(x.split(rows), targets.split(rows), x_gradient.split(rows), strict=True):
            log_probability, residual = cross_entropy(functional.linear(part, cast).float(), part_targets, group)
            total -= log_probability
            residual = residual.to(x.dtype)
            out.addmm_(residual, cast, beta=0, alpha=factor)
            accumulate(weight_gradient, residual.t(), part, factor)
        if group is not None:
            dist.all_reduce(total, group=group)
        ctx.save_for_backward(x_gradient, weight_gradient)
        return total * factor

    @staticmethod
    def backward(ctx, gradient):
        if gradient.device.type == "cpu" and gradient.item() != 1.0:
            raise ValueError(f"head_loss: gradient {gradient.item()}, expected 1; give the factor as `scale`")
        return *ctx.saved_tensors, None, None, None


def cross_entropy(logits, targets, group):
    """The sum of the targets' log-probabilities that this rank holds, and softmax minus one-hot [rows, part]."""
    log_probabilities = log_softmax(logits, group)
    here = (targets >= 0) & (targets < logits.shape[1])
    index = torch.where(here, targets, 0)[:, None]
    total = torch.where(here, log_probabilities.gather(1, index)[:, 0], 0).sum()
    residual = log_probabilities.exp_()
    return total, residual.scatter_add_(1, index, -here[:, None].to(residual.dtype))


def log_softmax(logits, group):
    """Over the whole vocabulary, of which `logits` [rows, part] has this rank's columns; may overwrite them."""
    if group is None:
        return logits.log_softmax(1)
    largest = logits.amax(1, keepdim=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    total = logits.sub_(largest).exp().sum(1, keepdim=True)
    dist.all_reduce(total, group=group)
    return logits.sub_(total.log_())


def accumulate(total, left, right, factor):
    """total += factor * left @ right, in total's precision also where the factors have less."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, alpha=factor)
    else:
        total.add_(left @ right, alpha=factor)
