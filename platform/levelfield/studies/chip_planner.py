"""Plans a training on one chip: makes the planner's question from a request, and finds the rows that answer it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.measure.cost import ResourceUse, TrainingBill, training_bill
from levelfield.measure.flops import flops_per_token
from levelfield.measure.other_use import HostUse
from levelfield.predict import machines, questions
from levelfield.predict.layout_rules import divisors, require_layers, require_possible
from levelfield.predict.layout_search import (
    RECOMPUTATIONS,
    LayoutEstimate,
    LayoutQuestion,
    LayoutRanking,
    SearchConstraints,
    SupportedParallelism,
    search_layouts,
    unsupported_rows,
)
from levelfield.report.words import age_in_words
from levelfield.rundir.directory import find_finished_run, read_plan
from levelfield.specs.base import MAX_RANKS
from levelfield.specs.case import Scale, Work
from levelfield.specs.constants import (
    CHIP_RATIO_ERRORS,
    SPEED_VENDORS,
    AttentionKernel,
    Constants,
)
from levelfield.specs.host_rates import HostRates
from levelfield.specs.implementation import RECOMPUTE_FIRST_LAYERS, Refusable
from levelfield.specs.prices import Prices
from levelfield.specs.residuals import PlanError, RunKind, plan_error
from levelfield.specs.run_figures import HEADLINE_FORMULA
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import HOST_SHARE, Chip, PeakDtype, VendorFile

NVFP4: PeakDtype = "nvfp4"  # for products alone: values in memory and messages are those of fp8
_PRIVATE_CHIPS = "vendor.yaml or a private chips file (--chips, docs/private-chips.md)"


@dataclass(frozen=True)
class PlanRequest:
    """What is planned, as the user states it. None: as the case, the chip or the framework has it."""

    case: str
    framework: str
    scale: Scale
    nodes: int | None
    devices: int | None
    network: str | None  # the rate of a node, such as 8x400Gb/s
    precision: PeakDtype | None
    constraints: SearchConstraints
    extra_rows: int  # how many rows that do not fit, and that the framework does not offer, are wanted too
    program: str | None
    attention: AttentionKernel | None
    tensor_overlap: float | None
    calibration_run: str | None  # a run of `runs` that sets one rate
    runs: Path
    tokens: float | None  # of the training whose time is wanted
    prices: Prices | None

    def __post_init__(self) -> None:
        constraints = self.constraints
        counts = {"nodes": self.nodes, "devices": self.devices, "micro-batch": constraints.micro_batch}
        counts |= {"virtual-pipeline": constraints.virtual_pipeline, "recompute-layers": constraints.recompute_layers}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise UsageError(f"--{name}: found {count}, expected 1 or more")
        if self.prices and self.tokens is None:
            raise UsageError("--prices: expected --tokens N beside it; `report --prices` has the cost of runs")


class Devices(NamedTuple):
    """The devices of a plan."""

    nodes: int
    per_node: int
    network_bytes_per_second: float | None  # of a node; None for a single node without a stated rate


@dataclass(frozen=True)
class AnsweredPlan:
    """A question about one chip with its rows."""

    request: PlanRequest
    question: LayoutQuestion
    vendor: str  # of the chip
    chip: Chip
    devices: Devices
    precision: PeakDtype  # of the products
    assumed: tuple[str, ...]  # sentences about what the user gave no value for
    remarks: tuple[str, ...]  # `assumed`, and what the question itself assumes
    assumes_rates: bool  # the rows are in the order that rates of another chip give, so no speed is known
    error: PlanError | None  # None without a speed, and on a host
    program: str  # the code that the rows assume
    ranking: LayoutRanking
    not_offered: Sequence[LayoutEstimate]  # rows that need what the framework does not offer

    def speed_share(self, row: LayoutEstimate) -> float:
        """Return the speed of a row over that of the first."""
        first = next(iter(self.ranking.rows or self.ranking.overfull_rows), row)
        return row.tokens_per_second / first.tokens_per_second

    def mfu(self, row: LayoutEstimate) -> float | None:
        """Return the MFU by the headline formula; None where the chip's rates or its peak are not known."""
        work, peak = self.question.work, self.chip.peaks.get(self.precision)
        if peak is None or self.assumes_rates:
            return None
        flops = flops_per_token(HEADLINE_FORMULA, work.model, work.training.sequence_length)
        return row.tokens_per_second * flops / (peak.tflops * 1e12)

    def interval(self, row: LayoutEstimate) -> list[float] | None:
        """Return the two speeds between which a run is expected by the nearest published ones; None on a host, and
        without a speed."""
        return [share * row.tokens_per_second for share in (self.error.low, self.error.high)] if self.error else None

    @property
    def median_error(self) -> float | None:
        """The median error of published runs that differ in the chip alone; None without any or a speed."""
        return self.error.median_error if self.error else None

    def bill(self, row: LayoutEstimate, share: float = 1.0) -> TrainingBill:
        """Return what the training on --tokens takes. share: its speed, over the row's."""
        assert self.request.tokens is not None
        chip, devices = self.chip, self.question.devices
        rate = share * row.tokens_per_second * devices
        use = ResourceUse(
            chip.name,
            is_host_share=chip.device_is == HOST_SHARE,
            nodes=self.devices.nodes,
            devices=devices,
            tokens_per_second=rate,
            joules_per_token=chip.power_watts * devices / rate if chip.power_watts else None,
            missing_energy_reason=f"no source gives the power of {chip.name}; --chips FILE adds it",
        )
        return training_bill(use, self.request.tokens, self.request.prices)

    def bill_bounds(self, row: LayoutEstimate) -> tuple[TrainingBill, TrainingBill] | None:
        """Return what the training takes at the fast and at the slow end of the row's interval of speed; None without
        an interval."""
        if self.request.tokens is None or self.error is None:
            return None
        return self.bill(row, self.error.high), self.bill(row, self.error.low)


