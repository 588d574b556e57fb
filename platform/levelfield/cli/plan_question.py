"""The question that the options of `plan` ask, with what it assumes, and the rows that answer it."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.cli.named_runs import finished_run
from levelfield.cli.options import registry_of
from levelfield.cli.store_options import prices_of
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.predict import machines, questions
from levelfield.predict.layout_rules import divisors, require, require_layers
from levelfield.predict.layout_search import (
    RECOMPUTATIONS,
    LayoutEstimate,
    LayoutQuestion,
    LayoutRanking,
    Wanted,
    answer,
    not_offered,
)
from levelfield.predict.machines import UnknownLink, with_assumed_rates
from levelfield.specs.base import MOST_RANKS
from levelfield.specs.case import Case, Work
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import FIRST_LAYERS, Refusable
from levelfield.specs.layout import parse_layout
from levelfield.specs.prices import Prices
from levelfield.specs.selector import Selector, labelled, parse_selector
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import Chip, PeakDtype, VendorFile

_TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", re.IGNORECASE)
_THOUSANDS = ("", "K", "M", "B", "T")
MOST_TOKENS = 1e18
PRODUCTS_ONLY: PeakDtype = "nvfp4"  # values in memory and messages are those of fp8
_OF_ONE_CHIP = ("explain", "calibrate")


@dataclass(frozen=True)
class AnsweredPlan:
    """A question with its rows. others: those that need what the framework does not offer. vendor: of the chip.

    assumed: sentences about what the user gave no value for; remarks: these, and what the question itself assumes.
    assumes_rates: rates of another chip put the rows in an order, so that no speed is known. tokens: of the training
    whose time is wanted.
    """

    question: LayoutQuestion
    vendor: str
    chip: Chip
    nodes: int
    network_bytes_per_second: float | None
    assumed: tuple[str, ...]
    remarks: tuple[str, ...]
    assumes_rates: bool
    found: LayoutRanking
    others: Sequence[LayoutEstimate]
    tokens: float | None = None
    prices: Prices | None = None

    @property
    def devices_per_node(self) -> int:
        return self.question.devices // self.nodes


def asked_chips(options: argparse.Namespace) -> tuple[Registry, list[tuple[VendorFile, Chip]]]:
    """Return the chips that the options name. Raises UsageError for a part of the case string that is given twice, for
    an unknown name, and for what is said of one chip where several are named."""
    _read_case(options)
    registry = registry_of(options)
    chips = lookup.find_chips(registry, options.chip)
    if len(chips) > 1:
        given = [name for name in _OF_ONE_CHIP if getattr(options, name) is not None]
        for name in [*given, *(["beyond"] if options.beyond else [])]:
            raise UsageError(f"--{name}: found {len(chips)} chips, expected one; leave --{name} or the others out")
    return registry, chips


def planned(options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip) -> AnsweredPlan:
    """Return the rows for the options on a chip. Raises UsageError or LayoutError for what is impossible."""
    tokens, prices = _tokens(options.tokens), prices_of(options)
    if prices and tokens is None:
        raise UsageError("--prices: expected --tokens N beside it; `report --prices` has the cost of runs")
    nodes, per_node, network, assumed = _place(options, chip)
    case = registry.case(options.case)
    work = _work_in(case.work(options.scale), options.precision)
    rated, unknown = (chip, ()) if vendor.is_host else _rated(chip, work, options.precision, nodes * per_node)
    if unknown:
        assumed.append(
            f"{', '.join(unknown)}: not public of {chip.name}{_other_peaks(chip, work)}, so rows have the order that "
            "the rates of an A100-SXM4-80GB give them, and no speed. Your own go into vendor.yaml or a private chips "
            "file (--chips, docs/private-chips.md)"
        )
    else:
        assumed += _of_products(chip, options.precision or work.training.precision, registry)
    if private := registry.overlay and registry.overlay.used(vendor, chip):
        assumed.append(f"{', '.join(private.fields)} of {chip.name} as {private.file} has them")
    if chip.memory_bytes is None and not vendor.is_host:
        assumed.append(f"enough memory: that of {chip.name} is not public, so every layout counts as fitting")
    question = _asked(_question(options, registry, vendor, rated, work, nodes, per_node, network), options, nodes)
    question, fitted = _calibrated(question, options, registry, vendor, rated)
    try:
        found = answer(question)
    except UnknownLink as error:
        raise UsageError(
            f"{chip.name}: {error}. Put `interconnect` with `each_way_bytes_per_second` and its source into "
            "vendor.yaml or a private chips file (--chips, docs/private-chips.md), or plan for one device"
        ) from None
    said = (*_of_precision(options.precision), *_remarks(question, case, registry))
    return AnsweredPlan(
        question,
        vendor.name,
        chip,
        nodes,
        network,
        tuple(assumed),
        (*assumed, *fitted, *said),
        assumes_rates=bool(unknown),
        found=found,
        others=not_offered(question)[: options.beyond] if options.beyond and not options.layout else (),
        tokens=tokens,
        prices=prices,
    )


def _tokens(text: str | None) -> float | None:
    """Return the number of tokens that `300B` or `1.5T` stands for. Raises UsageError."""
    if text is None:
        return None
    match = _TOKENS.fullmatch(text.strip())
    found = float(match[1]) * 1000.0 ** _THOUSANDS.index(match[2].upper()) if match else 0.0
    if not 1 <= found <= MOST_TOKENS:
        raise UsageError(f"--tokens: found '{text[:40]}', expected 1 to 1e18 tokens, such as 300B, 1.5T or 2e12")
    return found


def _work_in(work: Work, precision: str | None) -> Work:
    """Return the work in another precision, as the planner sees it; None: in its own."""
    if precision is None:
        return work
    changes = {"precision": "fp8" if precision == PRODUCTS_ONLY else precision}
    return work.model_copy(update={"training": work.training.model_copy(update=changes)})


def _rated(chip: Chip, work: Work, precision: str | None, devices: int) -> tuple[Chip, tuple[str, ...]]:
    """Return the chip with assumed rates in place of those that are not public, as runs take them, and their names.

    No rate of products in NVFP4 is assumed, since no run has them.
    """
    return (chip, ()) if precision == PRODUCTS_ONLY else with_assumed_rates(chip, work.training.precision, devices)


def _of_products(chip: Chip, dtype: PeakDtype, registry: Registry) -> Iterator[str]:
    """Yield which share of its peak a chip is taken to reach, where no measurement says it; and what others reach."""
    share = machines.assumed_share(chip, dtype) if dtype in chip.peaks else None
    if share is None:
        return
    known = [each for name in registry.vendors for each in registry.vendor_file(name).chips]
    rates = [(each.achievable.get(dtype), each.peaks.get(dtype)) for each in known]
    reached = [rate.tflops / peak.tflops for rate, peak in rates if rate and peak]
    others = f"; {len(reached)} measured reach {min(reached):.0%} to {max(reached):.0%}" if len(reached) > 1 else ""
    yield f"large products at {share:.0%} of {chip.name}'s {dtype} peak, as no public measurement is known{others}"


def _other_peaks(chip: Chip, work: Work) -> str:
    """Return the precisions that the chip has peaks of, where that of the work is none of them: it may lack it."""
    precision = work.training.precision
    return "" if precision in chip.peaks or not chip.peaks else f", which has peaks of {', '.join(chip.peaks)} alone"


def _read_case(options: argparse.Namespace) -> None:
    """Put the parts of a case string into the options that they stand for. Raises UsageError for a part given twice."""
    if ":" in options.case:
        selector, parts = parse_selector(options.case), options.case.count(":") + 1
        given = {
            "case": selector.case,
            "framework": labelled(selector.framework, selector.version),
            "chip": selector.target,
            "layout": selector.layout,
            "nodes": selector.nodes if parts > 3 else None,
            "devices": selector.devices,
        }
        for name, value in given.items():
            if value is not None and name != "case" and getattr(options, name) is not None:
                raise UsageError(f"--{name}: found it in '{options.case}' too; leave one of the two out")
        vars(options).update({name: value for name, value in given.items() if value is not None})
    options.framework = options.framework or "torch"
    if options.chip is None:
        raise UsageError(f"plan {options.case}: found no chip; give --chip NAME or case:framework:chip (`show chips`)")


def _place(options: argparse.Namespace, chip: Chip) -> tuple[int, int, float | None, list[str]]:
    """Return nodes, devices per node, a node's network in bytes per second, and sentences about assumed ones.

    Raises UsageError for counts that do not divide into nodes."""
    for name in ("nodes", "devices", "top", "micro_batch", "virtual_pipeline", "recompute_layers"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: found {value}, expected 1 or more")
    if (devices := (options.nodes or 1) * (options.devices or 1)) > MOST_RANKS:
        raise UsageError(f"--nodes x --devices: found {devices:,}, expected at most {MOST_RANKS:,}")
    remarks = []
    most = chip.node.devices if chip.node else machines.DEVICES_PER_NODE
    nodes, per_node = options.nodes, options.devices or min(most, machines.DEVICES_PER_NODE)
    if nodes is None:
        nodes, per_node = _nodes_of(per_node, most)
        if nodes > 1:
            remarks.append(f"nodes of {per_node} devices; --nodes and --devices change this")
    network = machines.network_rate(options.network) if options.network else None
    if nodes > 1 and network is None:
        port = machines.port_rate(chip)
        network, source = port * per_node, f" ({chip.node.source})" if chip.node else ""
        remarks.append(f"a network of {per_node} x {port * 8e-9:g} Gb/s per node{source}; --network changes this")
    return nodes, per_node, network, remarks


def _nodes_of(devices: int, most: int) -> tuple[int, int]:
    """Return nodes and devices per node. A rack whose links join more than usual gives each run an equal part of it.

    Raises UsageError for devices that do not divide into nodes."""
    per_node = min(devices, most)
    if most > machines.DEVICES_PER_NODE:
        per_node = max(n for n in divisors(devices) if n <= most)
    if devices % per_node or (most > 2 * per_node and per_node < devices):
        raise UsageError(
            f"--devices {devices}: expected a multiple of {per_node}, the assumed devices per node; "
            "give --nodes N and --devices per node"
        )
    return devices // per_node, per_node


def _question(
    options: argparse.Namespace,
    registry: Registry,
    vendor: VendorFile,
    chip: Chip,
    work: Work,
    nodes: int,
    per_node: int,
    network: float | None,
) -> LayoutQuestion:
    products = PRODUCTS_ONLY if options.precision == PRODUCTS_ONLY else None
    if not vendor.is_host:
        kind, framework = vendor.device_kind, options.framework
        return questions.question_on_chip(registry, framework, work, chip, kind, nodes, per_node, network, products)
    if products:
        raise UsageError(f"--precision {products}: a host's processors have none; give an accelerator with --chip")
    # Only a plan for this host runs anything, and what runs takes longer to import than most plans take.
    from levelfield.studies.variations import question_here

    found = lookup.find(registry, Selector(case=options.case, framework=options.framework, target=vendor.name))
    return question_here(registry, found, work, nodes * per_node, Terminal(quiet=options.json).say)


def _asked(question: LayoutQuestion, options: argparse.Namespace, nodes: int) -> LayoutQuestion:
    """Return the question with the asked rows and program. Raises UsageError or LayoutError for what is impossible."""
    offer = question.offer
    if options.program:
        stages = {"uneven", "interleaved"} if "pipeline" in offer.parallelism else set()
        some: tuple[Refusable, ...] = () if offer.repeats_some else (FIRST_LAYERS,)
        offer = replace(offer, parallelism=offer.parallelism | stages, recompute=RECOMPUTATIONS, refuses=some)
    if options.recompute and options.recompute not in offer.recompute:
        raise UsageError(
            f"--recompute {options.recompute}: framework {question.constants.framework} offers "
            f"{', '.join(offer.recompute)}"
        )
    if options.recompute_layers:
        _require_some(question, options)
    wanted = Wanted(
        layout=parse_layout(options.layout).layout if options.layout else None,
        micro_batch=options.micro_batch,
        recompute=options.recompute,
        recompute_layers=options.recompute_layers,
        virtual_pipeline=options.virtual_pipeline,
    )
    layout, batch, chunks = wanted.layout, wanted.micro_batch or 1, wanted.virtual_pipeline or 1
    if layout is not None:
        require(question.work, layout, batch, nodes, question.devices // nodes, chunks, uneven_stages=True)
        require_layers(question.work, layout, chunks, wanted.recompute_layers)
    return replace(question, wanted=wanted, offer=offer, constants=_constants(question.constants, options))


def _require_some(question: LayoutQuestion, options: argparse.Namespace) -> None:
    """Raises UsageError for recomputation of some layers beside another kind than full, of more layers than the model
    has, or where the framework refuses it."""
    named, layers = f"--recompute-layers {options.recompute_layers}", question.work.model.layers
    if options.recompute != "full":
        raise UsageError(f"{named}: found --recompute {options.recompute or 'left out'}, expected --recompute full")
    if options.recompute_layers > layers:
        raise UsageError(f"{named}: {options.case} has {layers} layers; expected 1 to {layers}")
    if not question.offer.repeats_some:
        raise UsageError(
            f"{named}: framework {question.constants.framework} computes all layers again or none; leave it out"
        )


def _calibrated(
    question: LayoutQuestion, options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip
) -> tuple[LayoutQuestion, tuple[str, ...]]:
    """Return the question with the rate that a run set, and what changed. Raises UsageError for a run of other devices
    or of another framework, and for one without a valid speed."""
    if options.calibrate is None:
        return question, ()
    from levelfield.judge.collector import collect
    from levelfield.rundir.directory import read_plan

    paths = finished_run(options, options.calibrate)
    plan, named = read_plan(paths), f"--calibrate {options.calibrate}"
    own = {"chip": chip.name, "framework": question.constants.framework}
    ran = {"chip": plan.hardware.chip.name, "framework": plan.implementation.framework}
    if wrong := [f"{key} {ran[key]}, expected {value}" for key, value in own.items() if ran[key] != value]:
        raise UsageError(f"{named}: found a run with {' and '.join(wrong)}; take a run of what is planned")
    speed = collect(paths).throughput
    if speed is None:
        raise UsageError(f"{named}: found no speed, expected a valid run; `report {options.calibrate}` says why")
    nodes, per_node = plan.hardware.nodes, plan.hardware.devices_per_node
    network = machines.port_rate(chip) * per_node if nodes > 1 else None
    asked = _question(options, registry, vendor, chip, plan.work, nodes, per_node, network)
    try:
        found = questions.calibration(asked, plan.tuning, speed.tokens_per_second_per_device)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from None
    said = (
        f"{questions.RATE_WORDS[found.rate]} at {found.after:.3g} of the chip's rate, not at {found.before:.3g}: run "
        f"{plan.run_id} had {found.measured:,.0f} tokens/s on each device, and {found.row.tokens_per_second:,.0f} were "
        "expected. What else differs is in this rate too"
    )
    return replace(question, constants=found.applied(question.constants, question.on_host)), (said,)


def _constants(own: Constants, options: argparse.Namespace) -> Constants:
    if options.program is not None and options.program not in own.programs:
        near = difflib.get_close_matches(options.program, own.programs, n=1)
        nearest = f"nearest: {near[0]}; " if near else ""
        known = ", ".join(own.programs) or "none"
        raise UsageError(
            f"--program {options.program}: framework {own.framework} has none of this name; {nearest}known: {known} "
            "(`show programs`)"
        )
    chosen = own.of_program(options.program) if options.program else own
    overlap = options.tensor_overlap
    if overlap is not None and not 0 <= overlap <= 1:
        raise UsageError(f"--tensor-overlap: found {overlap:g}, expected a share from 0 to 1")
    stated = {"tensor_overlap": overlap, "attention": options.attention}
    changes = {name: value for name, value in stated.items() if value is not None}
    return chosen.model_copy(update={"pace": chosen.pace.model_copy(update=changes)})


def _of_precision(precision: str | None) -> Iterator[str]:
    if precision == PRODUCTS_ONLY:
        yield f"fp8 with products in {precision.upper()}, in which no framework here trains; predicted only"
    elif precision:
        yield f"precision {precision}, whatever the case has"


def _remarks(question: LayoutQuestion, case: Case, registry: Registry) -> Iterator[str]:
    layout, layers = question.wanted.layout, question.work.model.layers
    implementation, _ = registry.implementation(question.constants.framework)
    if lacking := lookup.lacking_parts(case, implementation):
        yield f"{', '.join(lacking)}, which {implementation.framework} does not have here; predicted only"
    if question.work.model.experts is not None:
        busiest = question.constants.pace_on(question.on_host).expert_imbalance
        yield f"the busiest expert rank has {busiest:g} x the mean's tokens; published runs lose 8 to 17 % to imbalance"
    if layout is None:
        return
    if lacks := question.offer.lacks(Tuning(layout=layout), layout.pipeline):
        yield f"{', '.join(lacks)}, which {question.constants.framework} does not offer here; predicted only"
    if layers % layout.pipeline == 0:
        return
    less, more = divmod(layers, layout.pipeline)
    runs = "runs" if "uneven" in question.offer.parallelism else "does not run"
    stages = f"{more} stage{'s' if more > 1 else ''} of {less + 1} layers and {layout.pipeline - more} of {less}"
    yield f"{stages}; models/{question.constants.framework} {runs} them"
