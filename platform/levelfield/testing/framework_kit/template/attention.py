"""Causal self-attention with grouped queries and rotary positions, with its backward pass."""

import numpy as np
from layers import Linear


class Attention:
    """Heads of size hidden / heads. Each of `kv_heads` keys and values serves heads / kv_heads queries in a row."""

    def __init__(self, model, at, dropout):
        self.size, self.groups = model.hidden_size // model.heads, model.heads // model.kv_heads
        self.base = model.rope_base if model.positions == "rope" else None
        self.query, self.key, self.value = (Linear(at.part(name)) for name in ("query", "key", "value"))
        self.output, self.dropout = Linear(at.part("output")), dropout

    def forward(self, x):
        """x: [batch, sequence, hidden]."""
        query, key, value = (self.heads(layer.forward(x)) for layer in (self.query, self.key, self.value))
        if self.base is not None:
            self.tables = rotary_tables(self.size, x.shape[1], self.base)
            query, key = rotate(query, *self.tables), rotate(key, *self.tables)
        key, value = (np.repeat(part, self.groups, axis=1) for part in (key, value))
        self.operands = query, key, value
        self.weights = softmax(masked(query @ key.swapaxes(-1, -2) * self.factor))
        self.mixing = self.dropout.forward(self.weights)
        mixed = self.mixing @ value
        return self.output.forward(mixed.swapaxes(1, 2).reshape(x.shape[0], x.shape[1], -1))

    def backward(self, gradient):
        query, key, value = self.operands
        gradient = self.heads(self.output.backward(gradient))
        inner = self.dropout.backward(gradient @ value.swapaxes(-1, -2))
        scores = softmax_backward(inner, self.weights) * self.factor
        parts = scores @ key, self.summed(scores.swapaxes(-1, -2) @ query)
        if self.base is not None:
            cos, sin = self.tables
            parts = tuple(rotate(part, cos, -sin) for part in parts)  # a rotation's transpose turns back
        parts = *parts, self.summed(self.mixing.swapaxes(-1, -2) @ gradient)
        layers = self.query, self.key, self.value
        return sum(layer.backward(flat(part)) for layer, part in zip(layers, parts, strict=True))

    @property
    def factor(self):
        return np.float32(self.size**-0.5)

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


def masked(scores):
    """Leave each query the keys up to its own position."""
    allowed = np.tri(scores.shape[-2], scores.shape[-1], dtype=bool)
    return np.where(allowed, scores, np.float32(-np.inf))


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def softmax_backward(gradient, weights):
    return weights * (gradient - (gradient * weights).sum(axis=-1, keepdims=True))
