"""The two families' MLPs: GELU (Hendrycks and Gimpel, 2016) and SwiGLU (Shazeer, 2020)."""

from layers import Columns, Rows
from oneflow import nn
from oneflow.nn import functional


class GeluMLP(nn.Module):
    """GPT's: down(gelu(up(x))). `gelu` is the erf form, `gelu_tanh` the tanh one."""

    def __init__(self, stage, model):
        super().__init__()
        self.up = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = Rows(stage, model.ffn_hidden_size, model.hidden_size, model.bias)
        self.form = {"gelu": "none", "gelu_tanh": "tanh"}[model.activation]
        self.stage = stage

    def forward(self, x):
        return self.down(functional.gelu(self.up(self.stage.whole(x)), approximate=self.form))


class SwigluMLP(nn.Module):
    """Llama's: down(silu(gate(x)) * up(x))."""

    def __init__(self, stage, model):
        super().__init__()
        self.gate = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.up = Columns(stage, model.hidden_size, model.ffn_hidden_size, model.bias)
        self.down = Rows(stage, model.ffn_hidden_size, model.hidden_size, model.bias)
        self.stage = stage

    def forward(self, x):
        x = self.stage.whole(x)
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def mlp(stage, model):
    return (SwigluMLP if model.activation == "swiglu" else GeluMLP)(stage, model)
