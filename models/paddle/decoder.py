"""GPT (Radford et al., 2019; Brown et al., 2020) and Llama (Touvron et al., 2023; Grattafiori et al., 2024).

A decoder is a list of pieces in the order of the forward pass; one process runs them all, a pipeline stage its part.
A parameter's canonical name is its piece's prefix and its name within the piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attention import Attention
from layers import dropout, norm
from mlp import mlp
from paddle import nn
from paddle.distributed.fleet.meta_parallel import LayerDesc, SharedLayerDesc
from paddle.distributed.fleet.utils import recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    import paddle
    from layers import Layers
    from levelfield.worker.architecture import Model


class Piece(nn.Layer):
    """A part of the decoder: hidden state [batch, sequence, hidden] in, hidden state out, but for the two ends."""

    prefix = ""


class Embedding(Piece):
    """Tokens [batch, sequence] to their embeddings; with a tied head this is the head too."""

    def __init__(self, model: Model, layers: Layers) -> None:
        super().__init__()
        self.embedding = layers.embedding(model.vocab_size, model.hidden_size)
        self.layers = layers

    @property
    def weight(self) -> paddle.Tensor:
        return self.embedding.weight

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        return self.embedding(tokens)

    def logits(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the logits [batch, sequence, vocabulary] of x [batch, sequence, hidden], or this rank's part."""
        return self.layers.tied_logits(x, self.weight)


class Positions(Piece):
    """Adds the learned positions, where the model has them."""

    def __init__(self, model: Model, length: int) -> None:
        super().__init__()
        self.position = nn.Embedding(length, model.hidden_size) if model.positions == "learned" else None
        self.dropout = model.hidden_dropout

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        if self.position is not None:
            x = x + self.position.weight[: x.shape[1]]
        return dropout(x, self.dropout)


class Block(Piece):
    """x + attention(norm(x)), then x + mlp(norm(x)); computed again in the backward pass if `is_recomputed`."""

    def __init__(self, model: Model, length: int, index: int, layers: Layers, is_recomputed: bool) -> None:
        super().__init__()
        self.index, self.prefix = index, f"layers.{index}."
        self.is_recomputed, self.dropout = is_recomputed, model.hidden_dropout
        self.attention_norm = norm(model)
        self.attention = Attention(model, length, layers)
        self.mlp_norm = norm(model)
        self.mlp = mlp(model, layers)
        self.has_dropout = bool(model.hidden_dropout or model.attention_dropout)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        if self.is_recomputed:
            return recompute(self.transform, x, preserve_rng_state=self.has_dropout)
        return self.transform(x)

    def transform(self, x: paddle.Tensor) -> paddle.Tensor:
        x = x + dropout(self.attention(self.attention_norm(x)), self.dropout)
        return x + dropout(self.mlp(self.mlp_norm(x)), self.dropout)


class FinalNorm(Piece):
    """The norm of the last block's output."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.final_norm = norm(model)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.final_norm(x)


class Head(Piece):
    """The untied head: hidden state to logits [batch, sequence, vocabulary], or this rank's part of them."""

    def __init__(self, model: Model, layers: Layers) -> None:
        super().__init__()
        self.head = layers.columns(model.hidden_size, model.vocab_size, False)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.head(x)


def describe_pieces(model: Model, length: int, layers: Layers, is_recomputed: bool) -> list[LayerDesc]:
    """Return the whole decoder's pieces, not yet built: a pipeline stage builds only its part."""
    blocks = [LayerDesc(Block, model, length, index, layers, is_recomputed) for index in range(model.layers)]
    if model.tied_embeddings:
        first = SharedLayerDesc("tied", Embedding, None, "weight", model, layers)
        last = SharedLayerDesc("tied", Embedding, Embedding.logits, "weight", model, layers)
    else:
        first, last = LayerDesc(Embedding, model, layers), LayerDesc(Head, model, layers)
    return [first, LayerDesc(Positions, model, length), *blocks, LayerDesc(FinalNorm, model), last]


class Decoder(nn.Layer):
    """All pieces in one process: tokens [batch, sequence] to logits [batch, sequence, vocabulary]."""

    def __init__(self, descriptions: Sequence[LayerDesc]) -> None:
        super().__init__()
        *pieces_before_head, head = descriptions
        self.pieces = nn.LayerList([description.build_layer() for description in pieces_before_head])
        self.head = None if isinstance(head, SharedLayerDesc) else head.build_layer()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        for piece in self.pieces:
            x = piece(x)
        return self.pieces[0].logits(x) if self.head is None else self.head(x)
