"""A machine's rates and the links between the ranks of a group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from levelfield.specs.constants import AttentionKernel, Pace
from levelfield.specs.layout import Layout

# Ring and tree costs follow Thakur, Rabenseifner and Gropp, 2005, sections 3 and 4. The faster one counts, because
# libraries choose it. Bytes are those of the whole tensor on one rank; seconds are those of one call.


@dataclass(frozen=True)
class Link:
    """The link between the ranks of a group: seconds of a hop, and bytes per second from one rank to the next."""

    hop_seconds: float
    bytes_per_second: float


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the faster of ring, 2 (n-1)/n of the bytes in 2 (n-1) hops, and tree, 2 x the bytes in 2 log2 n hops."""
    if ranks == 1:
        return 0.0
    ring = 2 * gather_seconds(size, ranks, link)
    tree = 2 * math.ceil(math.log2(ranks)) * link.hop_seconds + 2 * size / link.bytes_per_second
    return min(ring, tree)


def gather_seconds(size: float, ranks: int, link: Link) -> float:
    """Return the time of an all-gather or reduce-scatter of `size` bytes in all: (n-1)/n of them in n-1 hops."""
    return (ranks - 1) * (link.hop_seconds + size / ranks / link.bytes_per_second)


def send_seconds(size: float, link: Link) -> float:
    """Return the time of a message from one rank to another."""
    return link.hop_seconds + size / link.bytes_per_second


@dataclass(frozen=True)
class MachineRates:
    """The rates of devices and links. Rates are per device: FLOP/s, bytes/s.

    matmul: the achievable rate if known, else the peak; fp8_matmul: the same in fp8, or None. node: the link between
    devices of one node; pair: the rate to a single other device, when only some links lead there. network: between
    nodes, bytes per second of one whole node. None: unknown. operation_seconds: the cost of a launch beside its work.
    gather, scatter: the measured link of gathers and reduce-scatters, when it differs from that of all-reduces.
    attention: FLOP/s of attention's core by kernel, forward and backward together; without an entry it has the rate of
    products. sdpa: torch's fused kernels on the chip, in its order.
    """

    matmul_flops_per_second: float
    fp8_matmul_flops_per_second: float | None
    memory_bytes_per_second: float
    node: Link | None
    network: Link | None
    devices_per_node: int
    pair_bytes_per_second: float | None = None
    operation_seconds: float = 0.0
    gather: Link | None = None
    scatter: Link | None = None
    attention: Mapping[AttentionKernel, float] = field(default_factory=dict)
    sdpa: tuple[AttentionKernel, ...] = ()


class UnknownLink(ValueError):
    """The layout needs a link whose rate is unknown. The message names the link."""


def link_of(layout: Layout, machine: MachineRates, pace: Pace, ranks: int, stride: int) -> Link:
    """Return the link of a group of `ranks` whose neighbours are `stride` devices apart.

    Tensor ranks are closest, then context, data and pipeline. Between nodes, all groups of a node share its network.
    """
    share = pace.communication_efficiency
    between = pace.network_efficiency or share
    inside = ranks * stride <= machine.devices_per_node
    if machine.node is None or not (inside or machine.network):
        raise UnknownLink(f"{layout}: found no rate of the link between {'devices of a node' if inside else 'nodes'}")
    if inside or machine.network is None:
        return Link(machine.node.hop_seconds, share * _node_rate(machine.node, machine.pair_bytes_per_second, ranks))
    through = machine.network.bytes_per_second / min(stride, machine.devices_per_node)
    return Link(_hop_seconds(machine, stride), min(between * through, share * machine.node.bytes_per_second))


def _hop_seconds(machine: MachineRates, stride: int) -> float:
    """Return the mean latency of a ring's hop: one of the hops in each node goes over the network."""
    assert machine.network is not None and machine.node is not None
    inside = max(1, machine.devices_per_node // stride)
    return (machine.network.hop_seconds + (inside - 1) * machine.node.hop_seconds) / inside


def _node_rate(node: Link, pair: float | None, ranks: int) -> float:
    """Return the rate of a group in a node. In a mesh without a switch, a small group uses only a few links."""
    return node.bytes_per_second if pair is None else min(node.bytes_per_second, pair * (ranks - 1))
