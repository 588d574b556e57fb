"""The layout of a run where nothing sets one: the planner's fastest that fits, or the nearest to data parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from levelfield.catalog.lookup import Selection
from levelfield.predict.layout_rules import broken, divisors
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, Wanted, answer, predict
from levelfield.predict.machines import DEVICES_PER_NODE, machine_of, port_rate, with_assumed_rates
from levelfield.predict.questions import offer_of
from levelfield.specs.case import Scale, Work
from levelfield.specs.implementation import refused
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Tuning, TuningChoice

NEXT_BEST = 3
MOST_DEVICES = 1024
SEARCHED = ("micro_batch", "recompute", "recompute_layers", "virtual_pipeline")


@dataclass(frozen=True)
class DefaultLayout:
    """The layout and its source. fields: the free fields that follow from it. estimates: the planner's rows, the chosen
    one first; empty where the planner was not used."""

    layout: Layout
    fields: dict[str, object]
    origins: dict[str, str]
    estimates: tuple[LayoutEstimate, ...] = field(default=())


@dataclass(frozen=True)
class Place:
    """The work of one scale on a number of nodes and of devices of each."""

    selection: Selection
    work: Work
    nodes: int
    devices: int

    @property
    def world(self) -> int:
        return self.nodes * self.devices

    def allows(self, layout: Layout, micro_batch: int, chunks: int | None, uneven: bool = False) -> bool:
        """Return whether the layout obeys every rule here, and the framework does not refuse it.

        uneven: the stages may differ by a layer where the framework offers it.
        """
        file, kind = self.selection.implementation, self.selection.vendor.device_kind
        uneven = uneven and "uneven" in file.offered_parallelism(kind)
        is_broken = broken(self.work, layout, micro_batch, self.nodes, self.devices, chunks or 1, uneven)
        tuning = Tuning(layout=layout, micro_batch=micro_batch, virtual_pipeline=chunks or 1)
        return not is_broken and self.runs(tuning)

    def runs(self, tuning: Tuning) -> bool:
        """Return whether the framework refuses nothing of it."""
        kind = self.selection.vendor.device_kind
        return not refused(self.selection.implementation.refusals(kind), self.work, tuning)


def default_layout(place: Place, scale: Scale, fixed: TuningChoice, defaults: TuningChoice) -> DefaultLayout:
    """Return the layout where nothing sets one.

    fixed: the fields that a user, a suite or a vendor sets; they stay. defaults: the same with the case's defaults.
    On accelerators of known memory the full case takes the planner's row; smoke scale and a host take data parallelism.
    """
    question = question_of(place) if scale == "full" else None
    if question is None:
        return _near_data_parallel(place, fixed, defaults)
    ranking = answer(replace(question, wanted=_wanted(fixed)))
    rows = ranking.rows.roomy_first()[: 1 + NEXT_BEST]
    estimates = tuple(rows) or ((ranking.nearest,) if ranking.nearest else ())
    if not estimates:
        return _near_data_parallel(place, fixed, defaults)
    best = estimates[0].tuning
    origin = "planner: fastest of those that fit" if rows else "planner: least memory of all layouts"
    _, assumed = with_assumed_rates(place.selection.chip, place.work.training.precision, place.world)
    if assumed:
        origin = f"{origin} (not public, so assumed: {', '.join(assumed)})"
    fields = _searched_fields(best, fixed)
    return DefaultLayout(best.layout, fields, dict.fromkeys(("layout", *fields), origin), estimates)


def most_devices(place: Place, fixed: TuningChoice) -> int:
    """Return the largest number of devices of a node, up to the place's, for which a layout is possible; else all."""
    fewer = (replace(place, devices=count) for count in range(place.devices, 0, -1))
    return next((p.devices for p in fewer if any(_possible(p, _divisions(p), fixed))), place.devices)


def set_layout(
    place: Place, scale: Scale, layout: Layout, fixed: TuningChoice, defaults: TuningChoice
) -> DefaultLayout:
    """Return a layout that is set, with the case's other fields where they are possible and fit.

    Where they do not fit, on accelerators of known memory at full scale, it has those of the planner's fastest row of
    this layout that does.
    """
    default = _with_batch(place, layout, fixed, defaults)
    question = question_of(place) if scale == "full" and layout.world_size == place.world else None
    if question is None:
        return default
    tuning = Tuning.model_validate({**defaults.model_dump(exclude_none=True), **default.fields, "layout": layout})
    question = replace(question, wanted=replace(_wanted(fixed), layout=layout))
    if predict(question, tuning).fits:
        return default
    rows = answer(question).rows.roomy_first()
    allowed = next((row.tuning for row in rows if place.runs(row.tuning)), None)
    if allowed is None:
        return default
    fields = _searched_fields(allowed, fixed)
    origin = "planner: fastest of this layout that fits; the case's does not"
    return DefaultLayout(layout, fields, dict.fromkeys(fields, origin))


