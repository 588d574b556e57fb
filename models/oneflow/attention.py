"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

import math

import numpy as np
import oneflow as flow
from layers import Columns, Rows, dropout
from oneflow import nn
from precision import exact


class Attention(nn.Module):
    """Heads of size D = hidden / heads; each of `kv_heads` keys and values serves heads / kv_heads queries."""

    def __init__(self, stage, model):
        super().__init__()
        self.kv_heads, self.groups = model.kv_heads, model.heads // model.kv_heads
        self.head_size, self.dropout, self.stage = model.hidden_size // model.heads, model.attention_dropout, stage
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        self.query = Columns(stage, model.hidden_size, inner, model.bias)
        self.key = Columns(stage, model.hidden_size, narrow, model.bias)
        self.value = Columns(stage, model.hidden_size, narrow, model.bias)
        self.output = Rows(stage, inner, model.hidden_size, model.bias)

    def forward(self, x, tables):
        """x: [batch, sequence, hidden]; tables: `Tables` of x's stage."""
        x = self.stage.whole(x)
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        if tables.rotary is not None:
            query, key = rotate(query, tables.rotary), rotate(key, tables.rotary)
        return self.output(self.mix(query, key, value, tables.mask))

    def heads(self, x):
        """[batch, sequence, n D] -> [batch, n, sequence, D]."""
        return x.reshape(x.shape[0], x.shape[1], -1, self.head_size).permute(0, 2, 1, 3)

    def mix(self, query, key, value, mask):
        """The values' mixture [batch, sequence, heads D].

        The queries that share a key lie one after another, as if they were more positions: no key is repeated.
        """
        batch, heads, length, size = query.shape
        query = query.reshape(batch, self.kv_heads, self.groups * length, size)
        scores = flow.matmul(query, key.transpose(2, 3)) * (1 / math.sqrt(size))
        scores = exact(scores).reshape(batch, heads, length, length) + mask
        weights = dropout(flow.softmax(scores, -1), self.dropout, self.stage.private)
        mixed = flow.matmul(weights.reshape(batch, self.kv_heads, self.groups * length, length), value)
        return mixed.reshape(batch, heads, length, size).permute(0, 2, 1, 3).reshape(batch, length, heads * size)


class Tables:
    """What attention on one stage needs beside parameters: the causal mask, and RoPE's tables or None."""

    def __init__(self, stage, model, length):
        self.mask = stage.constant(np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1))
        self.rotary = None
        if model.positions == "rope":
            tables = rotary_tables(model.hidden_size // model.heads, length, model.rope_base)
            self.rotary = [stage.constant(table) for table in tables]


def rotary_tables(head_size, length, base):
    """Cosines and sines [length, D / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = np.float32(base) ** -(np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
    angle = np.outer(np.arange(length, dtype=np.float32), frequency)
    return np.cos(angle), np.sin(angle)


def rotate(x, tables):
    """Rotate the first half of each head against its second half, by its position. x: [batch, n, sequence, D]."""
    cos, sin = tables
    first, second = x.chunk(2, -1)
    return flow.cat((first * cos - second * sin, second * cos + first * sin), -1)
