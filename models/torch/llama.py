"""Llama's MLP (Touvron et al., 2023; Grattafiori et al., 2024)."""

from layers import Linear
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """SwiGLU (Shazeer, 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, model):
        super().__init__()
        self.gate = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))
