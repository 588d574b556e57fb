"""The planner's question behind the options of `plan`: what it assumes, and the rows that answer it on one chip."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from levelfield.catalog import lookup
from levelfield.catalog.chip_names import find_chips
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
    SupportedParallelism,
    Wanted,
    answer,
    not_offered,
)
from levelfield.specs.base import MOST_RANKS
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import FIRST_LAYERS, Refusable
from levelfield.specs.layout import parse_layout
from levelfield.specs.prices import Prices
from levelfield.specs.selector import Selector, labelled, parse_selector
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import Chip, PeakDtype, VendorFile

MOST_TOKENS = 1e18
NVFP4: PeakDtype = "nvfp4"  # of products alone: values in memory and messages are those of fp8
_TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:e\d{1,2})?)([KMBT]?)", re.IGNORECASE)
_THOUSANDS = ("", "K", "M", "B", "T")
_COUNTS = ("nodes", "devices", "top", "micro_batch", "virtual_pipeline", "recompute_layers")
_PRIVATE_CHIPS = "vendor.yaml or a private chips file (--chips, docs/private-chips.md)"


class Devices(NamedTuple):
    """The devices of a plan. network_bytes_per_second: of a node; None: of a single node nothing is stated."""

    nodes: int
    per_node: int
    network_bytes_per_second: float | None


@dataclass(frozen=True)
class AnsweredPlan:
    """A question about one chip with its rows. vendor: of the chip. precision: of the products.

    assumed: sentences about what the user gave no value for; remarks: these, and what the question itself assumes.
    assumes_rates: rates of another chip put the rows in an order, so that no speed is known. not_offered: rows that
    need what the framework does not offer. tokens: of the training whose time is wanted.
    """

    question: LayoutQuestion
    vendor: str
    chip: Chip
    devices: Devices
    precision: PeakDtype
    assumed: tuple[str, ...]
    remarks: tuple[str, ...]
    assumes_rates: bool
    ranking: LayoutRanking
    not_offered: Sequence[LayoutEstimate]
    tokens: float | None
    prices: Prices | None


def named_chips(options: argparse.Namespace) -> tuple[Registry, list[tuple[VendorFile, Chip]]]:
    """Return the chips that the options name. Raises UsageError for a part of the case string that an option repeats,
    for an unknown name, and for options that need one chip where several are named."""
    _read_case(options)
    registry = registry_of(options)
    chips = find_chips(registry, options.chip)
    if len(chips) > 1:
        one_chip = {"explain": options.explain, "calibrate": options.calibrate, "beyond": options.beyond or None}
        for name in (name for name, value in one_chip.items() if value is not None):
            raise UsageError(f"--{name}: found {len(chips)} chips, expected one; leave --{name} or the others out")
    return registry, chips


def _read_case(options: argparse.Namespace) -> None:
    """Put the parts of a case string into their options. Raises UsageError for a part that an option repeats."""
    if ":" in options.case:
        selector, count = parse_selector(options.case), options.case.count(":") + 1
        parts = {
            "framework": labelled(selector.framework, selector.version),
            "chip": selector.target,
            "layout": selector.layout,
            "nodes": selector.nodes if count > 3 else None,
            "devices": selector.devices,
        }
        parts = {name: value for name, value in parts.items() if value is not None}
        for name in parts:
            if getattr(options, name) is not None:
                raise UsageError(f"--{name}: found it in '{options.case}' too; leave one of the two out")
        vars(options).update(parts, case=selector.case)
    options.framework = options.framework or "torch"
    if options.chip is None:
        raise UsageError(f"plan {options.case}: found no chip; give --chip NAME or case:framework:chip (`show chips`)")


def _tokens(text: str | None) -> float | None:
    """Return the number of tokens that `300B` or `1.5T` stands for. Raises UsageError."""
    if text is None:
        return None
    match = _TOKENS.fullmatch(text.strip())
    tokens = float(match[1]) * 1000.0 ** _THOUSANDS.index(match[2].upper()) if match else 0.0
    if not 1 <= tokens <= MOST_TOKENS:
        raise UsageError(f"--tokens: found '{text[:40]}', expected 1 to 1e18 tokens, such as 300B, 1.5T or 2e12")
    return tokens


def _devices(options: argparse.Namespace, chip: Chip) -> tuple[Devices, list[str]]:
    """Return the devices that the options name, and what is assumed of them. Raises UsageError for counts that do not
    divide into nodes."""
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}: found {value}, expected 1 or more")
    if (devices := (options.nodes or 1) * (options.devices or 1)) > MOST_RANKS:
        raise UsageError(f"--nodes x --devices: found {devices:,}, expected at most {MOST_RANKS:,}")
    assumed = []
    most = chip.node.devices if chip.node else machines.DEVICES_PER_NODE
    nodes, per_node = options.nodes, options.devices or min(most, machines.DEVICES_PER_NODE)
    if nodes is None:
        nodes, per_node = _divided_into_nodes(per_node, most)
        if nodes > 1:
            assumed.append(f"nodes of {per_node} devices; --nodes and --devices change this")
    network = machines.network_rate(options.network) if options.network else None
    if nodes > 1 and network is None:
        port = machines.port_rate(chip)
        network, source = port * per_node, f" ({chip.node.source})" if chip.node else ""
        assumed.append(f"a network of {per_node} x {port * 8e-9:g} Gb/s per node{source}; --network changes this")
    return Devices(nodes, per_node, network), assumed


def _divided_into_nodes(devices: int, most: int) -> tuple[int, int]:
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


class ChipPlanner:
    """Plans on one chip by the options and the documents that they name. Raises UsageError or LayoutError for what is
    impossible.

    rated_chip: the chip with assumed rates in the place of those in `assumed_rates`, which are not public. Runs take
    the same rates; no run has products in NVFP4, so their rate is never assumed.
    """

    def __init__(self, options: argparse.Namespace, registry: Registry, vendor: VendorFile, chip: Chip) -> None:
        self.options, self.registry, self.vendor, self.chip = options, registry, vendor, chip
        self.tokens, self.prices = _tokens(options.tokens), prices_of(options)
        if self.prices and self.tokens is None:
            raise UsageError("--prices: expected --tokens N beside it; `report --prices` has the cost of runs")
        self.devices, self.assumed = _devices(options, chip)
        self.case = registry.case(options.case)
        self.work = _work_in(self.case.work(options.scale), options.precision)
        self.precision: PeakDtype = options.precision or self.work.training.precision
        self.rated_chip, self.assumed_rates = chip, tuple[str, ...]()
        if not vendor.is_host and self.precision != NVFP4:
            world = self.devices.nodes * self.devices.per_node
            self.rated_chip, self.assumed_rates = machines.with_assumed_rates(chip, self.work.training.precision, world)

    def plan(self) -> AnsweredPlan:
        """Search the rows."""
        options, assumed = self.options, (*self.assumed, *self._chip_assumptions())
        question, calibrated = self._calibrated(self._with_wanted_rows(self._question(self.work, self.devices)))
        try:
            ranking = answer(question)
        except machines.UnknownLink as error:
            raise UsageError(
                f"{self.chip.name}: {error}. Put `interconnect` with `each_way_bytes_per_second` and its source into "
                f"{_PRIVATE_CHIPS}, or plan for one device"
            ) from None
        return AnsweredPlan(
            question,
            self.vendor.name,
            self.chip,
            self.devices,
            self.precision,
            assumed,
            (*assumed, *calibrated, *self._remarks(question)),
            assumes_rates=bool(self.assumed_rates),
            ranking=ranking,
            not_offered=not_offered(question)[: options.beyond] if options.beyond and not options.layout else (),
            tokens=self.tokens,
            prices=self.prices,
        )

    def _chip_assumptions(self) -> Iterator[str]:
        """Yield what is assumed of the chip."""
        chip, precision = self.chip, self.work.training.precision
        if self.assumed_rates:
            lacks = chip.peaks and precision not in chip.peaks
            others = f", which has peaks of {', '.join(chip.peaks)} alone" if lacks else ""
            yield (
                f"{', '.join(self.assumed_rates)}: not public of {chip.name}{others}, so rows have the order that the "
                f"rates of an A100-SXM4-80GB give them, and no speed. Your own go into {_PRIVATE_CHIPS}"
            )
        elif self.precision in chip.peaks and (share := machines.assumed_share(chip, self.precision)):
            yield (
                f"large products at {share:.0%} of {chip.name}'s {self.precision} peak, as no public measurement is "
                f"known{self._measured_shares()}"
            )
        if private := self.registry.overlay and self.registry.overlay.used(self.vendor, chip):
            yield f"{', '.join(private.fields)} of {chip.name} as {private.file} has them"
        if chip.memory_bytes is None and not self.vendor.is_host:
            yield f"enough memory: that of {chip.name} is not public, so every layout counts as fitting"

    def _measured_shares(self) -> str:
        """Return which shares of their peaks other chips were measured to reach, as the end of a sentence."""
        chips = [chip for name in self.registry.vendors for chip in self.registry.vendor_file(name).chips]
        rates = [(chip.achievable.get(self.precision), chip.peaks.get(self.precision)) for chip in chips]
        shares = [rate.tflops / peak.tflops for rate, peak in rates if rate and peak]
        return f"; {len(shares)} measured reach {min(shares):.0%} to {max(shares):.0%}" if len(shares) > 1 else ""

    def _question(self, work: Work, devices: Devices) -> LayoutQuestion:
        framework, kind = self.options.framework, self.vendor.device_kind
        products = NVFP4 if self.precision == NVFP4 else None
        if not self.vendor.is_host:
            return questions.question_on_chip(self.registry, framework, work, self.rated_chip, kind, *devices, products)
        if products:
            raise UsageError(f"--precision {products}: a host's processors have none; give an accelerator with --chip")
        # Only a plan for this host runs anything, and what runs takes longer to import than most plans take.
        from levelfield.studies.variations import question_here

        selector = Selector(case=self.options.case, framework=framework, target=self.vendor.name)
        selection, terminal = lookup.find(self.registry, selector), Terminal(quiet=self.options.json)
        return question_here(self.registry, selection, work, devices.nodes * devices.per_node, terminal.say)

    def _with_wanted_rows(self, question: LayoutQuestion) -> LayoutQuestion:
        """Return the question with the program, and the rows alone that the options name."""
        options, offer = self.options, question.offer
        if options.program:
            stages = {"uneven", "interleaved"} if "pipeline" in offer.parallelism else set()
            refuses: tuple[Refusable, ...] = () if offer.repeats_some else (FIRST_LAYERS,)
            offer = SupportedParallelism(offer.parallelism | stages, RECOMPUTATIONS, refuses)
        if options.recompute and options.recompute not in offer.recompute:
            raise UsageError(
                f"--recompute {options.recompute}: framework {question.constants.framework} offers "
                f"{', '.join(offer.recompute)}"
            )
        if options.recompute_layers:
            self._require_first_layers(question)
        wanted = Wanted(
            layout=parse_layout(options.layout).layout if options.layout else None,
            micro_batch=options.micro_batch,
            recompute=options.recompute,
            recompute_layers=options.recompute_layers,
            virtual_pipeline=options.virtual_pipeline,
        )
        if wanted.layout is not None:
            batch, chunks = wanted.micro_batch or 1, wanted.virtual_pipeline or 1
            nodes, per_node, _ = self.devices
            require(question.work, wanted.layout, batch, nodes, per_node, chunks, uneven_stages=True)
            require_layers(question.work, wanted.layout, chunks, wanted.recompute_layers)
        return replace(question, wanted=wanted, offer=offer, constants=_constants(question.constants, options))

    def _require_first_layers(self, question: LayoutQuestion) -> None:
        """Raises UsageError for recomputation of some layers beside another kind than full, of more layers than the
        model has, or where the framework refuses it."""
        options, layers = self.options, question.work.model.layers
        named = f"--recompute-layers {options.recompute_layers}"
        if options.recompute != "full":
            raise UsageError(f"{named}: found --recompute {options.recompute or 'left out'}, expected --recompute full")
        if options.recompute_layers > layers:
            raise UsageError(f"{named}: {options.case} has {layers} layers; expected 1 to {layers}")
        if not question.offer.repeats_some:
            raise UsageError(
                f"{named}: framework {question.constants.framework} computes all layers again or none; leave it out"
            )

    def _calibrated(self, question: LayoutQuestion) -> tuple[LayoutQuestion, tuple[str, ...]]:
        """Return the question with the rate that a run set, and what changed. Raises UsageError for a run of other
        devices or of another framework, and for one without a valid speed."""
        if self.options.calibrate is None:
            return question, ()
        from levelfield.judge.collector import collect
        from levelfield.rundir.directory import read_plan

        named = f"--calibrate {self.options.calibrate}"
        paths = finished_run(self.options, self.options.calibrate)
        plan = read_plan(paths)
        expected = {"chip": self.chip.name, "framework": question.constants.framework}
        ran = {"chip": plan.hardware.chip.name, "framework": plan.implementation.framework}
        if wrong := [f"{key} {ran[key]}, expected {value}" for key, value in expected.items() if ran[key] != value]:
            raise UsageError(f"{named}: found a run with {' and '.join(wrong)}; take a run of what is planned")
        speed = collect(paths).throughput
        if speed is None:
            raise UsageError(
                f"{named}: found no speed, expected a valid run; `report {self.options.calibrate}` says why"
            )
        nodes, per_node = plan.hardware.nodes, plan.hardware.devices_per_node
        devices = Devices(nodes, per_node, machines.port_rate(self.chip) * per_node if nodes > 1 else None)
        run_question = self._question(plan.work, devices)
        try:
            fit = questions.calibration(run_question, plan.tuning, speed.tokens_per_second_per_device)
        except UsageError as error:
            raise UsageError(f"{named}: {error}") from None
        change = (
            f"{questions.RATE_WORDS[fit.rate]} at {fit.after:.3g} of the chip's rate, not at {fit.before:.3g}: run "
            f"{plan.run_id} had {fit.measured:,.0f} tokens/s on each device, and {fit.row.tokens_per_second:,.0f} were "
            "expected. What else differs is in this rate too"
        )
        return replace(question, constants=fit.applied(question.constants, question.on_host)), (change,)

    def _remarks(self, question: LayoutQuestion) -> Iterator[str]:
        """Yield what the question itself assumes, and what nothing here runs."""
        framework, layout = question.constants.framework, question.wanted.layout
        if self.precision == NVFP4:
            yield f"fp8 with products in {NVFP4.upper()}, in which no framework here trains; predicted only"
        elif self.options.precision:
            yield f"precision {self.precision}, whatever the case has"
        implementation, _ = self.registry.implementation(framework)
        if lacking := lookup.lacking_parts(self.case, implementation):
            yield f"{', '.join(lacking)}, which {implementation.framework} does not have here; predicted only"
        if question.work.model.experts is not None:
            busiest = question.constants.pace_on(question.on_host).expert_imbalance
            yield (
                f"the busiest expert rank has {busiest:g} x the mean's tokens; published runs lose 8 to 17 % to "
                "imbalance"
            )
        if layout is None:
            return
        if lacks := question.offer.lacks(Tuning(layout=layout), layout.pipeline):
            yield f"{', '.join(lacks)}, which {framework} does not offer here; predicted only"
        less, more = divmod(question.work.model.layers, layout.pipeline)
        if more:
            runs = "runs" if "uneven" in question.offer.parallelism else "does not run"
            yield (
                f"{more} stage{'s' if more > 1 else ''} of {less + 1} layers and {layout.pipeline - more} of {less}; "
                f"models/{framework} {runs} them"
            )


def _work_in(work: Work, precision: PeakDtype | None) -> Work:
    """Return the work in another precision, as the planner sees it; None: in that of the case."""
    if precision is None:
        return work
    changes = {"precision": "fp8" if precision == NVFP4 else precision}
    return work.model_copy(update={"training": work.training.model_copy(update=changes)})


def _constants(own: Constants, options: argparse.Namespace) -> Constants:
    """Return the constants of the program that the options name, with what they say of its pace."""
    if options.program is not None and options.program not in own.programs:
        near = difflib.get_close_matches(options.program, own.programs, n=1)
        nearest = f"nearest: {near[0]}; " if near else ""
        raise UsageError(
            f"--program {options.program}: framework {own.framework} has none of this name; {nearest}known: "
            f"{', '.join(own.programs) or 'none'} (`show programs`)"
        )
    overlap = options.tensor_overlap
    if overlap is not None and not 0 <= overlap <= 1:
        raise UsageError(f"--tensor-overlap: found {overlap:g}, expected a share from 0 to 1")
    constants = own.of_program(options.program) if options.program else own
    stated = {"tensor_overlap": overlap, "attention": options.attention}
    changes = {name: value for name, value in stated.items() if value is not None}
    return constants.model_copy(update={"pace": constants.pace.model_copy(update=changes)})
