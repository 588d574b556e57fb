"""One block of a decoder. The case chooses its norm, its activation and its positions, each by itself."""

import gpt
import llama
from attention import Attention
from layers import dropout, norm
from torch import nn

MLPS = {"gelu": gpt.MLP, "gelu_tanh": gpt.MLP, "swiglu": llama.MLP}


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, model, attend):
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = Attention(model, attend)
        self.mlp_norm = norm(model)
        self.mlp = MLPS[model.activation](model)
        self.dropout = model.hidden_dropout

    def forward(self, x, rotary=None):
        x = x + dropout(self.attention(self.attention_norm(x), rotary), self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), self.dropout)
