"""The work of one pipeline stage for one micro-batch, counted from the case: FLOPs, bytes and launches.

FLOPs follow the `megatron` formula (flops.py): two per multiply-add, and half of attention where the kernel skips the
masked part. Bytes are the memory traffic when every operation reads its inputs and writes its outputs once. The
backward pass does twice the work of the forward pass (Korthikanti et al., 2022, appendix A). A fused attention kernel
also computes the scores again, so that its backward pass does 2.5 times the work (Dao, 2023, section 4.1).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from levelfield.measure.flops import attended_keys, attention_core_width
from levelfield.measure.parameter_counts import layer_matrices
from levelfield.specs.architecture import Model
from levelfield.specs.constants import Unfused

FP32 = 4
BACKWARD_FACTOR = 2.0
ATTENTION_BACKWARD_FACTOR = 2.5
# The side of a fused kernel's blocks of scores. Blocks on the diagonal are computed whole (Dao, 2023, section 3.1).
SCORE_BLOCK = 128
# Passes over the logits: one write, three reads (maximum, sum of exponentials, loss), and two for the gradient.
LOGIT_PASSES = 6
SCORE_PASSES = 4  # one write, one kernel of softmax, mask and dropout (read, write), one read for the weighted values
# The approximate number of calls of a layer's forward pass: 2 norms, 7 products, 2 rotations, attention, 3 for the
# activation and 4 for dropout and residual sums.
LAYER_OPERATIONS = 20
# The same of experts: the router's product and scores, the choice, two sorts, two permutations, three grouped products
# with their activation, and the weighted sum.
EXPERT_OPERATIONS = 12
# What separate calls cost, compared with one fused kernel: traffic, and calls of a forward pass. A norm in 32 bits
# casts, squares, averages, scales, casts back and weights: 36 bytes of a 16-bit value for 4, and more in the backward
# pass. A gate's activation writes its result before the product. A rotation multiplies and joins halves. The experts'
# outputs are put into slots, multiplied by the gates in 32 bits and summed slot by slot, where one kernel reads them
# once; the calls of EXPERT_OPERATIONS cover that (120 kernels of a layer in both directions were rehearsed).
UNFUSED_TRAFFIC: dict[Unfused, float] = {"norms": 9, "activation": 5 / 3, "rotation": 5, "gates": 10}
UNFUSED_CALLS: dict[Unfused, int] = {
    "norms": 14,
    "activation": 1,
    "rotation": 8,
    "gates": 0,
    "casts": 0,
    "row casts": 0,
}
# Bytes of a step that such casts move for each input and gradient of a product, and for each weight, beyond fused ones:
# torchao's own count (torchao/testing/training/roofline_utils.py: 6 and 8, by rows 8 and 10), less two of each, as it
# reads operands of products in one byte, and the traffic here counts two in three products.
CAST_BYTES: dict[Unfused, tuple[float, float]] = {"casts": (4, 6), "row casts": (6, 8)}
EXPERT_PREFIX = "mlp.experts."  # the beginning of their matrices' names
ROUTER_PASSES = 4  # over the router's logits, in 32 bits: one write, scores (read, write), one read for the choice


@dataclass(frozen=True)
class Cost:
    """The cost of some operations: FLOPs, bytes of memory traffic and calls."""

    matmul_flops: float = 0.0  # of products with a layer's weights, which fp8 speeds up
    core_flops: float = 0.0  # of the other products
    attention_flops: float = 0.0  # of queries with keys and of scores with values
    product_bytes: float = 0.0  # operands and results of products
    logit_bytes: float = 0.0  # the memory traffic of the loss
    moved_bytes: float = 0.0  # the memory traffic of everything else
    operations: float = 0.0  # calls of the framework

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(operator.add, vars(self).values(), vars(other).values()))

    def __mul__(self, times: float) -> Cost:
        return Cost(*(part * times for part in vars(self).values()))


@dataclass(frozen=True)
class RankSlice:
    """One rank's share of a micro-batch."""

    tokens: int  # of the micro-batch
    sequence_length: int
    tensor: int  # the tensor-parallel ranks
    split: int  # the ranks that divide the work outside the tensor-parallel regions
    width: int  # bytes of a compute value
    keeps_scores: bool  # attention writes all scores to memory, with the masked half
    gathers_logits: bool = False  # every tensor rank computes the loss from the logits of the whole vocabulary
    expert: int = 1  # the ranks that divide the experts
    unfused: tuple[Unfused, ...] = ()  # what the program computes in several calls

    def traffic(self, kind: Unfused) -> float:
        """Return the traffic of this work over that of a fused kernel."""
        return UNFUSED_TRAFFIC[kind] if kind in self.unfused else 1


class ForwardCosts(NamedTuple):
    """The cost of the forward pass by part, on one rank."""

    dense: Cost  # of a layer with an MLP
    mixture: Cost  # of a layer with experts, without the chosen experts
    experts: Cost  # of a layer's chosen experts
    embedding: Cost
    head: Cost


@lru_cache(maxsize=4096)  # kinds of recomputation share them
def forward_costs(model: Model, share: RankSlice) -> ForwardCosts:
    """Return the cost of each part of the forward pass for one rank's share of a micro-batch."""
    return ForwardCosts(
        dense=layer_forward_cost(model, share),
        mixture=layer_forward_cost(model, share, is_mixture=True) if model.experts else Cost(),
        experts=experts_forward_cost(model, share),
        # lookup of tokens, positions and dropout, which have no matrix products
        embedding=Cost(moved_bytes=4.0 * share.width * share.tokens * model.hidden_size / share.split, operations=4),
        head=head_forward_cost(model, share),
    )


