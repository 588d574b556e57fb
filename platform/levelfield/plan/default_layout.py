"""The layout of a run where nothing sets one: the planner's fastest that fits, or the nearest to data parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from levelfield.catalog.lookup import Selection
from levelfield.predict.layout_rules import broken_rules, divisors
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, SearchConstraints, predict, search_layouts
from levelfield.predict.machines import DEVICES_PER_NODE, fill_assumed_rates, machine_rates, port_rate
from levelfield.predict.questions import supported_parallelism
from levelfield.specs.case import Scale, Work
from levelfield.specs.implementation import refused_choices
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Tuning, TuningChoice

MAX_ALTERNATIVES = 3  # of the planner, beside the chosen layout
MAX_SEARCHED_DEVICES = 1024
SEARCHED_FIELDS = ("micro_batch", "recompute", "recompute_layers", "virtual_pipeline")


@dataclass(frozen=True)
class LayoutChoice:
    """A layout, whether it was set or is the default, and the free fields that follow from it."""

    layout: Layout
    fields: dict[str, object]  # free fields that nothing else sets, by name
    origins: dict[str, str]  # the source of each of these fields; of the layout too, where it is a default
    # The planner's rows, the chosen one first; empty where the planner was not used.
    estimates: tuple[LayoutEstimate, ...] = field(default=())


@dataclass(frozen=True)
class LayoutTask:
    """What a layout is chosen for: the work of one scale, on `nodes` nodes with `devices` devices each."""

    selection: Selection
    work: Work
    nodes: int
    devices: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.devices

    def allows(self, layout: Layout, micro_batch: int, virtual_pipeline: int | None, uneven: bool = False) -> bool:
        """Return whether the layout obeys every rule here, and the framework does not refuse it.

        uneven: the stages may differ by a layer where the framework offers it.
        """
        implementation, kind = self.selection.implementation, self.selection.vendor.device_kind
        uneven = uneven and "uneven" in implementation.offered_parallelism(kind)
        reasons = broken_rules(self.work, layout, micro_batch, self.nodes, self.devices, virtual_pipeline or 1, uneven)
        tuning = Tuning(layout=layout, micro_batch=micro_batch, virtual_pipeline=virtual_pipeline or 1)
        return not reasons and self.framework_accepts(tuning)

    def framework_accepts(self, tuning: Tuning) -> bool:
        """Return whether the framework accepts this tuning."""
        kind = self.selection.vendor.device_kind
        return not refused_choices(self.selection.implementation.refusals(kind), self.work, tuning)


def default_layout(task: LayoutTask, scale: Scale, fixed: TuningChoice, defaults: TuningChoice) -> LayoutChoice:
    """Return the layout of a run where nothing sets one.

    fixed: the fields that a user, a suite or a vendor sets; they stay. defaults: `fixed`, with the case's defaults
    for the others.
    On accelerators of known memory the full case takes the planner's row; smoke scale and a host take data parallelism.
    """
    question = layout_question(task) if scale == "full" else None
    if question is None:
        return _near_data_parallel(task, fixed, defaults)
    ranking = search_layouts(replace(question, constraints=_constraints(fixed)))
    rows = ranking.rows.prefer_margin()[: 1 + MAX_ALTERNATIVES]
    estimates = tuple(rows) or ((ranking.least_memory,) if ranking.least_memory else ())
    if not estimates:
        return _near_data_parallel(task, fixed, defaults)
    best_tuning = estimates[0].tuning
    origin = "planner: fastest of those that fit" if rows else "planner: least memory of all layouts"
    _, assumed_rates = fill_assumed_rates(task.selection.chip, task.work.training.precision, task.world_size)
    if assumed_rates:
        origin = f"{origin} (not public, so assumed: {', '.join(assumed_rates)})"
    fields = _searched_fields(best_tuning, fixed)
    return LayoutChoice(best_tuning.layout, fields, dict.fromkeys(("layout", *fields), origin), estimates)


def usable_devices_per_node(task: LayoutTask, fixed: TuningChoice) -> int:
    """Return the largest number of devices of a node, up to the task's, for which a layout is possible; else all."""
    candidates = (replace(task, devices=count) for count in range(task.devices, 0, -1))
    return next(
        (
            candidate.devices
            for candidate in candidates
            if any(_possible_layouts(candidate, _unsharded_layouts(candidate), fixed))
        ),
        task.devices,
    )


def complete_layout(
    task: LayoutTask, scale: Scale, layout: Layout, fixed: TuningChoice, defaults: TuningChoice
) -> LayoutChoice:
    """Return the layout that is set, with the case's defaults for the other fields where they fit.

    Where they do not fit, at full scale on accelerators of known memory, the other fields are those of the planner's
    fastest row of this layout.
    """
    default = _choose_micro_batch(task, layout, fixed, defaults)
    question = layout_question(task) if scale == "full" and layout.world_size == task.world_size else None
    if question is None:
        return default
    tuning = Tuning.model_validate({**defaults.model_dump(exclude_none=True), **default.fields, "layout": layout})
    question = replace(question, constraints=replace(_constraints(fixed), layout=layout))
    if predict(question, tuning).fits:
        return default
    rows = search_layouts(question).rows.prefer_margin()
    allowed_tuning = next((row.tuning for row in rows if task.framework_accepts(row.tuning)), None)
    if allowed_tuning is None:
        return default
    fields = _searched_fields(allowed_tuning, fixed)
    origin = "planner: fastest of this layout that fits; the case's does not"
    return LayoutChoice(layout, fields, dict.fromkeys(fields, origin))