@dataclass(frozen=True)
class ChipPlan:
    """A plan with the row that stands for it."""

    plan: AnsweredPlan
    row: LayoutEstimate | None  # the fastest that leaves memory free, else the fastest; None where no layout fits
    chip_name: str
    speed: float | None  # tokens/s of a device; None where no layout fits, and where the chip's rates are not known
    # why the speed is in no ratio; None where published runs on chips of this vendor calibrate it
    not_calibrated_reason: str | None


def chip_plan(plan: AnsweredPlan) -> ChipPlan:
    """Return the plan with the row that stands for it."""
    row = next(iter(plan.ranking.rows.prefer_margin()), None)
    speed = None if row is None or plan.assumes_rates else row.tokens_per_second
    reason = None if plan.vendor in SPEED_VENDORS else f"{plan.vendor}: not calibrated"
    if reason and plan.median_error is None:
        reason += "; error unknown"
    return ChipPlan(plan, row, plan.chip.name, speed, reason)


@dataclass(frozen=True)
class RatioBase:
    """The speed by which the speeds of all chips are divided: that of the first chip."""

    speed: float | None
    chip_name: str | None  # None where nothing is divided by its speed
    reason: str | None  # why no chip has a ratio: no published run shows the error of the first one
    error: float  # how far the ratio of two plans may be off: that of published pairs, or of rows like the base

    def error_beside(self, plan: ChipPlan) -> float | None:
        """Return the error that is larger than the difference of a chip's speed from the first's; None where the
        difference is larger."""
        if not plan.speed or not self.speed or plan.chip_name == self.chip_name:
            return None
        error = max(self.error, plan.plan.median_error or 0.0)
        return error if max(plan.speed / self.speed, self.speed / plan.speed) - 1 <= error else None

    def ratio(self, plan: ChipPlan) -> tuple[float | None, str | None]:
        """Return the speed of a chip over that of the first, and why there is none. A chip without a speed has
        neither."""
        missing = (plan.not_calibrated_reason or self.reason) if plan.speed else None
        if not missing and (error := self.error_beside(plan)):
            missing = f"the difference from {self.chip_name} is within the error, {error:.0%}"
        return None if missing or not (plan.speed and self.speed) else plan.speed / self.speed, missing


