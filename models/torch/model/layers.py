"""The layers of a decoder. Parameters are float32; the activation's dtype decides what is computed in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from levelfield.worker import part
from model.casts import CastLayer
from model.kernels import chosen
from model.onednn import OneDnnLinear, applies
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence  # noqa: F401  (one is in a type comment)
    from types import ModuleType

    from levelfield.worker.architecture import Model
    from model.casts import StepLinear

GATES = {
    "swiglu": functional.silu,
    "geglu_tanh": partial(functional.gelu, approximate="tanh"),
}  # type: dict[str, Callable[[torch.Tensor], torch.Tensor]]


class Linear(CastLayer, nn.Linear):
    """y = x W^T + b, in x's dtype. W: [out, in].

    step_linear: during a step the StepLinear of this layer, which may compute layers after it, too.
    """

    step_linear = None  # type: StepLinear | None

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, head_size: int | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return [..., out] of x [..., in]. head_size: for StepLinear.product, where a step has one."""
        if self.step_linear is not None:
            return self.step_linear.product(x, head_size)
        if applies(x, self.weight):
            return OneDnnLinear.apply(x, self.weight, self.bias)  # type: ignore[no-any-return]
        return functional.linear(x, self.cast("weight", x.dtype), self.cast("bias", x.dtype))


def heads_for_one_input(x: torch.Tensor, layers: Sequence[nn.Module], size: int) -> Sequence[torch.Tensor]:
    """Return the output of each of `layers`, [..., n, size]: by one product where their copies adjoin in a step.

    Under tensor parallelism n is this rank's share.
    """
    apart = joint_of(layers) is None
    return [layer(x).unflatten(-1, (-1, size)) for layer in layers] if apart else layers[0](x, size)


def joint_of(layers: Sequence[nn.Module]) -> StepLinear | None:
    """Return the StepLinear by which the first of `layers` computes the outputs of all.

    None where each computes its own.
    """
    linear = getattr(layers[0], "step_linear", None)  # another library's layer has none
    return linear if linear is not None and len(linear.rows) == len(layers) > 1 else None


class LayerNorm(CastLayer, nn.LayerNorm):
    """Layer normalisation (Ba et al., 2016) over the last dimension."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, *branch: torch.Tensor, kernel: ModuleType | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x. kernel: fused/add_norm.py, which returns (x + branch, its norm), or (x, its norm)
        without a branch."""
        weight, bias = self.cast("weight", x.dtype), self.cast("bias", x.dtype)
        if kernel is not None:
            return kernel.add_norm(  # type: ignore[no-any-return]
                x, *branch, weight=weight, bias=bias, eps=self.eps
            )
        return functional.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(CastLayer, nn.RMSNorm):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, *branch: torch.Tensor, kernel: ModuleType | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of x. kernel: as of LayerNorm."""
        weight = self.cast("weight", x.dtype)
        if kernel is not None:
            return kernel.add_norm(x, *branch, weight=weight, eps=self.eps)  # type: ignore[no-any-return]
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class Positions(nn.Module):
    """Learned position embeddings: weight [sequence_length, hidden]."""

    def __init__(self, length: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, hidden_size))

    def forward(self, length: int) -> torch.Tensor:
        return self.weight if length == self.weight.shape[0] else self.weight[:length]


def norm(model: Model) -> nn.Module:
    """Return the model's normalisation layer."""
    kinds: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
    options = {} if part(model, "norm_bias") else {"bias": False}  # a LayerNorm's
    return kinds[model.norm](model.hidden_size, eps=model.norm_eps, **options)


def gated(activation: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return the activation of `gate`, by its name in GATES, times `up`."""
    kernel = chosen("swiglu")
    return GATES[activation](gate) * up if kernel is None else kernel.gated(activation, gate, up)


def dropout(x: torch.Tensor, probability: float) -> torch.Tensor:
    """Apply dropout (Srivastava et al., 2014) that keeps a mask of one byte an element for the backward pass."""
    return torch.native_dropout(x, probability, True)[0] if probability else x
