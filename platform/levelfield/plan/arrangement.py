"""The scale of a plan, and its free fields, layout, nodes and devices, with the origin of each value.

The scale is full where the estimated memory fits, else smoke, with the reason in numbers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from levelfield.catalog.machine import usable_cores
from levelfield.errors import DoesNotFit, NotHere
from levelfield.measure.parameter_counts import count_parameters
from levelfield.plan.default_layout import (
    LayoutTask,
    complete_layout,
    default_layout,
    smallest_fitting_task,
    usable_devices_per_node,
)
from levelfield.plan.devices import plan_hardware
from levelfield.plan.request import Decision
from levelfield.predict.footprint import Footprint, expected_memory
from levelfield.predict.layout_search import LayoutEstimate
from levelfield.predict.setup import training_setup
from levelfield.specs.case import Scale, Work
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS
from levelfield.specs.implementation import ImplementationFile, refused_choices
from levelfield.specs.layout import parse_layout
from levelfield.specs.tuning import Tuning, TuningChoice, TuningRow

GIB = 2**30
# What a refusal adds to the name of a kind of parallelism.
PARALLELISM_HINTS = {"context": " (several ranks share each sequence; `plan --layout` predicts it)"}


@dataclass(frozen=True)
class Arrangement:
    """The work of one scale with every free field set."""

    scale: Scale
    work: Work
    tuning: Tuning
    nodes: int
    devices_per_node: int
    origins: dict[str, str]  # the source of each free field
    layout_is_default: bool = False  # nothing sets the layout
    estimates: tuple[LayoutEstimate, ...] = ()  # the planner's rows, the chosen one first; empty where it was not used


@dataclass(frozen=True)
class _MergedChoice:
    """Chosen free fields, and the source of each."""

    fields: TuningChoice
    origins: dict[str, str]


def choose_scale(decision: Decision) -> tuple[Arrangement, str]:
    """Return the arrangement at the scale of the run, and the reason for the scale.

    Raises DoesNotFit for `--scale full` that exceeds the memory.
    """
    if decision.scale == "smoke":
        return arrange(decision, "smoke"), decision.scale_reason or "asked for with --scale smoke"
    full = arrange(decision, "full")
    memory_problem = _memory_problem(decision, full)
    if decision.scale == "full":
        if memory_problem and not decision.request.may_lack_hardware:
            raise DoesNotFit(f"--scale full: {memory_problem}. Use --scale smoke, another --layout, or more devices")
        return full, decision.scale_reason or "asked for with --scale full"
    is_accelerator = not decision.selection.vendor.is_host
    if memory_problem is None and is_accelerator:
        return full, "the estimate says that it fits"
    no_accelerator = None if is_accelerator else "there is no accelerator here"
    fitting_hint = _fitting_devices_hint(decision, full) if is_accelerator else None
    return arrange(decision, "smoke"), "; ".join(
        part for part in (no_accelerator, memory_problem, fitting_hint) if part
    )


def expected_footprint(decision: Decision, arrangement: Arrangement) -> Footprint:
    """Return the expected memory of the arrangement's fullest rank."""
    selection, work, tuning = decision.selection, arrangement.work, arrangement.tuning
    model = selection.constants.keeping if selection.constants else None
    return expected_memory(training_setup(work, tuning, selection.vendor.is_host, model))


def _memory_problem(decision: Decision, full: Arrangement) -> str | None:
    """Return a sentence when the full case cannot run on the devices; None where it can, or where that is unknown.

    Raises UsageError where the devices are absent and not assumed.
    """
    available = plan_hardware(decision, full).memory_bytes_per_device
    devices = full.nodes * full.devices_per_node
    memory = expected_footprint(decision, full)
    if available is None or memory.total <= available:
        return None
    rank_words = "one device" if devices == 1 else f"the fullest of {devices} devices"
    count = count_parameters(full.work.model, full.work.training.sequence_length).total
    return (
        f"{decision.selection.case.name} has {count:,} parameters and needs {memory.total / GIB:,.1f} GiB on "
        f"{rank_words} as {full.tuning.layout}; there are {available / GIB:,.1f} GiB"
    )


def _fitting_devices_hint(decision: Decision, full: Arrangement) -> str | None:
    """Return the number of devices from which the full case fits, with the command that plans it for a listed chip."""
    selection = decision.selection
    task = LayoutTask(selection, full.work, full.nodes, full.devices_per_node)
    fitting_task = smallest_fitting_task(task, decision.request.choice) if full.layout_is_default else None
    if fitting_task is None:
        return None
    fact = f"it fits from {fitting_task.nodes} x {fitting_task.devices} devices on"
    if selection.vendor.chip(selection.chip.name) is None:
        return f"{fact}; `run_benchmarks.py show chips` does not list {selection.chip.name}"
    command = (
        *("run_benchmarks.py", "plan", selection.case.name, "--chip", selection.chip.name),
        *("--framework", selection.implementation.framework, "--nodes", str(fitting_task.nodes)),
        *("--devices", str(fitting_task.devices), *selection.options),
    )
    return f"{fact}: `{shlex.join(command)}`"