def layer_forward_cost(model: Model, share: RankSlice, is_mixture: bool = False) -> Cost:
    """Return the cost of one layer's forward pass on one tensor rank. Of a mixture it has the shared experts and the
    router; the chosen ones are those of `experts_forward_cost`."""
    layer = next((n for n in range(model.layers) if model.is_mixture(n) == is_mixture), 0) if model.experts else 0
    layer_shapes, routed_prefixes = layer_matrices(model, layer), (EXPERT_PREFIX, "mlp.router")
    # those that every token uses, without the router's
    matrices = {n: s for n, s in layer_shapes.items() if not (model.experts and n.startswith(routed_prefixes))}
    weights = sum(map(math.prod, matrices.values())) / share.tensor
    keys = share.sequence_length if share.keeps_scores else attended_keys(model, share.sequence_length)
    router_logits = 1.0 * share.tokens * model.experts.count / share.split if is_mixture and model.experts else 0.0
    # products read inputs and weights and write outputs; tensor parallelism splits one side of each
    sides, hidden_sides = sum(map(sum, matrices.values())), model.hidden_size * len(matrices)
    product_bytes = share.width * (share.tokens * (hidden_sides + (sides - hidden_sides) / share.tensor) + weights)
    score_bytes = 0.0
    if share.keeps_scores:
        score_bytes = SCORE_PASSES * share.width * share.tokens * share.sequence_length * model.heads / share.tensor
    # values of each token that are read or written: two norms (read, write) and residual sums (two reads, one write),
    # activation, rotation, and norms of queries and keys or of latents
    hidden_values = 2 * (model.norms_per_layer * share.traffic("norms") + 3) * model.hidden_size / share.split
    shared_width = model.experts.shared * model.experts.ffn_hidden_size if is_mixture and model.experts else None
    mlp_tensors = 3 * share.traffic("activation") if model.is_gated else 2
    activation_values = mlp_tensors * (model.ffn_hidden_size if shared_width is None else shared_width) / share.tensor
    latent = model.latent_attention
    if latent is not None:
        rotated_values = 2 * ((model.heads + 1) * latent.rotary_size + (latent.query_rank or 0) + latent.key_value_rank)
    else:
        width_passes = (2 if model.positions == "rope" else 0) + (2 if model.query_key_norm_widths else 0)
        rotated_values = width_passes * (model.heads + model.kv_heads) * model.head_size
    rotation_values = share.traffic("rotation") * rotated_values / share.tensor
    elementwise_bytes = share.width * share.tokens * (hidden_values + activation_values + rotation_values)
    for kind in share.unfused:
        value_bytes, weight_bytes = CAST_BYTES.get(kind, (0, 0))
        values = hidden_sides / share.split + (sides - hidden_sides) / share.tensor  # cast before they are gathered
        elementwise_bytes += (value_bytes * share.tokens * values + weight_bytes * weights) / (1 + BACKWARD_FACTOR)
    return Cost(
        matmul_flops=2.0 * share.tokens * weights,
        core_flops=2.0 * router_logits * model.hidden_size,
        attention_flops=4.0 * share.tokens * keys * attention_core_width(model) / share.tensor,
        product_bytes=product_bytes,
        moved_bytes=elementwise_bytes + score_bytes + FP32 * ROUTER_PASSES * router_logits,
        operations=LAYER_OPERATIONS + sum(UNFUSED_CALLS[kind] for kind in share.unfused),
    )


def experts_forward_cost(model: Model, share: RankSlice) -> Cost:
    """Return the cost of the chosen experts' forward pass on one rank, where all experts have equally many tokens.

    Tokens are permuted before and after; with expert ranks they are sorted again where they arrive, and before they
    leave.
    """
    experts = model.experts
    if experts is None:
        return Cost()
    routed_tokens = share.tokens * experts.chosen
    matrices = {n: s[1:] for n, s in layer_matrices(model, experts.first_layer).items() if n.startswith(EXPERT_PREFIX)}
    weights = sum(map(math.prod, matrices.values())) / share.tensor
    sides = sum(map(sum, matrices.values())) - model.hidden_size * len(matrices)
    sorts = 2 if share.expert > 1 else 1
    permuted_values = 2 * model.hidden_size * (share.tokens + (2 * sorts - 1) * routed_tokens)
    weighed_values = (share.traffic("gates") - 1) * routed_tokens * model.hidden_size
    activation_values = (3 if model.is_gated else 2) * experts.ffn_hidden_size / share.tensor
    return Cost(
        matmul_flops=2.0 * routed_tokens * weights,
        product_bytes=share.width * (routed_tokens * (model.hidden_size * len(matrices) + sides / share.tensor))
        + share.width * weights * experts.count / share.expert,
        moved_bytes=share.width * (permuted_values + weighed_values + routed_tokens * activation_values),
        operations=EXPERT_OPERATIONS,
    )


def head_forward_cost(model: Model, share: RankSlice) -> Cost:
    """Return the cost of the last stage's logits and loss."""
    vocabulary = model.vocab_size / share.tensor
    flops = 2.0 * share.tokens * model.hidden_size * vocabulary
    pass_bytes = FP32 * LOGIT_PASSES / (1 + BACKWARD_FACTOR)  # both directions together
    operand_bytes = share.width * model.hidden_size * (share.tokens + vocabulary)
    logit_bytes = share.tokens * pass_bytes * (model.vocab_size if share.gathers_logits else vocabulary)
    return Cost(core_flops=flops, product_bytes=operand_bytes, logit_bytes=logit_bytes, operations=LAYER_OPERATIONS / 2)
