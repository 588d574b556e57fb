"""The time of the all-to-alls between the ranks that divide the experts of a mixture.

Each layer sends tokens to their experts and gets the results back (Lepikhin et al., 2020, section 3.2), forward and
backward. A rank sends to all others at once: what stays in its node goes by the node's links, and beside it what leaves
goes by the rank's share of the network. A token may be sent to each expert that it chose, or once to every node that
has one of them and on by the node's links (DeepSeek-AI, 2024, V3, section 3.2.2). With sequence parallelism each
tensor rank sends its part of the tokens, and the tensor ranks of an expert gather what came.
"""

from __future__ import annotations

import math

from levelfield.predict.links import MachineRates, UnknownLink, gather_seconds, link_of
from levelfield.predict.setup import TrainingSetup
from levelfield.specs.architecture import Experts
from levelfield.specs.constants import Pace


def exchange_seconds(s: TrainingSetup, machine: MachineRates, pace: Pace) -> float:
    """Return the exchanges of one micro-batch in one layer that no computation hides. Raises UnknownLink."""
    if s.layout.expert == 1 or s.model.experts is None:
        return 0.0
    calls = 6 if s.tuning.recompute == "full" else 4
    one = max(_inside_seconds(s, machine, pace), _between_seconds(s, machine, pace)) + _gathered(s, machine, pace)
    return calls * one * pace.expert_imbalance * (1 - pace.expert_overlap)


def exchanged_bytes(s: TrainingSetup) -> int:
    """Return the bytes that one rank sends in one exchange, to itself too: its tokens for each chosen expert."""
    return s.width * s.routed_tokens * s.model.hidden_size // _parts(s)


def _parts(s: TrainingSetup) -> int:
    """Return the tensor ranks that send different tokens."""
    return s.layout.tensor if s.layout.sequence_parallel else 1


def _gathered(s: TrainingSetup, machine: MachineRates, pace: Pace) -> float:
    """Return the gather, or the scatter on the way back, of what came to the tensor ranks of an expert."""
    ranks = _parts(s)
    if ranks == 1:
        return 0.0
    return gather_seconds(ranks * exchanged_bytes(s), ranks, link_of(s.layout, machine, pace, ranks, 1))


def _near(s: TrainingSetup, machine: MachineRates) -> int:
    """Return the ranks of a group in one node. Tensor ranks lie between neighbours."""
    return min(s.layout.expert, max(1, machine.devices_per_node // s.layout.tensor))


def _inside_seconds(s: TrainingSetup, machine: MachineRates, pace: Pace) -> float:
    near = _near(s, machine)
    if near == 1:
        return 0.0
    link = link_of(s.layout, machine, pace, near, s.layout.tensor)
    arriving = 1.0 if pace.dispatch == "nodes" else near / s.layout.expert  # tokens of other nodes are sent on
    return (near - 1) * (link.hop_seconds + arriving * exchanged_bytes(s) / near / link.bytes_per_second)


def _between_seconds(s: TrainingSetup, machine: MachineRates, pace: Pace) -> float:
    near = _near(s, machine)
    others = s.layout.expert - near
    if others == 0:
        return 0.0
    if machine.network is None:
        raise UnknownLink(f"{s.layout}: found no rate of the link between nodes")
    share = (pace.network_efficiency or pace.communication_efficiency) / machine.devices_per_node
    leaving = s.width * s.tokens * s.model.hidden_size * _copies(s, near, pace) / _parts(s)
    return others / near * machine.network.hop_seconds + leaving / (share * machine.network.bytes_per_second)


def _copies(s: TrainingSetup, near: int, pace: Pace) -> float:
    """Return how often a token leaves its node, where the router takes all experts alike."""
    experts, ranks = s.model.experts, s.layout.expert
    assert experts is not None
    if pace.dispatch == "experts":
        return experts.chosen * (ranks - near) / ranks
    nodes = ranks // near
    return _nodes_of(experts, nodes) * (nodes - 1) / nodes


def _nodes_of(experts: Experts, nodes: int) -> float:
    """Return the mean number of nodes that have an expert of a token: without groups n (1 - (1 - 1/n)^k), with them at
    most those of its groups."""
    spread = nodes * (1 - (1 - 1 / nodes) ** experts.chosen)
    groups = experts.router.groups
    if groups is None:
        return spread
    return min(spread, groups.chosen * math.ceil(nodes / groups.count))
