"""`plan`: predicts memory and tokens/s of every possible layout of a case. The devices may be absent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.cli.arithmetic import explained
from levelfield.cli.plugins import registry_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.measure.flops import flops_per_token
from levelfield.predict import machines, questions
from levelfield.predict.explanation import memory_terms, time_terms
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, LayoutRanking, answer
from levelfield.predict.timing import UnknownLink
from levelfield.report.words import GIB, wrapped
from levelfield.specs.selector import Selector
from levelfield.specs.vendor import Chip, VendorFile
from levelfield.studies.local_question import question_here

DESCRIPTION = """\
Predict every layout that the case, the framework and the devices allow, fastest
first: memory of the fullest device (GiB), tokens/s of one device, and MFU.
The devices may be absent.

examples:
  run_benchmarks.py plan gpt3_6.7B --chip A100-SXM4-80GB --devices 8
  run_benchmarks.py plan llama3_70b --chip H100 --devices 16384 --top 5
  run_benchmarks.py plan llama3_8b --chip H100 --nodes 4 --network 8x400Gb/s
  run_benchmarks.py plan llama3_8b --chip H100 --framework megatron --explain 1

docs/planner.md explains the formulas and their error against published figures
"""


@dataclass(frozen=True)
class Assumed:
    """The nodes, devices and network of a plan. remarks: assumptions where the user gave no value."""

    nodes: int
    devices_per_node: int
    network_bytes_per_second: float | None
    remarks: tuple[str, ...]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.add_argument("case", metavar="CASE", help="the name of a case; `list cases` shows all")
    parser.add_argument(
        "--chip", required=True, metavar="NAME", help="a chip of `list chips`; cpu: this host, measured"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: from --devices)")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="devices per node; without --nodes: devices of all nodes"
    )
    parser.add_argument("--framework", default="torch", metavar="NAME", help="default: torch")
    parser.add_argument(
        "--network", metavar="RATE", help="network of a node: 100Gb/s, 8x400Gb/s (default: 200 Gb/s per device)"
    )
    parser.add_argument("--scale", choices=("full", "smoke"), default="full", help="default: full")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (default: 10)")
    parser.add_argument("--explain", type=int, metavar="ROW", help="show the arithmetic of one row, with sources")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable output, with all parts of memory and time"
    )
    parser.add_argument("--chips", type=Path, metavar="FILE", help="private chips and corrections")


def execute(options: argparse.Namespace) -> int:
    """Print the ranking or one row's arithmetic. Return 0, also when no layout fits."""
    registry = registry_of(options)
    vendor, chip = lookup.find_chip(registry, options.chip)
    place = _place(options)
    question = _question(options, registry, vendor, chip, place)
    found = _answered(question, chip)
    if options.explain is not None:
        return _explain(question, _row(found, options.explain), options)
    if options.json:
        print(json.dumps(_content(question, chip, place, found, options.top), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(question, chip, place, found, options)))
    return 0


def _answered(question: LayoutQuestion, chip: Chip) -> LayoutRanking:
    try:
        return answer(question)
    except UnknownLink as error:
        raise UsageError(
            f"{chip.name}: {error}. Put `interconnect` with `each_way_bytes_per_second` and its source into a private "
            "chips file (--chips, docs/private-chips.md), or plan for one device"
        ) from None


def _place(options: argparse.Namespace) -> Assumed:
    """Return the given or assumed nodes and network. Raises UsageError for counts that do not divide into nodes."""
    for name in ("nodes", "devices", "top"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name}: found {value}, expected 1 or more")
    remarks = []
    if options.nodes is None:
        devices = options.devices or machines.DEVICES_PER_NODE
        per_node = min(devices, machines.DEVICES_PER_NODE)
        if devices % per_node:
            raise UsageError(
                f"--devices {devices}: expected a multiple of {per_node}, the assumed devices per node; "
                "give --nodes N and --devices per node"
            )
        nodes = devices // per_node
        if nodes > 1:
            remarks.append(f"nodes of {per_node} devices; --nodes and --devices change this")
    else:
        nodes, per_node = options.nodes, options.devices or machines.DEVICES_PER_NODE
    network = machines.network_rate(options.network) if options.network else None
    if nodes > 1 and network is None:
        network = machines.ASSUMED_PORT_BYTES_PER_SECOND * per_node
        remarks.append(f"a network of {per_node} x 200 Gb/s per node; --network changes this")
    return Assumed(nodes, per_node, network, tuple(remarks))


