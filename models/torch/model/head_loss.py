"""The head and its cross-entropy as one operation that never holds the logits of more than a few rows.

The gradients are computed in the forward pass, chunk by chunk, while the logits are still in cache; nothing is
computed twice. The vocabulary may be sharded over a tensor-parallel group: then each rank has the rows of the
head for its part of the vocabulary, and only three numbers a token travel (Shoeybi et al., 2019, section 3).

Order of a step: `HeadLoss.forward` takes chunks of rows; for each it computes logits, turns them in place into their
own gradient (`cross_entropy_`), and adds what follows for x and for the weight. `HeadLoss.backward` hands both out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from model.casts import CastLayer
from model.onednn import applies, product
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn import functional

if TYPE_CHECKING:
    from model.tied import TiedGradient

# Rows of one product: below about 512 it is slow, as each chunk reads and writes the head's whole gradient. The
# float32 softmax between the products takes fewer rows at a time, which a processor's cache holds.
# (bytes of float32 logits for a product, for a softmax); measured in docs/decisions/torch-parallelism.md
CPU_BYTES = (2**24, 2**23)
MIN_ROWS = 512  # of one product
PRECISION_ROWS = 8192  # of the head's gradient, changed from the products' precision to its own at a time


class Head(CastLayer):
    """The head of a model whose embedding is not tied to it. weight: [vocabulary, hidden]."""

    def __init__(self, hidden_size: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, hidden_size))

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        return head_scores(self, x, targets, scale)


class EmbeddingHead(CastLayer, nn.Embedding):
    """An embedding that is the head too; only the head takes its weight in x's precision."""


def head_scores(
    layer: Head | EmbeddingHead,
    x: torch.Tensor,
    targets: torch.Tensor | None,
    scale: float,
    tied: TiedGradient | None = None,
) -> torch.Tensor:
    """Return the logits of x without targets, else their `head_loss`. layer: with the head's weight."""
    if targets is None:
        return functional.linear(x, layer.cast("weight", x.dtype))  # [batch, sequence, vocabulary]
    return head_loss(x, layer.weight, targets, scale, tied, layer.cast_without_gradient("weight", x.dtype))


def head_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    tied: TiedGradient | None = None,
    cast: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return scale times the mean cross-entropy of the logits x W^T against `targets`, as float32 [1].

    x: [batch, sequence, hidden]; weight: [vocabulary, hidden], a DTensor where the vocabulary is sharded;
    targets: [batch, sequence]. The gradient is right for a backward pass that starts from this value: a factor
    belongs into `scale`, where it costs nothing. Raises ValueError on the cpu for any other use.
    tied: the TiedGradient that is given the weight's gradient in place of autograd, or None. cast: the weight in x's
    precision, if there is one already.
    """
    group: dist.ProcessGroup | None
    group, start = None, 0
    if isinstance(weight, DTensor):
        mesh, placements = weight.device_mesh, weight.placements
        group, start = mesh.get_group(), compute_local_shape_and_global_offset(weight.shape, mesh, placements)[1][0]
        weight, cast = weight.to_local(), None if cast is None else cast.to_local()  # type: ignore[attr-defined]
    weight = weight if tied is None else weight.detach()
    return HeadLoss.apply(  # type: ignore[no-any-return]
        x.flatten(0, 1), weight, targets.flatten() - start, float(scale), group, tied, cast
    )


class HeadLoss(torch.autograd.Function):
    """x: [tokens, hidden]; weight: [vocabulary's part, hidden]; targets: [tokens], counted from that part's start."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        scale: float,
        group: dist.ProcessGroup | None,
        tied: TiedGradient | None,
        cast: torch.Tensor | None,
    ) -> torch.Tensor:
        cast, factor = weight.to(x.dtype) if cast is None else cast, scale / x.shape[0]
        rows, softmax_rows, cross_entropy, accumulate = way_of(x, weight, group)
        uses_onednn = applies(x, weight)
        products: Any = None if uses_onednn else torch.empty(rows, weight.shape[0], dtype=x.dtype, device=x.device)
        x_gradient, weight_gradient = torch.empty_like(x), torch.empty_like(weight)
        total = torch.zeros(1, dtype=torch.float32, device=x.device)
        for start in range(0, x.shape[0], rows):
            part, part_targets = x[start : start + rows], targets[start : start + rows]  # [rows, hidden], [rows]
            # [rows, vocabulary's part]
            logits = product(part, cast) if uses_onednn else torch.mm(part, cast.t(), out=products[: part.shape[0]])
            slices = zip(logits.split(softmax_rows), part_targets.split(softmax_rows), strict=True)
            for softmax_logits, softmax_targets in slices:
                total += cross_entropy(softmax_logits, softmax_targets)
            if uses_onednn:
                torch.mul(product(logits, cast.t()), factor, out=x_gradient[start : start + rows])
            else:
                x_gradient[start : start + rows].addmm_(logits, cast, beta=0, alpha=factor)
            accumulate(weight_gradient, logits.t(), part, factor, first=start == 0)
        ctx.gradients, ctx.tied = (x_gradient, weight_gradient), tied
        return total * factor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if gradient.device.type == "cpu" and gradient.item() != 1.0:
            raise ValueError(f"head_loss: gradient {gradient.item()}, expected 1; give the factor as `scale`")
        # no reference to them is kept: autograd may then use them in place
        (x_gradient, weight_gradient), ctx.gradients = ctx.gradients, None
        if ctx.tied is not None:
            ctx.tied.give(weight_gradient)
            weight_gradient = None
        return x_gradient, weight_gradient, None, None, None, None, None


