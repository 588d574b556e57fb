"""A GPT or a Llama as a user of torch writes it, after nanoGPT: a peer of benchmarks/torch_step.py.

Weights in float32, computed under autocast; torch's own attention, norms and cross-entropy; query, key and value are
one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Architecture = dict[str, Any]  # the parts of a model, by the names of a case


class PlainModel(nn.Module):
    turn: Tensor

    def __init__(self, model: Architecture, sequence: int) -> None:
        super().__init__()
        hidden, self.learned = model["hidden_size"], model["positions"] == "learned"
        self.embedding = nn.Embedding(model["vocab_size"], hidden)
        if self.learned:
            self.position = nn.Embedding(sequence, hidden)
        else:
            self.register_buffer("turn", turn(sequence, hidden // model["heads"], model["rope_base"]))
        self.layers = nn.ModuleList(Block(model) for _ in range(model["layers"]))
        self.norm = norm(model)
        self.head = nn.Linear(hidden, model["vocab_size"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=model["init_std"])
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if model["tied_embeddings"]:
            self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy. inputs, targets: [batch, sequence]."""
        x = self.embedding(inputs)
        if self.learned:
            x = x + self.position.weight
        turned = None if self.learned else self.turn
        for layer in self.layers:
            x = layer(x, turned)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Block(nn.Module):
    def __init__(self, model: Architecture) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(model), Attention(model)
        self.mlp_norm, self.mlp = norm(model), (SwiGlu if model["activation"] == "swiglu" else Gelu)(model)

    def forward(self, x: Tensor, turned: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turned)
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    def __init__(self, model: Architecture) -> None:
        super().__init__()
        hidden, self.size = model["hidden_size"], model["hidden_size"] // model["heads"]
        self.widths = (hidden, model["kv_heads"] * self.size, model["kv_heads"] * self.size)
        self.joined = nn.Linear(hidden, sum(self.widths), bias=model["bias"])
        self.output = nn.Linear(hidden, hidden, bias=model["bias"])

    def forward(self, x: Tensor, turned: Tensor | None) -> Tensor:
        parts = self.joined(x).split(self.widths, -1)
        query, key, value = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        if turned is not None:
            query, key = rotate(query, turned), rotate(key, turned)
        grouped = self.widths[0] > self.widths[1]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Gelu(nn.Module):
    def __init__(self, model: Architecture) -> None:
        super().__init__()
        self.up = nn.Linear(model["hidden_size"], model["ffn_hidden_size"], bias=model["bias"])
        self.down = nn.Linear(model["ffn_hidden_size"], model["hidden_size"], bias=model["bias"])

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class SwiGlu(nn.Module):
    def __init__(self, model: Architecture) -> None:
        super().__init__()
        self.gate = nn.Linear(model["hidden_size"], model["ffn_hidden_size"], bias=False)
        self.up = nn.Linear(model["hidden_size"], model["ffn_hidden_size"], bias=False)
        self.down = nn.Linear(model["ffn_hidden_size"], model["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def norm(model: Architecture) -> nn.Module:
    kind: type[nn.LayerNorm | nn.RMSNorm] = nn.LayerNorm if model["norm"] == "layernorm" else nn.RMSNorm
    return kind(model["hidden_size"], eps=model["norm_eps"])


def turn(sequence: int, size: int, base: float) -> Tensor:
    """Cosine and sine of each position's angles, [2, sequence, size]: both halves of a head turn alike."""
    rates = base ** (-torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(sequence).float(), rates).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, turned: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021). x: [batch, heads, sequence, size]."""
    cosine, sine = turned.to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine
