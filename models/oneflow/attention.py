"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import oneflow as flow
from layers import Columns, Rows, dropout
from oneflow import nn
from precision import to_float32

if TYPE_CHECKING:
    from levelfield.worker.architecture import Model
    from numpy.typing import NDArray
    from stages import Stage


class Attention(nn.Module):
    """Heads of size head_dim = hidden / heads; each of `kv_heads` keys and values serves heads / kv_heads queries."""

    def __init__(self, stage: Stage, model: Model) -> None:
        super().__init__()
        self.kv_heads, self.groups = model.kv_heads, model.heads // model.kv_heads
        self.head_size, self.dropout, self.stage = model.hidden_size // model.heads, model.attention_dropout, stage
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        self.query = Columns(stage, model.hidden_size, inner, model.bias)
        self.key = Columns(stage, model.hidden_size, narrow, model.bias)
        self.value = Columns(stage, model.hidden_size, narrow, model.bias)
        self.output = Rows(stage, inner, model.hidden_size, model.bias)

    def forward(self, x: flow.Tensor, constants: AttentionConstants) -> flow.Tensor:
        """Attend. x and the result: [batch, sequence, hidden]. constants: of x's stage."""
        x = self.stage.make_whole(x)
        # query [batch, heads, sequence, head_dim], key and value [batch, kv_heads, sequence, head_dim]
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        if constants.rotary is not None:
            query, key = rotate(query, constants.rotary), rotate(key, constants.rotary)
        return self.output(self.mix(query, key, value, constants.mask))

    def heads(self, x: flow.Tensor) -> flow.Tensor:
        """Split x into heads: [batch, sequence, n head_dim] -> [batch, n, sequence, head_dim]."""
        return x.reshape(x.shape[0], x.shape[1], -1, self.head_size).permute(0, 2, 1, 3)

    def mix(self, query: flow.Tensor, key: flow.Tensor, value: flow.Tensor, mask: flow.Tensor) -> flow.Tensor:
        """Return the mixed values [batch, sequence, heads head_dim].

        The queries that share a key lie one after another, as if they were more positions: no key is repeated.
        """
        batch, heads, length, size = query.shape
        query = query.reshape(batch, self.kv_heads, self.groups * length, size)
        # [batch, kv_heads, groups sequence, sequence], then [batch, heads, sequence, sequence]
        scores = flow.matmul(query, key.transpose(2, 3)) * (1 / math.sqrt(size))
        scores = to_float32(scores).reshape(batch, heads, length, length) + mask
        probabilities = dropout(flow.softmax(scores, -1), self.dropout, self.stage.private_generator)
        # [batch, kv_heads, groups sequence, head_dim]
        mixed = flow.matmul(probabilities.reshape(batch, self.kv_heads, self.groups * length, length), value)
        return mixed.reshape(batch, heads, length, size).permute(0, 2, 1, 3).reshape(batch, length, heads * size)


class AttentionConstants:
    """What attention on one stage needs beside parameters: the causal mask, and RoPE's tables or None."""

    def __init__(self, stage: Stage, model: Model, length: int) -> None:
        self.mask = stage.constant(np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1))
        self.rotary = None
        if model.positions == "rope" and model.rope_base is not None:
            tables = rotary_tables(model.hidden_size // model.heads, length, model.rope_base)
            self.rotary = [stage.constant(table) for table in tables]


def rotary_tables(head_size: int, length: int, base: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cosines and sines [length, head_dim / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = np.float32(base) ** -(np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
    angle = np.outer(np.arange(length, dtype=np.float32), frequency)
    return np.cos(angle), np.sin(angle)


def rotate(x: flow.Tensor, tables: list[flow.Tensor]) -> flow.Tensor:
    """Rotate the first half of each head against its second half, by its position.

    x: [batch, heads, sequence, head_dim].
    """
    cos, sin = tables
    first, second = x.chunk(2, -1)
    return flow.cat((first * cos - second * sin, second * cos + first * sin), -1)
