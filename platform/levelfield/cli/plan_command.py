"""`plan` (compare chips): memory and tokens/s of every layout, on any devices"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, get_args

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.cli.asked_plan import PRECISIONS, asked_of, read_case, work_in
from levelfield.cli.command_line import Command
from levelfield.cli.options import chips_option, registry_of
from levelfield.cli.plan_tables import Assumed, content_of, explained, lines_of
from levelfield.errors import UsageError
from levelfield.predict import machines, questions
from levelfield.predict.assumed_rates import with_assumed_rates
from levelfield.predict.explanation import memory_terms, time_terms
from levelfield.predict.layout_search import (
    RECOMPUTATIONS,
    LayoutEstimate,
    LayoutQuestion,
    LayoutRanking,
    answer,
    not_offered,
)
from levelfield.predict.links import UnknownLink
from levelfield.report.words import wrapped
from levelfield.specs.base import MOST_RANKS
from levelfield.specs.constants import AttentionKernel
from levelfield.specs.selector import Selector
from levelfield.specs.vendor import Chip, VendorFile

if TYPE_CHECKING:
    from levelfield.studies.plan_rehearsals import Rehearser

DESCRIPTION = """\
Predict every layout that the case, the framework and the devices allow, fastest
first: memory of the fullest device (GiB), tokens/s of one device, and MFU.
The devices may be absent.

examples:
  run_benchmarks.py plan gpt3_6.7B --chip A100-SXM4-80GB --devices 8
  run_benchmarks.py plan llama3_70b --chip H100 --devices 16384 --top 5
  run_benchmarks.py plan llama3_8b --chip H100 --nodes 4 --network 8x400Gb/s
  run_benchmarks.py plan llama3_8b --chip H100 --framework megatron --explain 1
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP8 --micro-batch 1
  run_benchmarks.py plan llama3_70b --chip H100 --devices 64 --beyond 5
  run_benchmarks.py plan llama3_8b --chip H100 --layout DP4CP2SH3
  run_benchmarks.py plan gpt2_medium --chip A100 --precision tf32
  run_benchmarks.py plan llama3_8b:torch:H100:1:8 --rehearse
  run_benchmarks.py plan gpt2_small:torch:H100:1:1 --rehearse 1 --compile

--layout shows one layout, whether it fits or not, and by how much. --program
takes the constants of other people's training code (configs/planner).
docs/planner.md explains the formulas and their error against published figures

--rehearse runs the real training of the first rows at full scale on pretended
NVIDIA devices, a minute or three each, and shows what torch's allocator took:
memory is real, speed and numbers are not. It needs no GPU, but gcc and a CUDA
build of the framework (5 GB):
  run_benchmarks.py environment make torch --vendor nvidia --any-driver
Exit code 3: a row did not run to its end. 4: an allocation failed or flushed.
"""


KERNELS: tuple[str, ...] = get_args(AttentionKernel)
REHEARSED = 3  # rows, where --rehearse has no number


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "case",
        metavar="CASE",
        help="a name of `show cases`; or a case string, case:framework[:chip[:nodes[:devices]]]",
    )
    parser.add_argument("--chip", metavar="NAME", help="a chip of `show chips`; cpu: this host, measured")
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: from --devices)")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="devices per node; without --nodes: devices of all nodes"
    )
    parser.add_argument("--framework", metavar="NAME", help="default: torch")
    parser.add_argument(
        "--network", metavar="RATE", help="network of a node: 100Gb/s, 8x400Gb/s (default: 200 Gb/s per device)"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="plan as if the case had this one; tf32: fp32 with products in TF32"
    )
    parser.add_argument("--scale", choices=("full", "smoke"), default="full", help="default: full")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (default: 10)")
    parser.add_argument(
        "--beyond",
        type=int,
        default=0,
        metavar="N",
        help="show N rows that do not fit, and by how much, and N that need what the framework does not offer",
    )
    parser.add_argument("--explain", type=int, metavar="ROW", help="show the arithmetic of one row, with sources")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable output, with all parts of memory and time"
    )
    chips_option(parser)
    real = parser.add_argument_group("the real code, without the device")
    real.add_argument(
        "--rehearse",
        type=int,
        nargs="?",
        const=REHEARSED,
        metavar="N",
        help=f"rehearse the first N rows on pretended devices (default: {REHEARSED})",
    )
    real.add_argument(
        "--compile", action="store_true", help="with --rehearse: by torch.compile; shows kernels and graph breaks"
    )
    asked = parser.add_argument_group("only these rows")
    asked.add_argument("--layout", metavar="LAYOUT", help="one layout, such as DP4TP2PP1 or DP8TP2PP1SH1SP8+seq")
    asked.add_argument("--micro-batch", type=int, metavar="N", help="sequences of a forward pass")
    asked.add_argument("--recompute", choices=RECOMPUTATIONS, help="what is computed again")
    asked.add_argument("--virtual-pipeline", type=int, metavar="N", help="model chunks of a pipeline stage")
    program = parser.add_argument_group("how the training is programmed (default: as models/* does)")
    program.add_argument("--program", metavar="NAME", help="others' code, by its name in configs/planner/*.yaml")
    program.add_argument("--attention", choices=KERNELS, metavar="KERNEL", help=", ".join(KERNELS))
    program.add_argument("--overlap", type=float, metavar="SHARE", help="share of data-parallel exchange that overlaps")
    program.add_argument("--tensor-overlap", type=float, metavar="SHARE", help="the same of tensor parallelism")


def execute(options: argparse.Namespace) -> int:
    """Print the ranking or one row's arithmetic. Return 0, also when no layout fits; with --rehearse as it went."""
    read_case(options)
    registry = registry_of(options)
    vendor, chip = lookup.find_chip(registry, options.chip)
    place = _place(options)
    rehearser = _rehearser(options, chip, place)
    rated, place = _rated(options, registry, vendor, chip, place)
    question = asked_of(_question(options, registry, vendor, rated, place), options, place.nodes)
    found = _answered(question, chip)
    others = not_offered(question) if options.beyond and not options.layout else ()
    if options.explain is not None:
        return _explain(question, _row(found, options.explain), place, options)
    if rehearser:
        return _rehearse(rehearser, found, options, partial(_show, question, chip, place, found, others, options))
    _show(question, chip, place, found, others, options)
    return 0