def _with_batch(place: Place, layout: Layout, fixed: TuningChoice, defaults: TuningChoice) -> DefaultLayout:
    """Return a layout that is set, with the case's micro-batch or the nearest that the layout allows."""
    batch = defaults.micro_batch or 1
    sizes = [size for _, size in _possible(place, [layout], fixed, uneven=True)]
    size = min(sizes, key=lambda size: max(size / batch, batch / size), default=batch)
    if size == batch:
        return DefaultLayout(layout, {}, {})
    origin = f"default: nearest to {batch} that divides the global batch {place.work.training.global_batch}"
    return DefaultLayout(layout, {"micro_batch": size}, {"micro_batch": origin})


def _searched_fields(tuning: Tuning, fixed: TuningChoice) -> dict[str, object]:
    """Return the fields of a row that nothing else sets."""
    return {name: getattr(tuning, name) for name in SEARCHED if getattr(fixed, name) is None}


def question_of(place: Place) -> LayoutQuestion | None:
    """Return the planner's question; None for a host, for an unknown memory, and without the planner's constants."""
    selection, work = place.selection, place.work
    capacity = selection.memory_of_device(place.world)
    if selection.vendor.is_host or capacity is None or selection.constants is None:
        return None
    network = port_rate(selection.chip) * place.devices if place.nodes > 1 else None
    chip, _ = with_assumed_rates(selection.chip, work.training.precision, place.world)
    machine = machine_of(chip, work.training.precision, place.devices, network)
    offer = offer_of(selection.implementation, selection.vendor.device_kind)
    return LayoutQuestion(work, machine, selection.constants, offer, False, place.world, capacity)


def fits_from(place: Place, fixed: TuningChoice) -> Place | None:
    """Return the place from which a layout with the fixed fields fits, by doubling; None up to MOST_DEVICES."""
    while place.world < MOST_DEVICES:
        full = place.devices >= DEVICES_PER_NODE
        place = replace(place, nodes=2 * place.nodes) if full else replace(place, devices=2 * place.devices)
        question = question_of(place)
        if question and answer(replace(question, wanted=_wanted(fixed))).rows:
            return place
    return None


def _wanted(fixed: TuningChoice) -> Wanted:
    return Wanted(**{name: getattr(fixed, name) for name in SEARCHED})


def _near_data_parallel(place: Place, fixed: TuningChoice, defaults: TuningChoice) -> DefaultLayout:
    """Return data parallelism over all devices if it divides the work, else the possible layout that splits least."""
    plain = Layout(data=place.world)
    layouts = {layout for layout, _ in _possible(place, _divisions(place), fixed)}
    layout = min(layouts, key=lambda layout: (layout.tensor * layout.pipeline, layout.pipeline), default=plain)
    origin = "default: data parallel over all devices"
    if layout != plain:
        origin = f"default: nearest to data parallel that the case allows on {place.world} devices"
    default = _with_batch(place, layout, fixed, defaults)
    return replace(default, origins={"layout": origin, **default.origins})


def _divisions(place: Place) -> Iterator[Layout]:
    """Return every layout without sharding that the framework offers on these devices."""
    offered = place.selection.implementation.offered_parallelism(place.selection.vendor.device_kind)
    for tensor in divisors(place.world) if "tensor" in offered else [1]:
        for pipeline in divisors(place.world // tensor) if "pipeline" in offered else [1]:
            layout = Layout(data=place.world // tensor // pipeline, tensor=tensor, pipeline=pipeline)
            if layout.data == 1 or "data" in offered:
                yield layout


def _possible(
    place: Place, layouts: Iterable[Layout], fixed: TuningChoice, uneven: bool = False
) -> Iterator[tuple[Layout, int]]:
    """Return every layout that obeys all rules, with each of its micro-batches."""
    sizes = [fixed.micro_batch] if fixed.micro_batch else divisors(place.work.training.global_batch)
    return ((at, size) for at in layouts for size in sizes if place.allows(at, size, fixed.virtual_pipeline, uneven))
