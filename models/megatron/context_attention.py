"""Megatron's local attention under context parallelism, which Megatron has in transformer-engine's attention only."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.dot_product_attention import DotProductAttention
from sequence import Sequence

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class ContextAttention(DotProductAttention):
    """Attention of a rank's queries over the keys and values of all context-parallel ranks, which it gathers."""

    def __init__(self, config: TransformerConfig, **options: Any) -> None:
        single_rank_config = copy.copy(config)
        single_rank_config.context_parallel_size = 1  # with more, Megatron's own refuses
        super().__init__(single_rank_config, **options)
        self.window_before = (self.scale_mask_softmax.window_size or (None,))[0]
        self.scale_mask_softmax.window_size = None  # the mask below has it

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        """Attend to the whole sequence; there is one mask, the causal one.

        query, key, value: [part of the sequence, batch, heads, head_dim]. Returns [part, batch, heads * head_dim].
        """
        group = self.pg_collection.cp
        # both [sequence, batch, kv_heads, head_dim]: the parts of the ranks, one after another
        key, value = (gather_from_sequence_parallel_region(tensor, group=group) for tensor in (key, value))
        ranks = range(group.size())
        positions_by_rank = [Sequence(len(key), group.size(), rank, query.device).places for rank in ranks]
        ahead = torch.cat(positions_by_rank)[None, :] - positions_by_rank[group.rank()][:, None]  # [part, sequence]
        is_hidden = ahead > 0
        if self.window_before is not None:
            is_hidden |= ahead < -self.window_before
        mask = is_hidden[None, None]  # [1, 1, part, sequence]
        mixed: torch.Tensor = super().forward(query, key, value, mask, **options)
        return mixed


def use_context_attention(block: TransformerBlockSubmodules) -> TransformerBlockSubmodules:
    """Return Megatron's local block spec with this attention in each layer."""
    layers = []
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        submodules = dataclasses.replace(attention.submodules, core_attention=ContextAttention)
        attention = dataclasses.replace(attention, submodules=submodules)
        submodules = dataclasses.replace(layer.submodules, self_attention=attention)
        layers.append(dataclasses.replace(layer, submodules=submodules))
    return dataclasses.replace(block, layer_specs=layers)