def ratio_base(plans: Sequence[ChipPlan]) -> RatioBase:
    """Return the base of plans in the order of their chips: the first with a speed, or without a calibrated one."""
    first = next((plan for plan in plans if plan.speed or plan.not_calibrated_reason), plans[0])
    error = max(CHIP_RATIO_ERRORS[0], first.plan.median_error or 0.0)
    if first.not_calibrated_reason:
        return RatioBase(
            first.speed, None, f"{first.chip_name}, the first chip, is of {first.not_calibrated_reason}", error
        )
    return RatioBase(first.speed, first.chip_name if first.speed else None, None, error)


def _resolve_devices(request: PlanRequest, chip: Chip) -> tuple[Devices, list[str]]:
    """Return the devices of the request, and what is assumed of them. Raises UsageError for counts that do not
    divide into nodes."""
    if (devices := (request.nodes or 1) * (request.devices or 1)) > MAX_RANKS:
        raise UsageError(f"--nodes x --devices: found {devices:,}, expected at most {MAX_RANKS:,}")
    assumed = []
    devices_per_node = chip.node.devices if chip.node else machines.DEVICES_PER_NODE
    nodes, per_node = request.nodes, request.devices or min(devices_per_node, machines.DEVICES_PER_NODE)
    if nodes is None:
        devices, per_node = per_node, min(per_node, devices_per_node)
        # a rack whose links join more devices than usual gives each run an equal part
        if devices_per_node > machines.DEVICES_PER_NODE:
            per_node = max(n for n in divisors(devices) if n <= devices_per_node)
        if devices % per_node or (devices_per_node > 2 * per_node and per_node < devices):
            raise UsageError(
                f"--devices {devices}: expected a multiple of {per_node}, the assumed devices per node; "
                "give --nodes N and --devices per node"
            )
        nodes = devices // per_node
        if nodes > 1:
            assumed.append(f"nodes of {per_node} devices; --nodes and --devices change this")
    network = machines.network_rate(request.network) if request.network else None
    if nodes > 1 and network is None:
        port = machines.port_rate(chip)
        network, source = port * per_node, f" ({chip.node.source})" if chip.node else ""
        assumed.append(f"a network of {per_node} x {port * 8e-9:g} Gb/s per node{source}; --network changes this")
    return Devices(nodes, per_node, network), assumed


