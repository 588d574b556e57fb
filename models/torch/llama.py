"""Llama (Touvron et al., 2023; Grattafiori et al., 2024): RMSNorm, rotary positions, grouped queries, SwiGLU.

Learned positions, biases and dropout are there too: FlagPerf's Llama 3 command trains with them.
"""

from attention import Attention
from layers import Linear, dropout, norm
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


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model, attend):
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = Attention(model, attend)
        self.mlp_norm = norm(model)
        self.mlp = MLP(model)
        self.dropout = model.hidden_dropout

    def forward(self, x, rotary=None):
        x = x + dropout(self.attention(self.attention_norm(x), rotary), self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), self.dropout)
