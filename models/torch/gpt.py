"""GPT (Radford et al., 2019; Brown et al., 2020): pre-norm blocks, GELU, learned positions, biases."""

from attention import Attention
from layers import Linear, dropout, norm
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """down(gelu(up(x))). `gelu` is the erf form, `gelu_tanh` the tanh one (Hendrycks and Gimpel, 2016)."""

    def __init__(self, model):
        super().__init__()
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)
        self.form = {"gelu": "none", "gelu_tanh": "tanh"}[model.activation]

    def forward(self, x):
        return self.down(functional.gelu(self.up(x), approximate=self.form))


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
