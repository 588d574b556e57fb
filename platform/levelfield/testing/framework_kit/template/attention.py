"""Causal self-attention with grouped queries and rotary positions, with its backward pass."""

import numpy as np
from layers import Linear, part


class Attention:
    """Heads of size hidden / heads. Each of `kv_heads` keys and values serves heads / kv_heads queries in a row."""

    def __init__(self, model, at, dropout):
        self.size, self.groups = model.hidden_size // model.heads, model.heads // model.kv_heads
        self.factor = np.float32(self.size**-0.5)
        self.base = model.rope_base if model.positions == "rope" else None
        self.query, self.key, self.value = (Linear(part(at, name)) for name in ("query", "key", "value"))
        self.output, self.dropout = Linear(part(at, "output")), dropout

    def forward(self, x):
        """x: [batch, sequence, hidden]."""
        query, key, value = (self.heads(layer.forward(x)) for layer in (self.query, self.key, self.value))
        if self.base is not None:
            self.tables = rotary_tables(self.size, x.shape[1], self.base)
            query, key = rotate(query, *self.tables), rotate(key, *self.tables)
        key, value = (np.repeat(operand, self.groups, axis=1) for operand in (key, value))
        self.operands = query, key, value
        scores = query @ key.swapaxes(-1, -2) * self.factor
        allowed = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)  # the keys up to the query's own position
        scores = np.where(allowed, scores, np.float32(-np.inf))
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        self.weights = exponentials / exponentials.sum(axis=-1, keepdims=True)
        self.mixing = self.dropout.forward(self.weights)
        return self.output.forward(flat(self.mixing @ value))

    def backward(self, gradient):
        query, key, value = self.operands
        gradient = self.heads(self.output.backward(gradient))
        inner = self.dropout.backward(gradient @ value.swapaxes(-1, -2))
        # back through the softmax
        scores = self.weights * (inner - (inner * self.weights).sum(axis=-1, keepdims=True)) * self.factor
        parts = scores @ key, self.summed(scores.swapaxes(-1, -2) @ query)
        if self.base is not None:
            cos, sin = self.tables
            parts = tuple(rotate(operand, cos, -sin) for operand in parts)  # a rotation's transpose turns back
        parts = *parts, self.summed(self.mixing.swapaxes(-1, -2) @ gradient)
        layers = self.query, self.key, self.value
        return sum(layer.backward(flat(operand)) for layer, operand in zip(layers, parts, strict=True))

    def heads(self, x):
        """[batch, sequence, n size] -> [batch, n, sequence, size]."""
        return x.reshape(*x.shape[:2], -1, self.size).swapaxes(1, 2)

    def summed(self, gradient):
        """Sum a gradient over the queries that share a key: [batch, heads, ...] -> [batch, kv_heads, ...]."""
        batch, heads, *rest = gradient.shape
        return gradient.reshape(batch, heads // self.groups, self.groups, *rest).sum(axis=2)


def flat(x):
    """[batch, n, sequence, size] -> [batch, sequence, n size]."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def rotary_tables(size, length, base):
    """Return cosines and sines [length, size / 2] of RoPE (Su et al., 2021), in float32."""
    frequency = np.float32(base) ** -(np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angle = np.outer(np.arange(length, dtype=np.float32), frequency)
    return np.cos(angle), np.sin(angle)


def rotate(x, cos, sin):
    """Rotate the first half of each head against its second half, by its position. x: [..., sequence, size]."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