def arrange(decision: Decision, scale: Scale) -> Arrangement:
    """Return every free field at this scale. Raises LayoutError for an unreadable layout text."""
    selection, selector, work = decision.selection, decision.selector, decision.selection.case.work(scale)
    choice = _merged_choice(decision, scale, with_case=True)
    requested_layout = parse_layout(choice.fields.layout) if choice.fields.layout else None
    nodes = requested_layout.nodes if requested_layout and requested_layout.nodes else selector.nodes
    devices = selector.devices or (requested_layout and requested_layout.devices_per_node)
    if not devices:
        devices = max(1, requested_layout.layout.world_size // nodes) if requested_layout else selection.default_devices
    task, fixed_fields = (
        LayoutTask(selection, work, nodes, devices),
        _merged_choice(decision, scale, with_case=False).fields,
    )
    if requested_layout:
        default = complete_layout(task, scale, requested_layout.layout, fixed_fields, choice.fields)
    else:
        if selector.devices is None:
            task = replace(task, devices=usable_devices_per_node(task, fixed_fields))
        default = default_layout(task, scale, fixed_fields, choice.fields)
    fields = TuningChoice.model_validate({**choice.fields.model_dump(exclude_none=True), **default.fields})
    origins = {**choice.origins, **default.origins}  # of the fields of a default layout: its own
    if fields.recompute_layers is None:
        origins.pop(RECOMPUTE_LAYERS, None)
    values = fields.model_dump(exclude_none=True, exclude={"layout"})
    if "threads" not in values and selection.vendor.is_host:  # its processes share its cores
        processes = task.devices if decision.request.launch else task.world_size
        values["threads"] = max(1, usable_cores() // processes)
        origins["threads"] = f"default: {usable_cores()} usable cores over {processes} process(es)"
    tuning = Tuning(layout=default.layout, **values)
    return Arrangement(scale, work, tuning, nodes, task.devices, origins, requested_layout is None, default.estimates)


def _merged_choice(decision: Decision, scale: Scale, with_case: bool) -> _MergedChoice:
    """Return the free fields of all sources: case, vendor, case string, suite, command line. The last has priority.

    with_case: False leaves the case's defaults out.
    """
    selection = decision.selection
    case_fields = selection.case.tuning.get(scale, TuningChoice()) if with_case else TuningChoice()
    sources = [
        (f"case {selection.case.name}", case_fields),
        *((f"vendor {selection.vendor.name}: {row.why}", row.set) for row in _applying_rows(decision, scale)),
        ("case string", TuningChoice(layout=decision.selector.layout)),
        (decision.suggestion.source, decision.suggestion.choice),
        ("command line", decision.request.choice),
    ]
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, choice in sources:
        if choice.recompute is not None:  # of all layers, unless the choice itself says of how many
            merged.pop(RECOMPUTE_LAYERS, None)
            origins.pop(RECOMPUTE_LAYERS, None)
        for key, value in choice.model_dump(exclude_none=True).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
            origins[key] = origin
    return _MergedChoice(TuningChoice.model_validate(merged), origins)


def _applying_rows(decision: Decision, scale: Scale) -> Iterator[TuningRow]:
    """Return the rows of the vendor's tuning that apply here; none for a base run."""
    selection, selector = decision.selection, decision.selector
    if decision.request.base:
        return
    devices = selector.devices or len(selection.devices)
    for row in selection.tuning_rows:
        if row.applies(scale, selection.chip.name, selection.implementation.framework, devices, selector.nodes):
            yield row


def refuse_unsupported(
    implementation: ImplementationFile, work: Work, tuning: Tuning, kind: str, captures_tensors: bool = False
) -> None:
    """Raises NotHere for what the implementation does not declare, and for what it refuses, with its reason.

    captures_tensors: of one step, into files.
    """
    offered = implementation.offered_parallelism(kind)
    lacking = [
        f"{name}{PARALLELISM_HINTS.get(name, '')} on {kind}" for name in tuning.parallelism if name not in offered
    ]
    precisions = implementation.offered_precisions(kind)
    if work.training.precision not in precisions:
        lacking.append(f"precision {work.training.precision} on {kind} (it has {', '.join(precisions) or 'none'})")
    if tuning.recompute not in implementation.recompute:
        lacking.append(f"recomputation {tuning.recompute}")
    lacking += [
        f"{name} (an option that {implementation.framework} does not have)"
        for name in tuning.non_default_fields
        if FREE_FIELDS[name].is_framework_specific and name not in implementation.free_fields
    ]
    refusals = implementation.refusals(kind)
    lacking += [f"{name} ({refusals[name]})" for name in refused_choices(refusals, work, tuning, captures_tensors)]
    if lacking:
        raise NotHere(f"{implementation.framework} does not offer: {', '.join(lacking)}")