class ChipPlanner:
    """Plans on one chip by a request and the documents that it names. Raises UsageError or LayoutError for what is
    impossible.

    rated_chip: the chip with assumed rates in the place of those in `assumed_rates`, which are not public. Runs take
    the same rates; no run has products in NVFP4, so their rate is never assumed.
    """

    def __init__(
        self, request: PlanRequest, registry: Registry, vendor: VendorFile, chip: Chip, say: Callable[[str], None]
    ) -> None:
        self.request, self.registry, self.vendor, self.chip, self.say = request, registry, vendor, chip, say
        self.devices, self.assumed = _resolve_devices(request, chip)
        self.host_rates: HostRates | None = None  # of a plan on this host, once they are needed
        self.case = registry.case(request.case)
        self.work = self.case.work(request.scale)
        if request.precision is not None:
            changes = {"precision": "fp8" if request.precision == NVFP4 else request.precision}
            training = self.work.training.model_copy(update=changes)
            self.work = self.work.model_copy(update={"training": training})
        self.precision: PeakDtype = request.precision or self.work.training.precision
        self.rated_chip, self.assumed_rates = chip, tuple[str, ...]()
        if not vendor.is_host and self.precision != NVFP4:
            world = self.devices.nodes * self.devices.per_node
            self.rated_chip, self.assumed_rates = machines.fill_assumed_rates(chip, self.work.training.precision, world)

    def plan(self) -> AnsweredPlan:
        """Search the rows."""
        request, assumed = self.request, (*self.assumed, *self._chip_assumptions())
        question, calibrated = self._calibrated_question(
            self._constrained_question(self._plain_question(self.work, self.devices))
        )
        try:
            ranking = search_layouts(question)
        except machines.UnknownLink as error:
            raise UsageError(
                f"{self.chip.name}: {error}. Put `interconnect` with `each_way_bytes_per_second` and its source into "
                f"{_PRIVATE_CHIPS}, or plan for one device"
            ) from None
        return AnsweredPlan(
            request,
            question,
            self.vendor.name,
            self.chip,
            self.devices,
            self.precision,
            assumed,
            (*assumed, *calibrated, *self._remarks(question)),
            assumes_rates=bool(self.assumed_rates),
            error=None if self.assumed_rates or question.on_host else self._error(question),
            program=_program_text(question.constants, request.program),
            ranking=ranking,
            not_offered=unsupported_rows(question)[: request.extra_rows]
            if request.extra_rows and not request.constraints.layout
            else (),
        )

    def _error(self, question: LayoutQuestion) -> PlanError | None:
        """Return how far published runs near to the rows were from their plans."""
        framework, is_mixture = question.constants.framework, question.work.model.experts is not None
        kind = RunKind(self.vendor.name, self.chip.name, framework, self.precision, is_mixture)
        return plan_error(self.registry.planner_residuals, kind, self.request.program is not None)

    def _chip_assumptions(self) -> Iterator[str]:
        """Yield what is assumed of the chip."""
        chip, precision = self.chip, self.work.training.precision
        if self.assumed_rates:
            lacks_peak = chip.peaks and precision not in chip.peaks
            others = f", which has peaks of {', '.join(chip.peaks)} alone" if lacks_peak else ""
            yield (
                f"{', '.join(self.assumed_rates)}: not public of {chip.name}{others}, so rows have the order that the "
                f"rates of an A100-SXM4-80GB give them, and no speed. Your own go into {_PRIVATE_CHIPS}"
            )
        elif self.precision in chip.peaks and (share := machines.assumed_share(chip, self.precision)):
            chips = [chip for name in self.registry.vendors for chip in self.registry.vendor_file(name).chips]
            rates = [(chip.achievable.get(self.precision), chip.peaks.get(self.precision)) for chip in chips]
            shares = [rate.tflops / peak.tflops for rate, peak in rates if rate and peak]
            ends = f"{min(shares):.0%} to {max(shares):.0%}" if len(shares) > 1 else ""
            others = f"; {len(shares)} measured reach {ends}" if ends else ""
            yield (
                f"large products at {share:.0%} of {chip.name}'s {self.precision} peak, as no public measurement is "
                f"known{others}"
            )
        if private_data := self.registry.overlay and self.registry.overlay.overlay_used(self.vendor, chip):
            yield f"{', '.join(private_data.fields)} of {chip.name} as {private_data.file} has them"
        if chip.memory_bytes is None and not self.vendor.is_host:
            yield f"enough memory: that of {chip.name} is not public, so every layout counts as fitting"

    def _plain_question(self, work: Work, devices: Devices) -> LayoutQuestion:
        framework, kind = self.request.framework, self.vendor.device_kind
        products = NVFP4 if self.precision == NVFP4 else None
        if not self.vendor.is_host:
            return questions.chip_question(self.registry, framework, work, self.rated_chip, kind, *devices, products)
        if products:
            raise UsageError(f"--precision {products}: a host's processors have none; give an accelerator with --chip")
        # Only a plan for this host runs anything, and what runs takes longer to import than most plans take.
        from levelfield.studies.variations import host_rates, local_question

        self.host_rates = self.host_rates or host_rates(self.registry, self.say)
        selector = Selector(case=self.request.case, framework=framework, target=self.vendor.name)
        selection = lookup.find_selection(self.registry, selector)
        return local_question(self.registry, selection, work, devices.nodes * devices.per_node, self.host_rates)

    def _constrained_question(self, question: LayoutQuestion) -> LayoutQuestion:
        """Return the question with the named program's offer, and with the user's constraints on the rows."""
        request, constraints, supported = self.request, self.request.constraints, question.supported
        if request.program:
            stages = {"uneven", "interleaved"} if "pipeline" in supported.parallelism else set()
            refuses: tuple[Refusable, ...] = () if supported.can_repeat_first_layers else (RECOMPUTE_FIRST_LAYERS,)
            supported = SupportedParallelism(supported.parallelism | stages, RECOMPUTATIONS, refuses)
        if constraints.recompute and constraints.recompute not in supported.recompute:
            raise UsageError(
                f"--recompute {constraints.recompute}: framework {question.constants.framework} offers "
                f"{', '.join(supported.recompute)}"
            )
        if count := constraints.recompute_layers:  # of full recomputation alone
            option, recompute, layers = f"--recompute-layers {count}", constraints.recompute, question.work.model.layers
            if recompute != "full":
                raise UsageError(f"{option}: found --recompute {recompute or 'left out'}, expected --recompute full")
            if count > layers:
                raise UsageError(f"{option}: {request.case} has {layers} layers; expected 1 to {layers}")
            if not question.supported.can_repeat_first_layers:
                framework = question.constants.framework
                raise UsageError(f"{option}: framework {framework} computes all layers again or none; leave it out")
        if constraints.layout is not None:
            batch, chunks = constraints.micro_batch or 1, constraints.virtual_pipeline or 1
            nodes, per_node, _ = self.devices
            require_possible(question.work, constraints.layout, batch, nodes, per_node, chunks, uneven_stages=True)
            require_layers(question.work, constraints.layout, chunks, constraints.recompute_layers)
        return replace(
            question,
            constraints=constraints,
            supported=supported,
            constants=_program_constants(question.constants, request).for_products(self.precision),
        )

    def _calibrated_question(self, question: LayoutQuestion) -> tuple[LayoutQuestion, tuple[str, ...]]:
        """Return the question with the rate that a run set, and what changed. Raises UsageError for a run of other
        devices or of another framework, and for one without a valid speed."""
        if self.request.calibration_run is None:
            return question, ()
        from levelfield.judge.collector import collect

        option = f"--calibrate {self.request.calibration_run}"
        paths = find_finished_run(self.request.runs, self.request.calibration_run)
        plan = read_plan(paths)
        expected = {"chip": self.chip.name, "framework": question.constants.framework}
        actual = {"chip": plan.hardware.chip.name, "framework": plan.implementation.framework}
        if faults := [
            f"{key} {actual[key]}, expected {value}" for key, value in expected.items() if actual[key] != value
        ]:
            raise UsageError(f"{option}: found a run with {' and '.join(faults)}; take a run of what is planned")
        speed = collect(paths).throughput
        if speed is None:
            raise UsageError(
                f"{option}: found no speed, expected a valid run; `report {self.request.calibration_run}` says why"
            )
        nodes, per_node = plan.hardware.nodes, plan.hardware.devices_per_node
        devices = Devices(nodes, per_node, machines.port_rate(self.chip) * per_node if nodes > 1 else None)
        run_question = self._plain_question(plan.work, devices)
        try:
            calibration = questions.calibrate(run_question, plan.tuning, speed.tokens_per_second_per_device)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
        change = (
            f"{questions.RATE_WORDS[calibration.rate_name]} at {calibration.new_rate:.3g} of the chip's rate, not at "
            f"{calibration.old_rate:.3g}: run {plan.run_id} had {calibration.measured_speed:,.0f} tokens/s on each "
            f"device, and {calibration.row.tokens_per_second:,.0f} were expected. What else differs is in this rate too"
        )
        return replace(question, constants=calibration.apply_to(question.constants, question.on_host)), (change,)

    def _remarks(self, question: LayoutQuestion) -> Iterator[str]:
        """Yield what the question itself assumes, and what nothing here runs."""
        framework, layout = question.constants.framework, question.constraints.layout
        if self.host_rates:
            yield _host_rates_text(self.host_rates)
        if self.precision == NVFP4:
            yield f"fp8 with products in {NVFP4.upper()}, in which no framework here trains; predicted only"
        elif self.request.precision:
            yield f"precision {self.precision}, whatever the case has"
        implementation, _ = self.registry.implementation(framework)
        if lacking := [part for part in self.case.parts if part not in implementation.architecture]:
            yield f"{', '.join(lacking)}, which {implementation.framework} does not have here; predicted only"
        if question.work.model.experts is not None:
            busiest = question.constants.pace_on(question.on_host).expert_imbalance
            yield (
                f"the busiest expert rank has {busiest:g} x the mean's tokens; published runs lose 8 to 17 % to "
                "imbalance"
            )
        if layout is None:
            return
        if missing_features := question.supported.missing_parallelism(Tuning(layout=layout), layout.pipeline):
            yield f"{', '.join(missing_features)}, which {framework} does not offer here; predicted only"
        layers_per_stage, larger_stages = divmod(question.work.model.layers, layout.pipeline)
        if larger_stages:
            runs_text = "runs" if "uneven" in question.supported.parallelism else "does not run"
            yield (
                f"{larger_stages} stage{'s' if larger_stages > 1 else ''} of {layers_per_stage + 1} layers and "
                f"{layout.pipeline - larger_stages} of {layers_per_stage}; "
                f"models/{framework} {runs_text} them"
            )


