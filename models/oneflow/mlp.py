"""The MLPs of GPT and Llama: GELU (Hendrycks and Gimpel, 2016) and SwiGLU (Shazeer, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layers import Columns, Rows
from oneflow import nn
from oneflow.nn import functional

if TYPE_CHECKING:
    import oneflow as flow
    from levelfield.worker.architecture import Model
    from stages import Stage


class GeluMLP(nn.Module):
    """GPT's: down(gelu(up(x))). `gelu` is the erf form, `gelu_tanh` the tanh one."""

    def __init__(self, stage: Stage, model: Model) -> None:
        super().__init__()
        self.up = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = Rows(stage, model.ffn_hidden_size, model.hidden_size, model.bias)
        self.approximation = {"gelu": "none", "gelu_tanh": "tanh"}[model.activation]
        self.stage = stage

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.down(functional.gelu(self.up(self.stage.make_whole(x)), approximate=self.approximation))


class SwigluMLP(nn.Module):
    """Llama's: down(silu(gate(x)) * up(x))."""

    def __init__(self, stage: Stage, model: Model) -> None:
        super().__init__()
        self.gate = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.up = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = Rows(stage, model.ffn_hidden_size, model.hidden_size, model.bias)
        self.stage = stage

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        x = self.stage.make_whole(x)
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def mlp(stage: Stage, model: Model) -> nn.Module:
    return (SwigluMLP if model.activation == "swiglu" else GeluMLP)(stage, model)
