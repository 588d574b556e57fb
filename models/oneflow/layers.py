"""The layers of a decoder, on global tensors. Weights are [out, in]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import oneflow as flow
from oneflow import nn
from oneflow.nn import functional
from precision import cast_like

if TYPE_CHECKING:
    from levelfield.worker.architecture import Model
    from stages import Stage


class Columns(nn.Module):
    """y = x W^T + b, each tensor-parallel process with its part of the outputs; x is whole on all of them."""

    def __init__(self, stage: Stage, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = stage.parameter((outputs, inputs), axis=0)
        self.bias = stage.parameter((outputs,), axis=0) if bias else None

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        y = flow.matmul(x, self.weight.T)
        return y if self.bias is None else y + cast_like(self.bias, y)


class Rows(nn.Module):
    """y = x W^T + b, each tensor-parallel process with its part of the inputs; the sum y is whole on all of them."""

    def __init__(self, stage: Stage, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.stage = stage
        self.weight = stage.parameter((outputs, inputs), axis=1)
        self.bias = stage.parameter((outputs,)) if bias else None

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        y = self.stage.make_whole(flow.matmul(x, self.weight.T))
        return y if self.bias is None else y + cast_like(self.bias, y)


class Embedding(nn.Module):
    """Rows of a table [rows, hidden], which is split by rows over the tensor-parallel processes."""

    def __init__(self, stage: Stage, rows: int, hidden: int) -> None:
        super().__init__()
        self.stage = stage
        self.weight = stage.parameter((rows, hidden), axis=0)

    def forward(self, tokens: flow.Tensor) -> flow.Tensor:
        return self.stage.make_whole(flow._C.gather(self.weight, tokens, 0))


class Positions(nn.Module):
    """Learned position embeddings: weight [sequence_length, hidden]."""

    def __init__(self, stage: Stage, length: int, hidden: int) -> None:
        super().__init__()
        self.weight = stage.parameter((length, hidden))


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al., 2016) over the last dimension.

    On a processor by its parts: OneFlow's own kernel took two and a half times as long, forward and backward.
    """

    def __init__(self, stage: Stage, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.bias, self.epsilon = stage.parameter((hidden,)), stage.parameter((hidden,)), epsilon

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        if x.placement.type != "cpu":
            return functional.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.epsilon)
        return normalise(x - x.mean(-1, keepdim=True), self.epsilon) * self.weight + self.bias


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension.

    OneFlow's own has a kernel for accelerators only.
    """

    def __init__(self, stage: Stage, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = stage.parameter((hidden,)), epsilon

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return normalise(x, self.epsilon) * self.weight


def normalise(x: flow.Tensor, epsilon: float) -> flow.Tensor:
    """Return x over the root of its mean square."""
    return x * flow.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def norm(stage: Stage, model: Model) -> nn.Module:
    """Make the model's normalisation layer."""
    kinds = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
    return kinds[model.norm](stage, model.hidden_size, model.norm_eps)


def dropout(x: flow.Tensor, probability: float, generator: flow.Generator | None = None) -> flow.Tensor:
    """Apply dropout (Srivastava et al., 2014) by the random numbers of `generator`, or the common ones."""
    return functional.dropout(x, probability, generator=generator) if probability else x
