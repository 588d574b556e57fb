"""The layers of both families, as one process has them; tensor_parallel.Layers has the same, split over ranks.

Weights of linear layers are [in, out], Paddle's order; embeddings [rows, hidden].
"""

import paddle
from paddle import nn
from paddle.nn import functional


class Layers:
    """What a decoder is built from. `ranks` share the heads, the MLP and the vocabulary."""

    ranks = 1

    def embedding(self, rows, hidden):
        return nn.Embedding(rows, hidden)

    def columns(self, inputs, outputs, bias):
        """A linear layer whose outputs are this rank's part."""
        return nn.Linear(inputs, outputs, bias_attr=None if bias else False)

    def rows(self, inputs, outputs, bias):
        """A linear layer whose inputs are this rank's part, and whose outputs are whole."""
        return nn.Linear(inputs, outputs, bias_attr=None if bias else False)

    def tied_logits(self, x, weight):
        """x weight^T: the embedding [vocabulary, hidden] as the head."""
        return paddle.matmul(x, weight, transpose_y=True)

    def cross_entropy(self, logits, targets):
        """Of each token, in float32: logits [batch, sequence, vocabulary], targets [batch, sequence]."""
        return functional.cross_entropy(logits.astype("float32"), targets.unsqueeze(-1), reduction="none")

    def private_randomness(self):
        """A context in which random numbers are this rank's own; None where there are no others."""
        return None


class RMSNorm(nn.Layer):
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension, computed in float32."""

    def __init__(self, hidden, epsilon):
        super().__init__()
        self.weight = self.create_parameter([hidden], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x):
        exact = x.astype("float32")
        scale = paddle.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return (exact * scale * self.weight).astype(x.dtype)


def norm(model):
    """The model's normalisation layer; nn.LayerNorm is that of Ba et al. (2016)."""
    if model.norm == "rmsnorm":
        return RMSNorm(model.hidden_size, model.norm_eps)
    return nn.LayerNorm(model.hidden_size, epsilon=model.norm_eps)


def dropout(x, probability):
    """Dropout (Srivastava et al., 2014)."""
    return functional.dropout(x, probability) if probability else x
