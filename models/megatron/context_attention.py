"""Megatron's local attention under context parallelism, which Megatron has in transformer-engine's attention only."""

import copy
import dataclasses

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.dot_product_attention import DotProductAttention
from sequence import Sequence


class ContextAttention(DotProductAttention):
    """Attention of a rank's queries over the keys and values of all context-parallel ranks, which it gathers."""

    def __init__(self, config, **given):
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # with more, Megatron's own refuses
        super().__init__(alone, **given)
        self.earlier = (self.scale_mask_softmax.window_size or (None,))[0]
        self.scale_mask_softmax.window_size = None  # the mask below has it

    def forward(self, query, key, value, attention_mask, **given):
        """query, key, value: [part of the sequence, batch, heads, head size]; there is one mask, the causal one."""
        group = self.pg_collection.cp
        key, value = (gather_from_sequence_parallel_region(each, group=group) for each in (key, value))
        places = [Sequence(len(key), group.size(), rank, query.device).places for rank in range(group.size())]
        ahead = torch.cat(places)[None, :] - places[group.rank()][:, None]
        hidden = ahead > 0
        if self.earlier is not None:
            hidden |= ahead < -self.earlier
        return super().forward(query, key, value, hidden[None, None], **given)


def use_context_attention(block):
    """Megatron's local block spec with this attention in each layer."""
    return dataclasses.replace(block, layer_specs=[_with_context(each) for each in block.layer_specs])


def _with_context(layer):
    attention = layer.submodules.self_attention
    submodules = dataclasses.replace(attention.submodules, core_attention=ContextAttention)
    attention = dataclasses.replace(attention, submodules=submodules)
    return dataclasses.replace(layer, submodules=dataclasses.replace(layer.submodules, self_attention=attention))
