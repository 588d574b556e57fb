"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import paddle
from paddle import nn
from paddle.nn import functional

if TYPE_CHECKING:
    from layers import Layers
    from levelfield.worker.architecture import Model


class Attention(nn.Layer):
    """Heads of size head_dim = hidden / heads; each of `kv_heads` keys and values serves heads / kv_heads queries."""

    def __init__(self, model: Model, length: int, layers: Layers) -> None:
        super().__init__()
        self.head_size = model.hidden_size // model.heads
        inner, narrow = model.heads * self.head_size, model.kv_heads * self.head_size
        self.query = layers.columns(model.hidden_size, inner, model.bias)
        self.key = layers.columns(model.hidden_size, narrow, model.bias)
        self.value = layers.columns(model.hidden_size, narrow, model.bias)
        self.output = layers.rows(inner, model.hidden_size, model.bias)
        self.rotary = None
        if model.positions == "rope" and model.rope_base is not None:
            self.rotary = rotary_tables(self.head_size, length, model.rope_base)
        self.dropout, self.layers = model.attention_dropout, layers

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Attend. x and the result: [batch, sequence, hidden]."""
        # query [batch, sequence, heads, head_dim], key and value [batch, sequence, kv_heads, head_dim]
        query, key, value = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        if self.rotary is not None:
            query, key = rotate(query, self.rotary), rotate(key, self.rotary)
        return self.output(self.attend(query, key, value).flatten(2))

    def attend(self, query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor) -> paddle.Tensor:
        """Return the mixed values, [batch, sequence, heads, head_dim]."""
        private = self.layers.private_randomness() if self.dropout else None
        with private or contextlib.nullcontext():
            return functional.scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout, is_causal=True, training=True
            )

    def heads(self, x: paddle.Tensor) -> paddle.Tensor:
        """Split x into heads: [batch, sequence, n head_dim] -> [batch, sequence, n, head_dim].

        Under tensor parallelism n is this rank's share.
        """
        return x.reshape([x.shape[0], x.shape[1], -1, self.head_size])


def rotary_tables(head_size: int, length: int, base: float) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return cosines and sines [length, 1, head_dim / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = base ** -(paddle.arange(0, head_size, 2, dtype="float32") / head_size)
    angle = paddle.outer(paddle.arange(length, dtype="float32"), frequency).unsqueeze(1)
    return angle.cos(), angle.sin()


def rotate(x: paddle.Tensor, tables: tuple[paddle.Tensor, paddle.Tensor]) -> paddle.Tensor:
    """Rotate the first half of each head against its second half, by its position.

    x: [batch, sequence, heads, head_dim].
    """
    cos, sin = (table[: x.shape[1]].astype(x.dtype) for table in tables)
    first, second = x.chunk(2, axis=-1)
    return paddle.concat((first * cos - second * sin, second * cos + first * sin), axis=-1)
