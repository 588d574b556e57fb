"""GPT (Radford et al., 2019; Brown et al., 2020) and Llama (Touvron et al., 2023; Grattafiori et al., 2024)."""

import oneflow as flow
from attention import Attention, Tables
from layers import Columns, Embedding, Positions, dropout, norm
from mlp import mlp
from oneflow import nn
from oneflow.utils.checkpoint import checkpoint
from precision import auto_cast, exact
from randomness import sow


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); computed again in the backward pass with `recomputed`.

    x stays in float32. What is computed again runs outside of the forward pass's contexts, so it has its own.
    """

    def __init__(self, stage, model, recomputed, precision, index):
        super().__init__()
        self.stage, self.recomputed, self.dropout = stage, recomputed, model.hidden_dropout
        self.precision, self.index = precision, index
        self.attention_norm = norm(stage, model)
        self.attention = Attention(stage, model)
        self.mlp_norm = norm(stage, model)
        self.mlp = mlp(stage, model)

    def forward(self, x, tables, seed):
        return checkpoint(self.transform, x, tables, seed) if self.recomputed else self.transform(x, tables, seed)

    def transform(self, x, tables, seed):
        """seed: of the micro-batch's random numbers; None without dropout."""
        if seed is not None:
            sow(self.stage, seed + 1 + self.index)
        with auto_cast(self.precision):
            x = x + dropout(exact(self.attention(self.attention_norm(x), tables)), self.dropout)
            return x + dropout(exact(self.mlp(self.mlp_norm(x))), self.dropout)


class Decoder(nn.Module):
    """A decoder-only transformer over pipeline `stages`. Its parameters bear the canonical names."""

    def __init__(self, model, length, stages, recomputed, precision):
        super().__init__()
        self.model, self.first, self.last, self.precision = model, stages[0], stages[-1], precision
        first = self.first
        self.embedding = Embedding(first, model.vocab_size, model.hidden_size)
        if model.positions == "learned":
            self.position = Positions(first, length, model.hidden_size)
        places = [stages[index] for index in stage_of_layers(model.layers, len(stages))]
        blocks = [Block(stage, model, recomputed, precision, index) for index, stage in enumerate(places)]
        self.layers = nn.ModuleList(blocks)
        self.final_norm = norm(self.last, model)
        if not model.tied_embeddings:
            self.head = Columns(self.last, model.hidden_size, model.vocab_size, False)
        self.tables = {id(stage): Tables(stage, model, length) for stage in stages}

    def forward(self, tokens, keep, seed):
        """Tokens [batch, sequence] to hidden states, normed; keep(name, tensor) is shown what comes between.

        seed: of this micro-batch's random numbers; None without dropout.
        """
        if seed is not None:
            sow(self.first, seed)
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

    def head_weight(self):
        """[vocabulary, hidden] on the last stage, split over the vocabulary."""
        return self.last.take(self.embedding.weight) if self.model.tied_embeddings else self.head.weight

    def logits(self, x, weight):
        with auto_cast(self.precision):
            return exact(flow.matmul(self.last.whole(x), weight.T))


def stage_of_layers(layers, stages):
    """Each layer's stage; earlier stages take the remainder."""
    size, extra = divmod(layers, stages)
    return [index for index in range(stages) for _ in range(size + (index < extra))]
