"""A decoder of GPT's or Llama's family as one reads it: its MLPs, a block, and the stack between embedding and head.

Norms, linear layers and positions: layers.py. Attention: attention.py, or latent.py. The head with its loss:
head_loss.py. A mixture of experts in place of an MLP: mixture.py. How ranks divide all this: ../parallelism.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from levelfield.worker import head_size, is_mixture, is_rotated, part
from model.attention import Attention, rotary_tables
from model.head_loss import EmbeddingHead, Head, head_scores
from model.kernels import chosen
from model.layers import GATES, Linear, Positions, dropout, gated, joint_of, norm
from model.tied import TiedGradient, tied_embedding
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from levelfield.worker.architecture import Model
    from parallelism.context_parallel import Attend, SequenceShare


class MLP(nn.Module):
    """GPT's (Radford et al., 2019): down(gelu(up(x))).

    `gelu` is the erf form, `gelu_tanh` the tanh one (Hendrycks and Gimpel, 2016).
    """

    def __init__(self, model: Model | SimpleNamespace) -> None:
        super().__init__()
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)
        self.form = {"gelu": "none", "gelu_tanh": "tanh"}[model.activation]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.form))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """Llama's and Gemma's (Shazeer, 2020): down(silu(gate(x)) * up(x)), or gelu in its tanh form for silu."""

    def __init__(self, model: Model | SimpleNamespace) -> None:
        super().__init__()
        self.gate = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)
        self.activation = model.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if joint_of([self.gate, self.up]) is None:
            return self.down(gated(self.activation, self.gate(x), self.up(x)))  # type: ignore[no-any-return]
        return self.down(  # type: ignore[no-any-return]
            chosen("swiglu").gated(self.activation, self.gate(x))  # type: ignore[union-attr]
        )

    def joinable_layers(self) -> list[list[nn.Module]]:
        """Return the groups of layers that StepCasts may join.

        Without the kernel their gradients would have to be joined.
        """
        return [] if chosen("swiglu") is None else [[self.gate, self.up]]


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or x + norm(attention(x)), then x + norm(mlp(x)) (OLMo 2); or
    x + attention(norm(x)) + mlp(norm(x)), of one norm (GPT-J) or of two (GPT-NeoX).

    The case chooses the norm, the attention and the MLP, each by itself, and a factor of what they add to x.
    """

    def __init__(
        self,
        model: Model,
        attend: Attend,
        layer: int,
        sequence_length: int,
    ) -> None:
        super().__init__()
        self.attention_norm = norm(model)
        self.attention = attention_of(model)(model, attend)
        self.parallel_residual = part(model, "parallel_residual")
        if self.parallel_residual != "one_norm":
            self.mlp_norm = norm(model)
        self.mlp = mlp(model, layer, sequence_length)
        self.dropout, self.norm_after = model.hidden_dropout, part(model, "norm_place") == "after"
        self.residual_scale, self.is_rotated = part(model, "residual_scale"), is_rotated(model, layer)

    def forward(self, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor] | None = None) -> torch.Tensor:
        """Return the block's output of x, both [batch, sequence, hidden]."""
        rotary = rotary if self.is_rotated else None
        if self.parallel_residual is not None:
            normed = self.attention_norm(x)
            mlp_input = normed if self.parallel_residual == "one_norm" else self.mlp_norm(x)
            return x + self.addend(self.attention(normed, rotary)) + self.addend(self.mlp(mlp_input))
        if self.norm_after:
            x = x + self.addend(self.attention_norm(self.attention(x, rotary)))
            return x + self.addend(self.mlp_norm(self.mlp(x)))
        kernel = chosen("add_norm")
        if kernel is None:
            x = x + self.addend(self.attention(self.attention_norm(x), rotary))
            return x + self.addend(self.mlp(self.mlp_norm(x)))
        x, normed = self.attention_norm(x, kernel=kernel)
        x, normed = self.mlp_norm(x, self.addend(self.attention(normed, rotary)), kernel=kernel)
        return x + self.addend(self.mlp(normed))

    def addend(self, y: torch.Tensor) -> torch.Tensor:
        """Return what is added to the residual stream of a part's output y, both [batch, sequence, hidden]."""
        y = dropout(y, self.dropout)
        return y if self.residual_scale is None else y * self.residual_scale


