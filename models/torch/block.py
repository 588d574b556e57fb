"""One block of a decoder. The case chooses its norm, its activation and its positions, each by itself."""

import gpt
import llama
from attention import Attention
from layers import dropout, norm
from levelfield.worker import is_mixture, part
from torch import nn

MLPS = {"gelu": gpt.MLP, "gelu_tanh": gpt.MLP, "swiglu": llama.MLP, "geglu_tanh": llama.MLP}


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or x + norm(attention(x)), then x + norm(mlp(x)) (OLMo 2)."""

    def __init__(self, model, attend, layer, sequence_length):
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = attention_of(model)(model, attend)
        self.mlp_norm = norm(model)
        self.mlp = mlp(model, layer, sequence_length)
        self.dropout, self.norm_after = model.hidden_dropout, part(model, "norm_place") == "after"

    def forward(self, x, rotary=None):
        if self.norm_after:
            x = x + dropout(self.attention_norm(self.attention(x, rotary)), self.dropout)
            return x + dropout(self.mlp_norm(self.mlp(x)), self.dropout)
        x = x + dropout(self.attention(self.attention_norm(x), rotary), self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), self.dropout)


def attention_of(model):
    if part(model, "latent_attention") is None:
        return Attention
    from latent import LatentAttention

    return LatentAttention


def mlp(model, layer, sequence_length):
    """The MLP of layer `layer`, or the mixture of experts in its place."""
    kind = MLPS[model.activation]
    if not is_mixture(model, layer):
        return kind(model)
    from mixture import Mixture, shared_experts

    shared = shared_experts(model)
    return Mixture(model, sequence_length, None if shared is None else kind(shared))