def _choose_micro_batch(task: LayoutTask, layout: Layout, fixed: TuningChoice, defaults: TuningChoice) -> LayoutChoice:
    """Return a layout that is set, with the case's micro-batch or the nearest that the layout allows."""
    batch = defaults.micro_batch or 1
    sizes = [size for _, size in _possible_layouts(task, [layout], fixed, uneven=True)]
    size = min(sizes, key=lambda size: max(size / batch, batch / size), default=batch)
    if size == batch:
        return LayoutChoice(layout, {}, {})
    origin = f"default: nearest to {batch} that divides the global batch {task.work.training.global_batch}"
    return LayoutChoice(layout, {"micro_batch": size}, {"micro_batch": origin})


def _searched_fields(tuning: Tuning, fixed: TuningChoice) -> dict[str, object]:
    """Return the fields of a row that nothing else sets."""
    return {name: getattr(tuning, name) for name in SEARCHED_FIELDS if getattr(fixed, name) is None}


def layout_question(task: LayoutTask) -> LayoutQuestion | None:
    """Return the planner's question; None for a host, for an unknown memory, and without the planner's constants."""
    selection, work = task.selection, task.work
    capacity = selection.device_memory_bytes(task.world_size)
    if selection.vendor.is_host or capacity is None or selection.constants is None:
        return None
    network = port_rate(selection.chip) * task.devices if task.nodes > 1 else None
    chip, _ = fill_assumed_rates(selection.chip, work.training.precision, task.world_size)
    machine = machine_rates(chip, work.training.precision, task.devices, network)
    supported = supported_parallelism(selection.implementation, selection.vendor.device_kind)
    return LayoutQuestion(
        work, machine, selection.constants, supported, on_host=False, devices=task.world_size, capacity_bytes=capacity
    )


def smallest_fitting_task(task: LayoutTask, fixed: TuningChoice) -> LayoutTask | None:
    """Double the devices until a layout with the fixed fields fits; return that task.

    None where none fits with up to MAX_SEARCHED_DEVICES devices in all.
    """
    while 2 * task.world_size <= MAX_SEARCHED_DEVICES:
        is_node_full = task.devices >= DEVICES_PER_NODE
        task = replace(task, nodes=2 * task.nodes) if is_node_full else replace(task, devices=2 * task.devices)
        question = layout_question(task)
        if question and search_layouts(replace(question, constraints=_constraints(fixed))).rows:
            return task
    return None


def _constraints(fixed: TuningChoice) -> SearchConstraints:
    return SearchConstraints(**{name: getattr(fixed, name) for name in SEARCHED_FIELDS})


def _near_data_parallel(task: LayoutTask, fixed: TuningChoice, defaults: TuningChoice) -> LayoutChoice:
    """Return data parallelism over all devices if it divides the work, else the possible layout that splits least."""
    data_parallel = Layout(data=task.world_size)
    layouts = {layout for layout, _ in _possible_layouts(task, _unsharded_layouts(task), fixed)}
    layout = min(layouts, key=lambda layout: (layout.tensor * layout.pipeline, layout.pipeline), default=data_parallel)
    origin = "default: data parallel over all devices"
    if layout != data_parallel:
        origin = f"default: nearest to data parallel that the case allows on {task.world_size} devices"
    default = _choose_micro_batch(task, layout, fixed, defaults)
    return replace(default, origins={"layout": origin, **default.origins})


def _unsharded_layouts(task: LayoutTask) -> Iterator[Layout]:
    """Return every layout without sharding that the framework offers on these devices."""
    offered = task.selection.implementation.offered_parallelism(task.selection.vendor.device_kind)
    for tensor in divisors(task.world_size) if "tensor" in offered else [1]:
        for pipeline in divisors(task.world_size // tensor) if "pipeline" in offered else [1]:
            layout = Layout(data=task.world_size // tensor // pipeline, tensor=tensor, pipeline=pipeline)
            if layout.data == 1 or "data" in offered:
                yield layout


def _possible_layouts(
    task: LayoutTask, layouts: Iterable[Layout], fixed: TuningChoice, uneven: bool = False
) -> Iterator[tuple[Layout, int]]:
    """Return every layout that obeys all rules, with each of its micro-batches."""
    sizes = [fixed.micro_batch] if fixed.micro_batch else divisors(task.work.training.global_batch)
    return (
        (layout, size)
        for layout in layouts
        for size in sizes
        if task.allows(layout, size, fixed.virtual_pipeline, uneven)
    )