def _host_rates_text(rates: HostRates) -> str:
    """Return how old the rates of this host are, and under which load they were measured."""
    if rates.measured_at is None:
        return "this host's rates as an earlier version measured them; it recorded neither date nor load"
    age = age_in_words(datetime.now(timezone.utc) - rates.measured_at)
    date = rates.measured_at.strftime("%Y-%m-%d %H:%M UTC")
    host_use = HostUse(rates.other_cores, rates.cores)
    load = "what other programs used is not known"
    if host_use.other_cores is not None:
        load = f"other programs used {host_use.other_cores:.2f} of {host_use.cores} cores"
    limit_text = f" (limit: {host_use.limit:.2g}), so the host may be faster" if host_use.is_noticeable else ""
    return f"this host's rates as measured on {date}, {age} ago, while {load}{limit_text}"


def _program_text(constants: Constants, program: str | None) -> str:
    """Return the code that the rows assume, in words."""
    if program:
        return f"{program}, {constants.programs[program].title}"
    others = f"; `--program` takes {', '.join(constants.programs)}" if constants.programs else ""
    return f"models/{constants.framework}, as `run` trains it{others}"


def _program_constants(constants: Constants, request: PlanRequest) -> Constants:
    """Return the constants of the program that the request names, with what they say of its pace."""
    if request.program is not None and request.program not in constants.programs:
        matches = difflib.get_close_matches(request.program, constants.programs, n=1)
        nearest = f"nearest: {matches[0]}; " if matches else ""
        raise UsageError(
            f"--program {request.program}: framework {constants.framework} has none of this name; {nearest}known: "
            f"{', '.join(constants.programs) or 'none'} (`show programs`)"
        )
    overlap = request.tensor_overlap
    if overlap is not None and not 0 <= overlap <= 1:
        raise UsageError(f"--tensor-overlap: found {overlap:g}, expected a share from 0 to 1")
    constants = constants.for_program(request.program) if request.program else constants
    pace_fields = {"tensor_overlap": overlap, "attention": request.attention}
    changes = {name: value for name, value in pace_fields.items() if value is not None}
    return constants.model_copy(update={"pace": constants.pace.model_copy(update=changes)})
