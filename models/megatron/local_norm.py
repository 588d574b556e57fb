"""The norm of Megatron's local layers under sequence parallelism: torch's own, which Megatron refuses there."""

import dataclasses

from megatron.core.transformer.identity_op import IdentityOp
from torch import nn

KINDS = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


class LocalNorm:
    """torch's LayerNorm or RMSNorm, its parameters marked: each tensor-parallel rank has the gradient of its part
    of the sequence, and Megatron sums those of marked parameters over the ranks. Made from Megatron's arguments."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_unused):
        norm = KINDS[config.normalization](hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def use_local_norm(block):
    """Megatron's local block spec with these norms before attention, before the MLP, at the end, and of queries and
    keys where these have one."""
    layers = [_with_norms(each) for each in block.layer_specs]
    return dataclasses.replace(block, layer_specs=layers, layer_norm=LocalNorm)


def _with_norms(layer):
    attention = layer.submodules.self_attention
    if attention.submodules.q_layernorm is not IdentityOp:
        submodules = dataclasses.replace(attention.submodules, q_layernorm=LocalNorm, k_layernorm=LocalNorm)
        attention = dataclasses.replace(attention, submodules=submodules)
    norms = {"input_layernorm": LocalNorm, "pre_mlp_layernorm": LocalNorm}
    submodules = dataclasses.replace(layer.submodules, self_attention=attention, **norms)
    return dataclasses.replace(layer, submodules=submodules)
