"""The MLPs of GPT and Llama: GELU (Hendrycks and Gimpel, 2016) and SwiGLU (Shazeer, 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddle import nn
from paddle.nn import functional

if TYPE_CHECKING:
    import paddle
    from layers import Layers
    from levelfield.worker.architecture import Model


class GeluMLP(nn.Layer):
    """GPT's: down(gelu(up(x))). `gelu` is the erf form, `gelu_tanh` the tanh one."""

    def __init__(self, model: Model, layers: Layers) -> None:
        super().__init__()
        self.up = layers.columns(model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = layers.rows(model.ffn_hidden_size, model.hidden_size, model.bias)
        self.approximate = {"gelu": False, "gelu_tanh": True}[model.activation]

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.approximate))


class SwigluMLP(nn.Layer):
    """Llama's: down(silu(gate(x)) * up(x))."""

    def __init__(self, model: Model, layers: Layers) -> None:
        super().__init__()
        self.gate = layers.columns(model.hidden_size, model.ffn_hidden_size, model.bias)
        self.up = layers.columns(model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = layers.rows(model.ffn_hidden_size, model.hidden_size, model.bias)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def mlp(model: Model, layers: Layers) -> nn.Layer:
    return (SwigluMLP if model.activation == "swiglu" else GeluMLP)(model, layers)
