"""The layers of a decoder, as one process has them; tensor_parallel.SplitLayers has the same, split over ranks.

Weights of linear layers are [in, out], Paddle's order; embeddings [rows, hidden].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from paddle import nn
from paddle.nn import functional

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from levelfield.worker.architecture import Model


class Layers:
    """What a decoder is built from. `ranks` share the heads, the MLP and the vocabulary."""

    ranks = 1

    def embedding(self, rows: int, hidden: int) -> nn.Layer:
        return nn.Embedding(rows, hidden)

    def columns(self, inputs: int, outputs: int, bias: bool) -> nn.Layer:
        """Make a linear layer whose outputs are this rank's part."""
        return nn.Linear(inputs, outputs, bias_attr=None if bias else False)

    def rows(self, inputs: int, outputs: int, bias: bool) -> nn.Layer:
        """Make a linear layer whose inputs are this rank's part, and whose outputs are whole."""
        return nn.Linear(inputs, outputs, bias_attr=None if bias else False)

    def tied_logits(self, x: paddle.Tensor, weight: paddle.Tensor) -> paddle.Tensor:
        """Return x weight^T, [batch, sequence, vocabulary]: the embedding [vocabulary, hidden] as the head."""
        return paddle.matmul(x, weight, transpose_y=True)

    def cross_entropy(self, logits: paddle.Tensor, targets: paddle.Tensor) -> paddle.Tensor:
        """Return the cross-entropy of each token, in float32.

        logits: [batch, sequence, vocabulary]; targets: [batch, sequence].
        """
        return functional.cross_entropy(logits.astype("float32"), targets.unsqueeze(-1), reduction="none")

    def private_randomness(self) -> AbstractContextManager[None] | None:
        """Return a context in which each rank has its own random numbers; None where there is one rank."""
        return None


class RMSNorm(nn.Layer):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension, computed in float32."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight = self.create_parameter([hidden], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x_float32 = x.astype("float32")
        scale = paddle.rsqrt(x_float32.square().mean(-1, keepdim=True) + self.epsilon)
        return (x_float32 * scale * self.weight).astype(x.dtype)


def norm(model: Model) -> nn.Layer:
    """Make the model's normalisation layer; nn.LayerNorm is that of Ba et al. (2016)."""
    if model.norm == "rmsnorm":
        return RMSNorm(model.hidden_size, model.norm_eps)
    return nn.LayerNorm(model.hidden_size, epsilon=model.norm_eps)


def dropout(x: paddle.Tensor, probability: float) -> paddle.Tensor:
    """Apply dropout (Srivastava et al., 2014)."""
    return functional.dropout(x, probability) if probability else x
