"""The MLP with a gate: Llama's (Touvron et al., 2023; Grattafiori et al., 2024) and Gemma's (2024)."""

from functools import partial

from layers import Linear
from torch import nn
from torch.nn import functional

ACTIVATIONS = {"swiglu": functional.silu, "geglu_tanh": partial(functional.gelu, approximate="tanh")}


class MLP(nn.Module):
    """SwiGLU or GEGLU (Shazeer, 2020): down(silu(gate(x)) * up(x)), or gelu, in its tanh form, for silu."""

    def __init__(self, model):
        super().__init__()
        self.gate = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)
        self.activation = ACTIVATIONS[model.activation]

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))