class Way(NamedTuple):
    """How the head computes: the rows of one product and of one softmax, and what computes loss and gradient."""

    rows: int
    softmax_rows: int
    cross_entropy: Callable  # type: ignore[type-arg]  # as `cross_entropy_`, of its group
    accumulate: Callable  # type: ignore[type-arg]  # as `accumulate_`


def way_of(x: torch.Tensor, weight: torch.Tensor, group: dist.ProcessGroup | None) -> Way:
    """Return how much of x [tokens, hidden] a chunk takes, and by which functions."""
    if not on_processor(x):
        from model import head_on_accelerators  # here: what runs on a processor does not rest on it

        return head_on_accelerators.way_of(x, weight, group)
    product_bytes, softmax_bytes = CPU_BYTES
    rows = min(x.shape[0], max(MIN_ROWS, product_bytes // (4 * weight.shape[0])))
    softmax_rows = max(1, min(rows, softmax_bytes // (4 * weight.shape[0])))
    return Way(rows, softmax_rows, cross_entropy_for_group(group), accumulate_)


def on_processor(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def cross_entropy_for_group(group: dist.ProcessGroup | None) -> partial[torch.Tensor]:
    return partial(cross_entropy_, group=group)


def cross_entropy_(logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the summed cross-entropy; `logits` [rows, vocabulary's part] become its gradient, softmax minus one-hot.

    Computed in float32. With a group the logits are columns of the whole vocabulary's, and targets may lie in
    another rank's part.
    """
    logits_float32 = logits.float()
    # [rows, 1]
    largest = reduce(logits_float32.amax(1, keepdim=True), dist.ReduceOp.MAX, group)
    logits_float32.sub_(largest)
    is_local = ((targets >= 0) & (targets < logits_float32.shape[1]))[:, None]
    index = targets[:, None].where(is_local, 0)
    target_logits = logits_float32.gather(1, index) * is_local
    # [2, rows, 1]
    sums = reduce(torch.stack((logits_float32.exp_().sum(1, keepdim=True), target_logits)), dist.ReduceOp.SUM, group)
    logits_float32.mul_(sums[0].reciprocal()).scatter_add_(1, index, -is_local.to(logits_float32.dtype))
    if logits_float32 is not logits:
        logits.copy_(logits_float32)
    return (sums[0].log() - sums[1]).sum()


def reduce(tensor: torch.Tensor, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Reduce `tensor` in place over the group, if there is one, and return it."""
    if group is not None:
        dist.all_reduce(tensor, operation, group=group)
    return tensor


def accumulate_(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, factor: float, first: bool) -> None:
    """Add factor * left @ right to total, in its precision also where the factors have less; `first`: total = ..."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=0 if first else 1, alpha=factor)
        return
    for total_rows, left_rows in zip(total.split(PRECISION_ROWS), left.split(PRECISION_ROWS), strict=True):
        product = left_rows.new_empty(total_rows.shape).addmm_(left_rows, right, beta=0, alpha=factor)
        total_rows.copy_(product) if first else total_rows.add_(product)
