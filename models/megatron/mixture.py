"""A mixture of experts in Megatron-Core's own terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from definite_router import DefiniteRouter
from levelfield.worker import is_mixture, part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from levelfield.worker.architecture import Model
    from torch import nn


def mixture(model: Model) -> dict[str, Any]:
    """Return what the TransformerConfig needs for the case's experts; nothing for a model without.

    The choice of experts, its losses and the moving of the bias are the definition's: see definite_router.py.
    """
    experts = part(model, "experts")
    if experts is None:
        return {}
    router, shared = experts.router, experts.shared * experts.ffn_hidden_size
    return {
        "num_moe_experts": experts.count,
        "moe_ffn_hidden_size": experts.ffn_hidden_size,
        "moe_layer_freq": [int(is_mixture(model, layer)) for layer in range(model.layers)],
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_router_topk": experts.chosen,
        "moe_router_pre_softmax": True,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_router_enable_expert_bias": router.bias_rate > 0,
        "moe_router_bias_update_rate": router.bias_rate,
        # Megatron allows a bias beside sigmoid only
        "moe_router_score_function": "sigmoid" if router.bias_rate else router.scores,
        # the other one sums the experts' outputs over the ranks, in an order that follows from the layout
        "moe_token_dispatcher_type": "alltoall",
    }


def list_routers(chunks: Iterable[nn.Module]) -> list[DefiniteRouter]:
    """Return the routers of some model chunks, in the order of their layers."""
    return [module for chunk in chunks for module in chunk.modules() if isinstance(module, DefiniteRouter)]
