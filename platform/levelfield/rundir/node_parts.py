"""The machines of a run: which ranks, telemetry and devices each has, and its window on its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from levelfield.measure.raw_facts import StepRecord, records_by_rank
from levelfield.rundir.raw_files import RawRecords
from levelfield.rundir.telemetry_files import NodeTelemetry
from levelfield.specs.case import Window
from levelfield.specs.plan import Plan

NO_TELEMETRY = "left no telemetry"


@dataclass(frozen=True)
class NodePart:
    """One machine's part of a run."""

    name: str | None  # of its node; None for the platform's machine, which has all nodes
    ranks: range  # those on it, whose events and telemetry have one clock
    steps: tuple[StepRecord, ...]  # of these ranks
    first_rank_end_ns: Mapping[int, int]  # by step, when the rank with the lowest number of these ended it
    telemetry: NodeTelemetry  # without any reading where there is none
    device_indices: tuple[str, ...]  # its devices, as its telemetry names them
    # Why nothing was read here; None where there is telemetry, and for the platform's machine.
    silence_reason: str | None = None

    def window_ns(self, window: Window) -> tuple[int, int] | None:
        """Return begin and end of the window on this machine's clock; None where a record of one of them is missing."""
        begin, end = self.first_rank_end_ns.get(window.first_step - 1), self.first_rank_end_ns.get(window.last_step)
        return None if begin is None or end is None or not begin < end else (begin, end)

    def time_of_day_ns(self, time_ns: int) -> int:
        """Return the time of day for a time of this machine's clock, by the nearest reading of both clocks."""
        clock_ns, wall_ns = min(self.telemetry.wall_clock, key=lambda pair: abs(pair[0] - time_ns))
        return wall_ns + time_ns - clock_ns

    def device_name(self, index: str) -> str:
        """Return the name of a device among those of the whole run."""
        return index if self.name is None else f"{self.name}/{index}"

    def labelled(self, sentence: str) -> str:
        """Return a sentence that names the node."""
        return sentence if self.name is None else f"{self.name}: {sentence}"

    def tool_reason(self, *figures: str) -> str | None:
        """Return why the vendor's tool did not read the first of these figures that it has a reason for."""
        reasons = self.telemetry.reasons
        return next((reasons[name] for name in figures if reasons.get(name)), None)


def node_parts(plan: Plan, raw: RawRecords) -> tuple[NodePart, ...]:
    """Return the machines of a run, in order. Each node is one, or all nodes are on the platform's own machine.

    The platform's machine writes telemetry.jsonl, and a node telemetry/node<k>.jsonl.
    """
    telemetry, steps = {t.node: t for t in raw.telemetry}, records_by_rank(raw.steps)
    nodes_and_ranks: list[tuple[int | None, range]] = [(k, plan.ranks_of(k)) for k in range(plan.hardware.nodes)]
    if None in telemetry or (plan.hardware.nodes == 1 and not telemetry):
        nodes_and_ranks = [(None, range(plan.world_size))]
    parts = []
    for node, ranks in nodes_and_ranks:
        first_rank_end_ns = {record.step: record.end_ns for record in steps.get(ranks.start, ())}
        records = tuple(record for rank in ranks for record in steps.get(rank, ()))
        node_telemetry = telemetry.get(node, NodeTelemetry())
        indices: tuple[str, ...] = ("0",)  # a host that is divided into shares is one device
        if plan.hardware.device_indices:
            indices = tuple(map(str, plan.hardware.device_indices))
        elif node is not None and not plan.hardware.is_host:
            indices = tuple(map(str, range(plan.hardware.devices_per_node)))
        elif node_telemetry.readings:
            indices = tuple(sorted({reading.device for reading in node_telemetry.readings}))
        name, is_silent = None if node is None else f"node{node}", node is not None and node not in telemetry
        parts.append(
            NodePart(
                name, ranks, records, first_rank_end_ns, node_telemetry, indices, NO_TELEMETRY if is_silent else None
            )
        )
    return tuple(parts)
