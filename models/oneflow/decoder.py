"""GPT (Radford et al., 2019; Brown et al., 2020) and Llama (Touvron et al., 2023; Grattafiori et al., 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import oneflow as flow
from attention import Attention, Tables
from layers import Columns, Embedding, Positions, dropout, norm
from mlp import mlp
from oneflow import nn
from oneflow.utils.checkpoint import checkpoint
from precision import auto_cast, exact
from randomness import seed_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from levelfield.worker.architecture import Model
    from stages import Stage


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); computed again in the backward pass with `recomputed`.

    x stays in float32. What is computed again runs outside of the forward pass's contexts, so it has its own.
    """

    def __init__(self, stage: Stage, model: Model, recomputed: bool, precision: str, index: int) -> None:
        super().__init__()
        self.stage, self.recomputed, self.dropout = stage, recomputed, model.hidden_dropout
        self.precision, self.index = precision, index
        self.attention_norm = norm(stage, model)
        self.attention = Attention(stage, model)
        self.mlp_norm = norm(stage, model)
        self.mlp = mlp(stage, model)

    def forward(self, x: flow.Tensor, tables: Tables, seed: int | None) -> flow.Tensor:
        return checkpoint(self.transform, x, tables, seed) if self.recomputed else self.transform(x, tables, seed)

    def transform(self, x: flow.Tensor, tables: Tables, seed: int | None) -> flow.Tensor:
        """Compute the block. seed: of the micro-batch's random numbers; None without dropout."""
        if seed is not None:
            seed_stage(self.stage, seed + 1 + self.index)
        with auto_cast(self.precision):
            x = x + dropout(exact(self.attention(self.attention_norm(x), tables)), self.dropout)
            return x + dropout(exact(self.mlp(self.mlp_norm(x))), self.dropout)


class Decoder(nn.Module):
    """A decoder-only transformer over pipeline `stages`. Its parameters bear the canonical names."""

    def __init__(self, model: Model, length: int, stages: Sequence[Stage], recomputed: bool, precision: str) -> None:
        super().__init__()
        self.model, self.first, self.last, self.precision = model, stages[0], stages[-1], precision
        first = self.first
        self.embedding = Embedding(first, model.vocab_size, model.hidden_size)
        if model.positions == "learned":
            self.position = Positions(first, length, model.hidden_size)
        places = [stages[index] for index in assign_layers(model.layers, len(stages))]
        blocks = [Block(stage, model, recomputed, precision, index) for index, stage in enumerate(places)]
        self.layers = nn.ModuleList(blocks)
        self.final_norm = norm(self.last, model)
        if not model.tied_embeddings:
            self.head = Columns(self.last, model.hidden_size, model.vocab_size, False)
        self.tables = {id(stage): Tables(stage, model, length) for stage in stages}

    def forward(self, tokens: flow.Tensor, keep: Callable[[str, flow.Tensor], None], seed: int | None) -> flow.Tensor:
        """Compute the normed hidden states [batch, sequence, hidden] of tokens [batch, sequence].

        keep(name, tensor): called with what comes between.
        seed: of this micro-batch's random numbers; None without dropout.
        """
        if seed is not None:
            seed_stage(self.first, seed)
        x = self.embedding(tokens)
        if self.model.positions == "learned":
            x = x + self.position.weight
        x = dropout(x, self.model.hidden_dropout)
        keep("embedding", x)
        for index, block in enumerate(self.layers):
            x = block(block.stage.take(x), self.tables[id(block.stage)], seed)
            keep(f"layers.{index}", x)
        x = self.final_norm(x)
        keep("final_norm", x)
        return x

    def head_weight(self) -> flow.Tensor:
        """Return the head's weight [vocabulary, hidden] on the last stage, split over the vocabulary."""
        return self.last.take(self.embedding.weight) if self.model.tied_embeddings else self.head.weight

    def logits(self, x: flow.Tensor, weight: flow.Tensor) -> flow.Tensor:
        """Return the logits [batch, sequence, vocabulary] of x [batch, sequence, hidden], split over the vocabulary."""
        with auto_cast(self.precision):
            return exact(flow.matmul(self.last.whole(x), weight.T))


def assign_layers(layers: int, stages: int) -> list[int]:
    """Return each layer's stage; earlier stages take the remainder."""
    size, extra = divmod(layers, stages)
    return [index for index in range(stages) for _ in range(size + (index < extra))]