class Decoder(nn.Module):
    """A decoder-only transformer. Its parameters bear the canonical names (levelfield.worker's list).

    stage: which layers, and whether the first and last stage's parts, this process holds.
    With tied embeddings the last stage holds the embedding too, as its head.
    attend: gives a layer's attention by its number, which sliding windows of some layers need.
    share: this rank's part of each sequence (context_parallel.py), which it is given of tokens and targets; None: all.
    """

    def __init__(
        self,
        model: Model,
        sequence_length: int,
        dtype: torch.dtype,
        stage: SimpleNamespace,
        attend: Callable[[int], Attend],
        share: SequenceShare | None = None,
    ) -> None:
        super().__init__()
        self.rotary: tuple[torch.Tensor, torch.Tensor] | None  # of rope, after `prepare`
        self.tied: TiedGradient | None
        self.share = share
        self.model, self.length, self.dtype, self.stage = model, sequence_length, dtype, stage
        if stage.first or (stage.last and model.tied_embeddings):
            embedding = EmbeddingHead if stage.last and model.tied_embeddings else nn.Embedding
            self.embedding = embedding(model.vocab_size, model.hidden_size)
        if stage.first and model.positions == "learned":
            self.position = Positions(sequence_length, model.hidden_size)
        self.layers = nn.ModuleDict(
            {str(index): Block(model, attend(index), index, sequence_length) for index in stage.layers}
        )
        if stage.last:
            self.final_norm = norm(model)
        if stage.last and not model.tied_embeddings:
            self.head = Head(model.hidden_size, model.vocab_size)
        self.rotary = self.tied = None

    def prepare(self, device: torch.device) -> None:
        """Compute the constant tables, which are no parameters, on `device`, where the parameters now lie."""
        model, stage = self.model, self.stage
        if model.positions == "rope":
            scaling, latent = part(model, "rope_scaling"), part(model, "latent_attention")
            width = (part(model, "rotary_dim") or head_size(model)) if latent is None else latent.rotary_size
            self.rotary = rotary_tables(
                width,
                self.length,
                model.rope_base,  # type: ignore[arg-type]  # rope has one
                device,
                self.dtype,
                scaling,
            )
            if self.share is not None:
                self.rotary = tuple(  # type: ignore[assignment]
                    table[self.share.positions.to(device)] for table in self.rotary
                )
        for layer, block in self.layers.items():
            if is_mixture(model, int(layer)):
                block.mlp.prepare(device, self.share)  # type: ignore[operator, union-attr]
        is_one_process = stage.first and stage.last and not isinstance(self.embedding.weight, DTensor)
        if model.tied_embeddings and is_one_process and device.type == "cpu":
            self.tied = TiedGradient()  # elsewhere its sums would depend on the order of threads

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        """Run this rank's stage.

        x: tokens [batch, sequence] on the first stage, hidden [batch, sequence, hidden] on the others.

        Returns on the last stage, given targets [batch, sequence], scale times the mean loss, as a float32
        tensor of one element; logits without targets; on the other stages the hidden state.
        """
        x = self.hidden(x)
        return self.scores(x, targets, scale) if self.stage.last else x

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Return what `forward` computes before the head, [batch, sequence, hidden]."""
        x = self.embed(x) if self.stage.first else x
        for block in self.layers.values():
            x = block(x, self.rotary)
        return self.final_norm(x) if self.stage.last else x

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden state [batch, sequence, hidden] of tokens [batch, sequence]."""
        x = self.embedding(tokens) if self.tied is None else tied_embedding(tokens, self.embedding.weight, self.tied)
        scale = part(self.model, "embedding_scale")
        x = x if scale is None else x * scale
        if self.model.positions == "learned":
            x = x + self.learned_positions(tokens.shape[1])
        return dropout(x.to(self.dtype), self.model.hidden_dropout)

    def learned_positions(self, length: int) -> torch.Tensor:
        """Return the positions of the tokens that this rank embeds, [length, hidden].

        Under sequence parallelism they are a part of its share's.
        """
        if self.share is None:
            return self.position(length)  # type: ignore[no-any-return]
        return self.position(self.length)[  # type: ignore[no-any-return]
            self.share.embedded.to(self.position.weight.device)
        ]

    def scores(self, x: torch.Tensor, targets: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        """Return what `forward` returns on the last stage, from the final norm's output."""
        factor = part(self.model, "logit_scale")
        x = x if factor is None else x * factor  # the head has no bias
        if self.model.tied_embeddings:
            return head_scores(
                self.embedding,  # type: ignore[arg-type]  # an EmbeddingHead, as it is tied
                x,
                targets,
                scale,
                self.tied,
            )
        return self.head(x, targets, scale)  # type: ignore[no-any-return]


def attention_of(model: Model) -> type[nn.Module]:
    """Return the class of the model's attention."""
    if part(model, "latent_attention") is None:
        return Attention
    from model.latent import LatentAttention

    return LatentAttention


def mlp(model: Model, layer: int, sequence_length: int) -> nn.Module:
    """Return the MLP of layer `layer`, or the mixture of experts in its place."""
    kind = GatedMLP if model.activation in GATES else MLP
    if not is_mixture(model, layer):
        return kind(model)
    from model.mixture import Mixture, shared_experts

    shared = shared_experts(model)
    return Mixture(model, layer, sequence_length, None if shared is None else kind(shared))


def stage_of(layers: int, stages: int, index: int) -> SimpleNamespace:
    """Return the part of `layers` layers that stage `index` of `stages` holds; earlier stages take the remainder."""
    size, extra = divmod(layers, stages)
    start = index * size + min(index, extra)
    layers = tuple(range(start, start + size + (index < extra)))  # type: ignore[assignment]  # their numbers
    return SimpleNamespace(layers=layers, first=index == 0, last=index == stages - 1)


def compute_dtype(precision: str) -> torch.dtype:
    """Return the activations' dtype; fp8 keeps them in bfloat16."""
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
    return dtypes[precision]