def _question(
    options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip, place: Assumed
) -> LayoutQuestion:
    work = registry.case(options.case).work(options.scale)
    if not vendor.is_host:
        return questions.question_on_chip(
            registry,
            options.framework,
            work,
            chip,
            vendor.device_kind,
            place.nodes,
            place.devices_per_node,
            place.network_bytes_per_second,
        )
    found = lookup.find(registry, Selector(case=options.case, framework=options.framework, target=vendor.name))
    say = Terminal(quiet=options.json).say
    return question_here(registry, found, work, place.nodes * place.devices_per_node, say)


def _row(found: LayoutRanking, number: int) -> LayoutEstimate:
    if not 1 <= number <= len(found.rows):
        raise UsageError(f"--explain {number}: expected 1 to {len(found.rows)}, the rows that fit")
    return found.rows[number - 1]


def _lines(
    question: LayoutQuestion, chip: Chip, place: Assumed, found: LayoutRanking, options: argparse.Namespace
) -> Iterator[str]:
    capacity = f"{question.capacity_bytes / GIB:.0f} GiB each" if question.capacity_bytes else "memory unknown"
    yield f"{options.case} ({options.scale}) by {options.framework} on {place.nodes} x {place.devices_per_node}"
    yield f"{chip.name}, {capacity}; predicted, not measured"
    yield from (wrapped(f"assumed: {remark}", 2) for remark in place.remarks)
    yield ""
    if not found.rows:
        yield from _nothing(question, found)
        return
    yield f"{'row':>3} {'layout':<26} {'micro':>5} {'chunks':>6} {'again':<9} {'GiB':>5} {'tokens/s':>8} {'MFU':>5}"
    for number, row in enumerate(found.rows[: options.top], 1):
        tuning = row.tuning
        yield (
            f"{number:>3} {row.layout!s:<26} {tuning.micro_batch:>5} {tuning.virtual_pipeline:>6} "
            f"{tuning.recompute:<9} {row.memory.total / GIB:>5.1f} {row.tokens_per_second:>8,.0f} "
            f"{_utilisation(question, chip, row)}"
        )
    yield ""
    yield wrapped(
        f"{len(found.rows):,} of {found.considered:,} layouts fit. tokens/s is per device, GiB of the fullest device; "
        "again: what is recomputed; chunks: per pipeline stage. MFU is by formula palm, of the "
        f"{question.work.training.precision} peak. --explain ROW shows the arithmetic",
        0,
    )


def _nothing(question: LayoutQuestion, found: LayoutRanking) -> Iterator[str]:
    if found.nearest is None:
        yield f"no layout on {question.devices} devices: heads, layers and global batch do not divide"
        return
    need, have = found.nearest.memory.total / GIB, (question.capacity_bytes or 0) / GIB
    yield "no layout fits; the smallest is"
    yield f"  {found.nearest.layout} micro-batch {found.nearest.tuning.micro_batch}: {need:.1f} GiB, of {have:.1f} GiB"


def _utilisation(question: LayoutQuestion, chip: Chip, row: LayoutEstimate) -> str:
    training = question.work.training
    peak = chip.peaks.get(training.precision)
    if peak is None:
        return f"{'-':>5}"
    flops = flops_per_token("palm", question.work.model, training.sequence_length)
    return f"{row.tokens_per_second * flops / (peak.tflops * 1e12):>5.1%}"


def _explain(question: LayoutQuestion, row: LayoutEstimate, options: argparse.Namespace) -> int:
    if options.json:
        terms = {"memory": memory_terms(question, row), "time": time_terms(question, row)}
        print(json.dumps({name: [asdict(term) for term in found] for name, found in terms.items()}, indent=2))
    else:
        print("\n".join(explained(question, row)))
    return 0


def _content(question: LayoutQuestion, chip: Chip, place: Assumed, found: LayoutRanking, top: int) -> dict[str, object]:
    return {
        "schema": "levelfield.planned/1",
        "chip": chip.name,
        "nodes": place.nodes,
        "devices_per_node": place.devices_per_node,
        "network_bytes_per_second": place.network_bytes_per_second,
        "assumed": list(place.remarks),
        "capacity_bytes": question.capacity_bytes,
        "fitting": len(found.rows),
        "considered": found.considered,
        "nearest": _row_content(found.nearest) if found.nearest else None,
        "rows": [_row_content(row) for row in found.rows[:top]],
    }


def _row_content(row: LayoutEstimate) -> dict[str, object]:
    tuning = row.tuning
    return {
        "layout": str(row.layout),
        "micro_batch": tuning.micro_batch,
        "virtual_pipeline": tuning.virtual_pipeline,
        "recompute": tuning.recompute,
        "memory_bytes": row.memory.total,
        "memory_parts_bytes": row.memory.parts(),
        "step_seconds": row.time.total,
        "step_parts_seconds": row.time.parts(),
        "tokens_per_second_per_device": row.tokens_per_second,
    }
