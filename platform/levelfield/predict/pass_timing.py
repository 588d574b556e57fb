"""The time of one micro-batch on one rank: the computation of a layer, and the messages between its ranks.

Compute: FLOPs at a share of the chip's rate, bytes at a share of the memory's rate (Williams et al., 2009), and the gap
of each call. The three are added, because kernels of training seldom overlap them. Context ranks exchange keys and
values: in a ring, which attention hides as long as a part computes longer than the next one travels (Liu et al., 2023,
section 3), or by gathers without overlap (Llama team, 2024, section 3.3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.measure.flops import attended_keys
from levelfield.predict.machines import (
    Link,
    MachineRates,
    UnknownLink,
    all_reduce_seconds,
    gather_seconds,
    send_seconds,
)
from levelfield.predict.operations import (
    ATTENTION_BACKWARD_FACTOR,
    BACKWARD_FACTOR,
    CAST_BYTES,
    SCORE_BLOCK,
    Cost,
    RankSlice,
    forward_costs,
)
from levelfield.predict.setup import FP8, TrainingSetup
from levelfield.specs.architecture import Experts
from levelfield.specs.constants import AttentionKernel, Pace, Unfused

# torch tries its kernels in the chip's order and takes the first that can do the work. What each cannot do is in torch
# 2.13's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
DROPOUT_STEPS = 16  # cuDNN's dropout is a multiple of 1/16
# Widths of a head's query and value, backward pass included. cuDNN's kernel takes widths up to the first number, or
# exactly the pair; FlashAttention's takes two equal widths up to the last number.
CUDNN_MAX_WIDTH, CUDNN_WIDTH_PAIR = 128, (192, 128)
FLASH_MAX_WIDTH = 256
DEFAULT_FLASH_KERNEL: AttentionKernel = "flash2"  # of the package, and where torch's order on the chip is not known


@dataclass(frozen=True)
class RankWork:
    """What one rank computes and sends: a setup on a machine, at a program's pace."""

    setup: TrainingSetup
    machine: MachineRates
    pace: Pace
    share: RankSlice  # the part of a micro-batch that it computes

    def link(self, ranks: int, stride: int) -> Link:
        """Return the link of a group of `ranks` whose neighbours are `stride` devices apart. Raises UnknownLink.

        Tensor ranks are closest, then context, data and pipeline. Between nodes, all groups of a node share its
        network.
        """
        machine, share = self.machine, self.pace.communication_efficiency
        is_in_node = ranks * stride <= machine.devices_per_node
        if machine.node is None or not (is_in_node or machine.network):
            endpoints = "devices of a node" if is_in_node else "nodes"
            raise UnknownLink(f"{self.setup.layout}: found no rate of the link between {endpoints}")
        if is_in_node or machine.network is None:
            rate = machine.node.bytes_per_second
            if machine.pair_bytes_per_second is not None:
                # in a mesh without a switch, a small group uses only a few links
                rate = min(rate, machine.pair_bytes_per_second * (ranks - 1))
            return Link(machine.node.hop_seconds, share * rate)
        network_rate = machine.network.bytes_per_second / min(stride, machine.devices_per_node)
        hops = max(1, machine.devices_per_node // stride)  # of a ring in each node, of which one goes over the network
        hop_seconds = (machine.network.hop_seconds + (hops - 1) * machine.node.hop_seconds) / hops
        return Link(
            hop_seconds, min(self.pace.network_efficiency * network_rate, share * machine.node.bytes_per_second)
        )


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of one micro-batch in both directions. They do not depend on stages, chunks and sharded states."""

    layer: float  # the computation of a layer without experts
    embedding: float  # its computation, as of the next
    head: float
    tensor: float  # the messages of a layer between tensor ranks
    context: float  # between context ranks
    mixture: float = 0.0  # the computation of a layer with experts; 0 in a model without
    expert: float = 0.0  # the exchange of its tokens; 0 in a model without experts

    def layers_seconds(self, count: int, mixtures: int) -> float:
        """Return the computation of so many layers, mixtures among them."""
        return self.layer * (count - mixtures) + self.mixture * mixtures


def rank_work(setup: TrainingSetup, machine: MachineRates, pace: Pace) -> RankWork:
    """Return the work of one rank."""
    return RankWork(setup, machine, pace, rank_slice(setup, pace.unfused))


def pass_seconds(rank: RankWork) -> PassSeconds:
    """Return the parts of one micro-batch's time. Raises UnknownLink."""
    costs, mixture = forward_costs(rank.setup.model, rank.share), 0.0
    if rank.setup.model.experts:  # the rank with most tokens sets the pace
        experts = _compute_seconds(rank, _both_directions_cost(rank, costs.experts))
        mixture = _compute_seconds(rank, _both_directions_cost(rank, costs.mixture))
        mixture += experts * rank.pace.expert_imbalance / rank.pace.grouped_efficiency
    return PassSeconds(
        layer=_compute_seconds(rank, _both_directions_cost(rank, costs.dense)),
        embedding=_compute_seconds(rank, costs.embedding * (1 + BACKWARD_FACTOR)),
        head=_compute_seconds(rank, costs.head * (1 + BACKWARD_FACTOR)),
        tensor=_tensor_seconds(rank),
        context=_context_seconds(rank, costs.dense),
        mixture=mixture,
        expert=_token_exchange_seconds(rank),
    )


def rank_slice(setup: TrainingSetup, unfused: tuple[Unfused, ...] = ()) -> RankSlice:
    """Return one rank's share of a micro-batch."""
    return RankSlice(
        tokens=setup.tokens,
        sequence_length=setup.training.sequence_length,
        tensor=setup.layout.tensor,
        split=setup.sequence_split,
        width=setup.width,
        keeps_scores=setup.memory_model.score_bytes > 0,
        gathers_logits=setup.memory_model.gathered_logit_bytes > 0,
        expert=setup.layout.expert,
        unfused=unfused if setup.input_width == FP8 else tuple(kind for kind in unfused if kind not in CAST_BYTES),
    )


def _both_directions_cost(rank: RankWork, layer: Cost) -> Cost:
    """Return the cost of a part of a layer in both directions, with what is computed again in it."""
    attention, memory_model = Cost(attention_flops=layer.attention_flops), rank.setup.memory_model
    cost = layer * (1 + BACKWARD_FACTOR)
    if _fused_attention_rate(rank):
        cost += attention * (ATTENTION_BACKWARD_FACTOR - BACKWARD_FACTOR)
    if rank.setup.tuning.recompute == "none":
        return cost
    if rank.setup.tuning.recompute == "full":
        return cost + layer
    if memory_model.selective_keeps == "all but scores":
        return cost + attention
    products = Cost(matmul_flops=layer.matmul_flops, product_bytes=layer.product_bytes)
    elementwise = Cost(moved_bytes=layer.moved_bytes, operations=layer.operations / 2)
    return cost + (elementwise + products * memory_model.selective_recomputes)


def _fused_attention_rate(rank: RankWork) -> float | None:
    """Return the FLOP/s of attention's core in a fused kernel; None where it runs as products."""
    return (
        None
        if rank.share.keeps_scores
        else rank.machine.attention.get(attention_kernel(rank.setup, rank.machine, rank.pace))
    )


def _compute_seconds(rank: RankWork, cost: Cost) -> float:
    """Return how long one rank computes this cost."""
    pace, rate = rank.pace, rank.machine.matmul_flops_per_second * rank.pace.matmul_efficiency
    weights_rate = rate
    if rank.setup.training.precision == "fp8" and rank.machine.fp8_matmul_flops_per_second:
        weights_rate = rank.machine.fp8_matmul_flops_per_second * pace.matmul_efficiency
    computing_seconds = cost.matmul_flops / weights_rate + cost.core_flops / rate + _attention_seconds(rank, cost, rate)
    moving_seconds = traffic_bytes(cost) / rank.machine.memory_bytes_per_second / pace.memory_efficiency
    return computing_seconds + moving_seconds + cost.operations * (rank.machine.operation_seconds + pace.launch_seconds)


def traffic_bytes(cost: Cost) -> float:
    """Return the bytes that cross the memory's bus."""
    return cost.product_bytes + cost.logit_bytes + cost.moved_bytes


def memory_traffic_bytes(setup: TrainingSetup, pace: Pace) -> float:
    """Return the bytes that a device's memory moves for one micro-batch, over all stages, without the update."""
    model, costs = setup.model, forward_costs(setup.model, rank_slice(setup, pace.unfused))
    mixtures = model.mixture_layers if model.experts else 0
    repeated, mixtures_repeated = setup.total_repeated_layers if setup.tuning.recompute == "full" else (0, 0)
    layers = costs.dense * ((1 + BACKWARD_FACTOR) * (model.layers - mixtures) + repeated - mixtures_repeated)
    if mixtures:
        layers += (costs.mixture + costs.experts) * ((1 + BACKWARD_FACTOR) * mixtures + mixtures_repeated)
    end_costs = costs.embedding + costs.head
    return traffic_bytes(layers + end_costs * (1 + BACKWARD_FACTOR))


def _attention_seconds(rank: RankWork, cost: Cost, product_rate: float) -> float:
    """Return the time of attention's core. A fused kernel computes the blocks on the diagonal whole."""
    fused_rate = _fused_attention_rate(rank)
    if fused_rate is None:
        return cost.attention_flops / product_rate
    keys = attended_keys(rank.setup.model, rank.share.sequence_length)
    return cost.attention_flops * (1 + SCORE_BLOCK / (2 * keys)) / fused_rate


def _tensor_seconds(rank: RankWork) -> float:
    """Return the tensor-parallel communication of one micro-batch in one layer.

    Each layer has two all-reduces forward and two backward; recomputing a layer adds two. Sequence parallelism
    replaces each by a gather and a scatter of the same bytes, and adds two gathers to the backward pass
    (Korthikanti et al., 2022, section 4.2.2).
    """
    ranks = rank.setup.layout.tensor
    if ranks == 1:
        return 0.0
    link = rank.link(ranks, 1)
    size = rank.share.width * rank.share.tokens * rank.setup.model.hidden_size
    calls = 6 if rank.setup.tuning.recompute == "full" else 4
    if rank.setup.layout.sequence_parallel:
        layer = (calls + 2) * gather_seconds(size, ranks, rank.machine.gather or link)
        layer += calls * gather_seconds(size, ranks, rank.machine.scatter or link)
    else:
        layer = calls * all_reduce_seconds(size, ranks, link)
    return layer * (1 - rank.pace.tensor_overlap)


def _context_seconds(rank: RankWork, layer: Cost) -> float:
    """Return the exchange of keys and values of one micro-batch in one layer that no computation hides.

    The forward pass moves keys and values; the backward pass moves them again, and their gradients. Recomputation
    repeats the forward pass. In each round of a ring a part comes while attention computes with the one before; the
    backward pass sends the gradients with it.
    """
    ranks, size = rank.setup.layout.context, rank.setup.key_value_bytes
    if ranks == 1:
        return 0.0
    link = rank.link(ranks, rank.setup.layout.tensor)
    if rank.setup.memory_model.gathers_keys_values:  # attention waits for all of them
        forward = gather_seconds(ranks * size, ranks, link)
        backward = 2 * forward
    else:
        core = Cost(attention_flops=layer.attention_flops)
        attention = (
            _attention_seconds(rank, core, rank.machine.matmul_flops_per_second * rank.pace.matmul_efficiency) / ranks
        )
        backward_attention = (ATTENTION_BACKWARD_FACTOR if _fused_attention_rate(rank) else BACKWARD_FACTOR) * attention
        forward = (ranks - 1) * max(0.0, send_seconds(size, link) - attention)
        backward = (ranks - 1) * max(0.0, send_seconds(2 * size, link) - backward_attention)
    passes = 1 if rank.setup.tuning.recompute == "none" else 2
    return passes * forward + backward


def attention_kernel(setup: TrainingSetup, machine: MachineRates, pace: Pace) -> AttentionKernel:
    """Return the kernel of a layout's attention."""
    if pace.attention != "sdpa":
        return pace.attention
    if setup.tuning.attention == "flash_attn" or not machine.sdpa:
        return DEFAULT_FLASH_KERNEL
    widths, dropout = setup.model.head_widths, setup.model.attention_dropout
    fits_cudnn = widths == CUDNN_WIDTH_PAIR or (
        max(widths) <= CUDNN_MAX_WIDTH and not any(width % 8 for width in widths)
    )
    is_masked = setup.model.sliding_window is not None or (setup.layout.context > 1 and dropout > 0)
    supports: dict[AttentionKernel, bool] = {
        "cudnn": fits_cudnn and (dropout * DROPOUT_STEPS).is_integer(),
        "flash2": not is_masked and len(set(widths)) == 1 and max(widths) <= FLASH_MAX_WIDTH,
    }
    return next((kernel for kernel in machine.sdpa if supports.get(kernel, True)), "materialised")


def _token_exchange_seconds(rank: RankWork) -> float:
    """Return the all-to-alls of one micro-batch in one layer that no computation hides. Raises UnknownLink.

    Each layer sends tokens to their experts and gets the results back (Lepikhin et al., 2020, section 3.2), forward and
    backward. A rank sends to all others at once: what stays in its node goes by the node's links, and beside it what
    leaves goes by the rank's share of the network. A token may be sent to each expert that it chose, or once to every
    node that has one of them and on by the node's links (DeepSeek-AI, 2024, V3, section 3.2.2). With sequence
    parallelism each tensor rank sends its part of the tokens, and the tensor ranks of an expert gather what came.
    """
    layout, parts = rank.setup.layout, rank.share.split
    if layout.expert == 1 or rank.setup.model.experts is None:
        return 0.0
    # tensor ranks lie between neighbours
    node_ranks = min(layout.expert, max(1, rank.machine.devices_per_node // layout.tensor))
    call_seconds = _internode_seconds(rank, node_ranks, rank.setup.model.experts)
    if node_ranks > 1:  # the ranks of the group in this node
        link = rank.link(node_ranks, layout.tensor)
        arriving_share = (
            1.0 if rank.pace.dispatch == "nodes" else node_ranks / layout.expert
        )  # those of other nodes are sent on
        in_node_seconds = (node_ranks - 1) * (
            link.hop_seconds + arriving_share * exchanged_bytes(rank.setup) / node_ranks / link.bytes_per_second
        )
        call_seconds = max(in_node_seconds, call_seconds)
    if parts > 1:
        call_seconds += gather_seconds(parts * exchanged_bytes(rank.setup), parts, rank.link(parts, 1))
    calls = 6 if rank.setup.tuning.recompute == "full" else 4
    return calls * call_seconds * rank.pace.expert_imbalance * (1 - rank.pace.expert_overlap)


def exchanged_bytes(s: TrainingSetup) -> int:
    """Return the bytes that one rank sends in one exchange, to itself too: its tokens for each chosen expert."""
    return s.width * s.routed_tokens * s.model.hidden_size // s.sequence_split


def _internode_seconds(rank: RankWork, node_ranks: int, experts: Experts) -> float:
    """Return the exchange between nodes, of which `node_ranks` ranks of a group are in each.

    The router takes all experts alike. Where a token is sent once to each of the other nodes that have an expert of it,
    these are n (1 - (1 - 1/n)^k) nodes without groups, with them at most those of its groups.
    """
    other_ranks = rank.setup.layout.expert - node_ranks
    if other_ranks == 0:
        return 0.0
    network = rank.machine.network
    if network is None:
        raise UnknownLink(f"{rank.setup.layout}: found no rate of the link between nodes")
    share = rank.pace.network_efficiency / rank.machine.devices_per_node
    if rank.pace.dispatch == "experts":
        copies = experts.chosen * other_ranks / rank.setup.layout.expert
    else:
        nodes, groups = rank.setup.layout.expert // node_ranks, experts.router.groups
        reached_nodes = nodes * (1 - (1 - 1 / nodes) ** experts.chosen)
        if groups is not None:
            reached_nodes = min(reached_nodes, groups.chosen * math.ceil(nodes / groups.count))
        copies = reached_nodes * (nodes - 1) / nodes
    outgoing_bytes = rank.share.width * rank.share.tokens * rank.setup.model.hidden_size * copies / rank.share.split
    return other_ranks / node_ranks * network.hop_seconds + outgoing_bytes / (share * network.bytes_per_second)