def _show(
    question: LayoutQuestion,
    chip: Chip,
    place: Assumed,
    found: LayoutRanking,
    others: Sequence[LayoutEstimate],
    options: argparse.Namespace,
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Print the table, or as JSON with `more`."""
    if options.json:
        content = {**content_of(question, chip, place, found, others, options), **more}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines_of(question, chip, place, found, others, options)), flush=True)


def _rehearser(options: argparse.Namespace, chip: Chip, place: Assumed) -> Rehearser | None:
    """Return what rehearses the rows, or None without --rehearse. What it imports takes longer than most plans."""
    if options.rehearse is None:
        if options.compile:
            raise UsageError("--compile: expected --rehearse beside it; a plan alone does not know torch.compile")
        return None
    from levelfield.cli.plan_rehearsal import rehearser_of

    return rehearser_of(options, chip, place.nodes, place.devices_per_node)


def _rehearse(
    rehearser: Rehearser, found: LayoutRanking, options: argparse.Namespace, show: Callable[..., None]
) -> int:
    """Show the plan, rehearse its first rows, and show what was measured. After an interrupt: what there is."""
    from levelfield.cli import plan_rehearsal

    if not options.json:
        show()
    rows, done = plan_rehearsal.rows_to_rehearse(found, options), list[plan_rehearsal.Rehearsed]()
    try:
        plan_rehearsal.rehearse_rows(rehearser, rows, done)
    finally:
        if options.json:
            show({"rehearsed": plan_rehearsal.content_of(done)})
        elif done:
            print("\n".join(plan_rehearsal.lines_of(done)), flush=True)
    return plan_rehearsal.exit_code(done)


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
    for name in ("nodes", "devices", "top", "micro_batch", "virtual_pipeline"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: found {value}, expected 1 or more")
    if (devices := (options.nodes or 1) * (options.devices or 1)) > MOST_RANKS:
        raise UsageError(f"--nodes x --devices: found {devices:,}, expected at most {MOST_RANKS:,}")
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


def _rated(
    options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip, place: Assumed
) -> tuple[Chip, Assumed]:
    """Return the chip with assumed rates in place of those that are not public, as runs take them, and a remark.

    A chip with peaks, but none of this precision, stays as it is: it has no products in it.
    """
    precision = work_in(registry.case(options.case).work(options.scale), options.precision).training.precision
    needed = "bf16" if precision == "fp8" else precision
    if vendor.is_host or options.precision == "tf32" or (chip.peaks and needed not in chip.peaks):
        return chip, place
    rated, names = with_assumed_rates(chip, precision, place.nodes * place.devices_per_node)
    if not names:
        return chip, place
    remark = (
        f"{', '.join(names)}: not public of {chip.name}, so rows have the order that the rates of an A100-SXM4-80GB "
        "give them, and no speed. Your own go into a private chips file (--chips, docs/private-chips.md)"
    )
    return rated, replace(place, remarks=(*place.remarks, remark), assumes_rates=True)


def _question(
    options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip, place: Assumed
) -> LayoutQuestion:
    work = work_in(registry.case(options.case).work(options.scale), options.precision)
    tf32 = options.precision == "tf32"
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
            tf32,
        )
    if tf32:
        raise UsageError("--precision tf32: a host's processors have no TF32; give an accelerator with --chip")
    # Only a plan for this host runs anything, and what runs takes longer to import than most plans take.
    from levelfield.cli.terminal import Terminal
    from levelfield.studies.sweep import question_here

    found = lookup.find(registry, Selector(case=options.case, framework=options.framework, target=vendor.name))
    say = Terminal(quiet=options.json).say
    return question_here(registry, found, work, place.nodes * place.devices_per_node, say)


def _row(found: LayoutRanking, number: int) -> LayoutEstimate:
    rows = found.rows or found.beyond
    if not 1 <= number <= len(rows):
        which = "the rows that fit" if found.rows else "the rows that do not fit"
        raise UsageError(f"--explain {number}: expected 1 to {len(rows)}, {which}")
    return rows[number - 1]


def _explain(question: LayoutQuestion, row: LayoutEstimate, place: Assumed, options: argparse.Namespace) -> int:
    assumed = place.remarks if place.assumes_rates else ()
    if options.json:
        terms = {"memory": memory_terms(question, row), "time": time_terms(question, row)}
        content: dict[str, object] = {name: [asdict(term) for term in found] for name, found in terms.items()}
        print(json.dumps({**content, **({"assumed": assumed} if assumed else {})}, indent=2))
    else:
        print("\n".join([*(wrapped(f"assumed: {remark}", 2) for remark in assumed), *explained(question, row)]))
    return 0


COMMANDS = {
    "plan": Command(DESCRIPTION, arguments, execute),
}
