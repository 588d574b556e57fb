"""GPT (Radford et al., 2019; Brown et al., 2020) and Llama (Touvron et al., 2023; Grattafiori et al., 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import oneflow as flow
from attention import Attention, AttentionConstants
from layers import Columns, Embedding, Positions, dropout, norm
from mlp import mlp
from oneflow import nn
from oneflow.utils.checkpoint import checkpoint
from precision import auto_cast, to_float32
from randomness import seed_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from levelfield.worker.architecture import Model
    from stages import Stage


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); computed again in the backward pass if
    `is_recomputed`.

    x stays in float32. What is computed again runs outside of the forward pass's contexts, so it has its own.
    """

    def __init__(self, stage: Stage, model: Model, is_recomputed: bool, precision: str, index: int) -> None:
        super().__init__()
        self.stage, self.is_recomputed, self.dropout = stage, is_recomputed, model.hidden_dropout
        self.precision, self.index = precision, index
        self.attention_norm = norm(stage, model)
        self.attention = Attention(stage, model)
        self.mlp_norm = norm(stage, model)
        self.mlp = mlp(stage, model)

    def forward(self, x: flow.Tensor, constants: AttentionConstants, seed: int | None) -> flow.Tensor:
        if self.is_recomputed:
            return checkpoint(self.transform, x, constants, seed)
        return self.transform(x, constants, seed)

    def transform(self, x: flow.Tensor, constants: AttentionConstants, seed: int | None) -> flow.Tensor:
        """Compute the block. seed: of the micro-batch's random numbers; None without dropout."""
        if seed is not None:
            seed_stage(self.stage, seed + 1 + self.index)
        with auto_cast(self.precision):
            x = x + dropout(to_float32(self.attention(self.attention_norm(x), constants)), self.dropout)
            return x + dropout(to_float32(self.mlp(self.mlp_norm(x))), self.dropout)


class Decoder(nn.Module):
    """A decoder-only transformer over pipeline `stages`. Its parameters bear the canonical names."""

    def __init__(self, model: Model, length: int, stages: Sequence[Stage], is_recomputed: bool, precision: str) -> None:
        super().__init__()
        self.model, self.first_stage, self.last_stage, self.precision = model, stages[0], stages[-1], precision
        first = stages[0]
        self.embedding = Embedding(first, model.vocab_size, model.hidden_size)
        if model.positions == "learned":
            self.position = Positions(first, length, model.hidden_size)
        layer_stages = [stages[index] for index in assign_layers(model.layers, len(stages))]
        blocks = [Block(stage, model, is_recomputed, precision, index) for index, stage in enumerate(layer_stages)]
        self.layers = nn.ModuleList(blocks)
        self.final_norm = norm(self.last_stage, model)
        if not model.tied_embeddings:
            self.head = Columns(self.last_stage, model.hidden_size, model.vocab_size, False)
        self.constants = {id(stage): AttentionConstants(stage, model, length) for stage in stages}

    def forward(self, tokens: flow.Tensor, keep: Callable[[str, flow.Tensor], None], seed: int | None) -> flow.Tensor:
        """Compute the normed hidden states [batch, sequence, hidden] of tokens [batch, sequence].

        keep(name, tensor): called with what comes between.
        seed: of this micro-batch's random numbers; None without dropout.
        """
        if seed is not None:
            seed_stage(self.first_stage, seed)
        x = self.embedding(tokens)
        if self.model.positions == "learned":
            x = x + self.position.weight
        x = dropout(x, self.model.hidden_dropout)
        keep("embedding", x)
        for index, block in enumerate(self.layers):
            x = block(block.stage.move_here(x), self.constants[id(block.stage)], seed)
            keep(f"layers.{index}", x)
        x = self.final_norm(x)
        keep("final_norm", x)
        return x

    def head_weight(self) -> flow.Tensor:
        """Return the head's weight [vocabulary, hidden] on the last stage, split over the vocabulary."""
        return self.last_stage.move_here(self.embedding.weight) if self.model.tied_embeddings else self.head.weight

    def logits(self, x: flow.Tensor, weight: flow.Tensor) -> flow.Tensor:
        """Return the logits [batch, sequence, vocabulary] of x [batch, sequence, hidden], split over the vocabulary."""
        with auto_cast(self.precision):
            return to_float32(flow.matmul(self.last_stage.make_whole(x), weight.T))


def assign_layers(layers: int, stages: int) -> list[int]:
    """Return each layer's stage; earlier stages take the remainder."""
    size, extra = divmod(layers, stages)
    return [index for index in range(stages) for _ in range(size + (index < extra))]
