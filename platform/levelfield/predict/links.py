"""A machine's rates and the links between the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from levelfield.predict.collectives import Link
from levelfield.specs.constants import AttentionKernel, Pace
from levelfield.specs.layout import Layout


@dataclass(frozen=True)
class Machine:
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


def link_of(layout: Layout, machine: Machine, pace: Pace, ranks: int, stride: int) -> Link:
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


def _hop_seconds(machine: Machine, stride: int) -> float:
    """Return the mean latency of a ring's hop: one of the hops in each node goes over the network."""
    assert machine.network is not None and machine.node is not None
    inside = max(1, machine.devices_per_node // stride)
    return (machine.network.hop_seconds + (inside - 1) * machine.node.hop_seconds) / inside


def _node_rate(node: Link, pair: float | None, ranks: int) -> float:
    """Return the rate of a group in a node. In a mesh without a switch, a small group uses only a few links."""
    return node.bytes_per_second if pair is None else min(node.bytes_per_second, pair * (ranks - 1))
