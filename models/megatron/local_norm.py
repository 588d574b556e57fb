"""The norm of Megatron's local layers under sequence parallelism: torch's own, which Megatron refuses there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from megatron.core.transformer.identity_op import IdentityOp
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

NORM_CLASSES: dict[str, type[nn.Module]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


class LocalNorm:
    """torch's LayerNorm or RMSNorm, its parameters marked. Made from Megatron's arguments.

    Each tensor-parallel rank has the gradient of its part of the sequence, and Megatron sums those of marked parameters
    over the ranks.
    """

    def __new__(  # type: ignore[misc]  # Megatron calls a class and wants a module
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_unused: Any
    ) -> nn.Module:
        norm = NORM_CLASSES[config.normalization](hidden_size, eps=eps)
        parameters: Iterable[Any] = norm.parameters()
        for parameter in parameters:
            parameter.sequence_parallel = config.sequence_parallel
        return norm


def use_local_norm(block: TransformerBlockSubmodules) -> TransformerBlockSubmodules:
    """Return Megatron's local block spec with these norms before attention, before the MLP and at the end, and of
    queries and keys where these have one."""
    layers = []
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        if attention.submodules.q_layernorm is not IdentityOp:
            submodules = dataclasses.replace(attention.submodules, q_layernorm=LocalNorm, k_layernorm=LocalNorm)
            attention = dataclasses.replace(attention, submodules=submodules)
        norms = {"input_layernorm": LocalNorm, "pre_mlp_layernorm": LocalNorm}
        submodules = dataclasses.replace(layer.submodules, self_attention=attention, **norms)
        layers.append(dataclasses.replace(layer, submodules=submodules))
    return dataclasses.replace(block, layer_specs=layers, layer_norm=LocalNorm)
