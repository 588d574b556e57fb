"""What the ranks of a preflight recorded, read without trust: figures of nodes, collectives and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from levelfield.measure.preflight import bus_factor, middle_and_best, slowest_blocks
from levelfield.node.regular_files import read_regular
from levelfield.rundir.event_lines import DAMAGED, Event, event_of, whole
from levelfield.rundir.preflight_nodes import MOST_TEXT, Measured, is_rate, node_reports
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import CollectiveReport, NodeReport, PairReport

MOST_EVENT_BYTES = 64 * 2**20  # of one rank's file


class PreflightFacts(NamedTuple):
    """What a preflight measured. joined: whether the process group came up."""

    nodes: tuple[NodeReport, ...]
    backend: str | None
    joined: bool
    barrier_seconds: float | None
    collectives: tuple[CollectiveReport, ...]
    pairs: tuple[PairReport, ...]


def read_preflight(paths: RunPaths, plan: Plan) -> PreflightFacts:
    """Return what the ranks recorded. What is damaged or missing is missing here; nothing raises."""
    ranks = {rank: measured_by(paths.events / f"rank{rank}.jsonl") for rank in range(plan.world_size)}
    nodes = node_reports(plan, ranks)
    names = {rank: _member(plan, nodes, rank) for rank in ranks}
    joined = [event for measured in ranks.values() for event in measured.get("joined", ())]
    return PreflightFacts(
        nodes=nodes,
        backend=str(joined[0].get("backend"))[:MOST_TEXT] if joined else None,
        joined=len(joined) == plan.world_size,
        barrier_seconds=_barrier(ranks),
        collectives=tuple(_collectives(ranks)),
        pairs=tuple(_pairs(ranks, names)),
    )


def measured_by(path: Path) -> Measured:
    """Return the measured events of a rank's file. Other lines count for nothing."""
    try:
        lines = read_regular(path, MOST_EVENT_BYTES).split(b"\n")
    except OSError:
        return {}
    found: Measured = {}
    for line in lines:
        with suppress(*DAMAGED):
            event = event_of(line)
            if event.get("event") == "measured" and isinstance(event.get("values"), dict):
                found.setdefault(str(event["name"]), []).append(event["values"])
    return found


def _member(plan: Plan, nodes: Sequence[NodeReport], rank: int) -> str:
    """Return the name of a rank's node; of its device where there is only one node."""
    node = nodes[rank // plan.hardware.devices_per_node]
    return node.name if len(nodes) > 1 else f"{node.name} device {rank}"


def _barrier(ranks: Mapping[int, Measured]) -> float | None:
    each = {rank: _seconds(values[-1]) for rank, found in ranks.items() if (values := found.get("barrier"))}
    return _slowest(each)[0] if each and len(each) == len(ranks) and all(each.values()) else None


def _seconds(values: Event) -> list[float]:
    """Return the seconds of an event's blocks; none where one cannot be right."""
    given = values.get("seconds")
    return given if isinstance(given, list) and given and all(is_rate(value) for value in given) else []


def _slowest(each: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    fewest = min(len(seconds) for seconds in each.values())
    return middle_and_best(slowest_blocks({rank: seconds[:fewest] for rank, seconds in each.items()}))


def _collectives(ranks: Mapping[int, Measured]) -> Iterable[CollectiveReport]:
    """Return each collective that every rank has timed."""
    timed: dict[tuple[str, int], dict[int, Event]] = {}
    for rank, found in ranks.items():
        for values in found.get("collective", ()):
            with suppress(*DAMAGED):
                timed.setdefault((str(values["operation"]), whole(values["bytes"])), {})[rank] = values
    for (operation, size), by_rank in timed.items():
        each = {rank: _seconds(values) for rank, values in by_rank.items()}
        if len(each) < len(ranks) or not all(each.values()):
            continue
        with suppress(*DAMAGED):
            yield _collective(operation, size, each, _wrong(by_rank))


def _collective(operation: str, size: int, each: Mapping[int, list[float]], wrong: str | None) -> CollectiveReport:
    middle, best = _slowest(each)
    rate = size / middle
    return CollectiveReport(
        operation=operation,
        bytes=size,
        ranks=len(each),
        seconds=middle,
        best_seconds=best,
        algorithm_bytes_per_second=rate,
        bus_bytes_per_second=rate * bus_factor(operation, len(each)),
        wrong=wrong,
    )


def _wrong(by_rank: Mapping[int, Event]) -> str | None:
    """Return the first rank's wrong value. A rank that does not say that its values are right has wrong ones."""
    for rank, values in sorted(by_rank.items()):
        if values.get("wrong", "it was not checked") is not None:
            return f"rank {rank}: {str(values.get('wrong', 'it was not checked'))[:MOST_TEXT]}"
    return None


def _pairs(ranks: Mapping[int, Measured], names: Mapping[int, str]) -> Iterable[PairReport]:
    for found in ranks.values():
        for values in found.get("pair", ()):
            with suppress(*DAMAGED):
                first, second = (whole(rank) for rank in values["ranks"])
                middle, _ = middle_and_best(_seconds(values))
                size = whole(values["bytes"])
                yield PairReport(
                    ranks=(first, second),
                    members=(names[first], names[second]),
                    bytes=size,
                    seconds=middle,
                    bytes_per_second=size / middle,
                    wrong=_wrong({first: values}),
                )
