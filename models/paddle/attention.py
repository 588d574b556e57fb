"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

import contextlib

import paddle
from paddle import nn
from paddle.nn import functional


class Attention(nn.Layer):
    """Heads of size D = hidden / heads; each of `kv_heads` keys and values serves heads / kv_heads queries."""

    def __init__(self, model, length, layers):
        super().__init__()
        self.head_size = model.hidden_size // model.heads
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        self.query = layers.columns(model.hidden_size, inner, model.bias)
        self.key = layers.columns(model.hidden_size, narrow, model.bias)
        self.value = layers.columns(model.hidden_size, narrow, model.bias)
        self.output = layers.rows(inner, model.hidden_size, model.bias)
        self.rotary = rotary_tables(self.head_size, length, model.rope_base) if model.positions == "rope" else None
        self.dropout, self.layers = model.attention_dropout, layers

    def forward(self, x):
        """x: [batch, sequence, hidden]."""
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        if self.rotary is not None:
            query, key = rotate(query, self.rotary), rotate(key, self.rotary)
        private = self.layers.private_randomness() if self.dropout else None
        with private or contextlib.nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout, is_causal=True, training=True
            )
        return self.output(mixed.flatten(2))

    def heads(self, x):
        """[batch, sequence, n D] -> [batch, sequence, n, D]; n is this rank's share under tensor parallelism."""
        return x.reshape([x.shape[0], x.shape[1], -1, self.head_size])


def rotary_tables(head_size, length, base):
    """Cosines and sines [length, 1, D / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = base ** -(paddle.arange(0, head_size, 2, dtype="float32") / head_size)
    angle = paddle.outer(paddle.arange(length, dtype="float32"), frequency).unsqueeze(1)
    return angle.cos(), angle.sin()


def rotate(x, tables):
    """Rotate the first half of each head against its second half, by its position. x: [batch, sequence, n, D]."""
    cos, sin = (table[: x.shape[1]].astype(x.dtype) for table in tables)
    first, second = x.chunk(2, axis=-1)
    return paddle.concat((first * cos - second * sin, second * cos + first * sin), axis=-1)
