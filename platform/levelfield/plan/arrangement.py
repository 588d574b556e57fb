"""The free fields, layout, nodes and devices of a plan, with the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from levelfield.catalog.lookup import Selection
from levelfield.catalog.machine import usable_cores
from levelfield.errors import NotHere
from levelfield.plan.default_layout import DefaultLayout, Place, default_layout, given_layout, most_devices
from levelfield.plan.request import Decision
from levelfield.predict.layout_search import LayoutEstimate
from levelfield.specs.case import Scale, Work
from levelfield.specs.free_fields import FREE_FIELDS, LAYERS
from levelfield.specs.implementation import ImplementationFile, refused
from levelfield.specs.layout import Layout, LayoutText, parse_layout
from levelfield.specs.tuning import Tuning, TuningChoice, TuningRow

MEANING = {"context": " (several ranks share each sequence; `plan --layout` predicts it)"}


@dataclass(frozen=True)
class Arrangement:
    """The work of one scale with every free field set. origins: free field to the name of its source.

    layout_is_default: nothing sets the layout. estimates: the planner's rows, the chosen one first; empty where the
    planner was not used.
    """

    scale: Scale
    work: Work
    tuning: Tuning
    nodes: int
    devices_per_node: int
    origins: dict[str, str]
    layout_is_default: bool = False
    estimates: tuple[LayoutEstimate, ...] = ()


@dataclass(frozen=True)
class _Choice:
    """Chosen free fields, and the source of each."""

    fields: TuningChoice
    origins: dict[str, str]

    def with_defaults(self, default: DefaultLayout) -> _Choice:
        """Return the choice with the fields of a default layout. Its origins replace those of the case."""
        fields = TuningChoice.model_validate({**self.fields.model_dump(exclude_none=True), **default.fields})
        origins = {**self.origins, **default.origins}
        if fields.recompute_layers is None:
            origins.pop(LAYERS, None)
        return _Choice(fields, origins)


def arrange(decision: Decision, scale: Scale) -> Arrangement:
    """Return every free field at this scale. Raises LayoutError for an unreadable layout text."""
    found, work = decision.found, decision.found.case.work(scale)
    choice = _chosen(decision, scale, with_case=True)
    written = parse_layout(choice.fields.layout) if choice.fields.layout else None
    nodes = written.nodes if written and written.nodes else decision.selector.nodes
    devices = decision.selector.devices or (written and written.devices) or _default_devices(written, nodes, found)
    place, fixed = Place(found, work, nodes, devices), _chosen(decision, scale, with_case=False).fields
    if written:
        default = given_layout(place, scale, written.layout, fixed, choice.fields)
    else:
        if decision.selector.devices is None:
            place = replace(place, devices=most_devices(place, fixed))
        default = default_layout(place, scale, fixed, choice.fields)
    processes = place.devices if decision.request.launch else place.world  # that share the cores of a host
    tuning, origins = _tuning(choice.with_defaults(default), default.layout, found, processes)
    return Arrangement(scale, work, tuning, nodes, place.devices, origins, written is None, default.estimates)


def _chosen(decision: Decision, scale: Scale, with_case: bool) -> _Choice:
    """Return the free fields of all sources: case, vendor, case string, suite, command line. The last has priority.

    with_case: False leaves the case's defaults out.
    """
    found = decision.found
    by_case = found.case.tuning.get(scale, TuningChoice()) if with_case else TuningChoice()
    sources = [
        (f"case {found.case.name}", by_case),
        *((f"vendor {found.vendor.name}: {row.why}", row.set) for row in _rows(decision, scale)),
        ("case string", TuningChoice(layout=decision.selector.layout)),
        (decision.suggestion.by, decision.suggestion.choice),
        ("command line", decision.request.choice),
    ]
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, choice in sources:
        if choice.recompute is not None:  # of all layers, unless the choice itself says of how many
            merged.pop(LAYERS, None)
            origins.pop(LAYERS, None)
        for key, value in choice.model_dump(exclude_none=True).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
            origins[key] = origin
    return _Choice(TuningChoice.model_validate(merged), origins)


def _rows(decision: Decision, scale: Scale) -> Iterator[TuningRow]:
    """Return the rows of the vendor's tuning that apply here; none for a base run."""
    found = decision.found
    if decision.request.base:
        return
    devices = decision.selector.devices or len(found.devices)
    for row in found.tuning_rows:
        if row.applies(scale, found.chip.name, found.implementation.framework, devices, decision.selector.nodes):
            yield row


def _default_devices(written: LayoutText | None, nodes: int, found: Selection) -> int:
    if written is None:
        return found.default_devices
    return max(1, written.layout.world_size // nodes)


def _tuning(choice: _Choice, layout: Layout, found: Selection, processes: int) -> tuple[Tuning, dict[str, str]]:
    """Return the tuning and the origins of its fields. The processes of a host share its cores."""
    fields = choice.fields.model_dump(exclude_none=True, exclude={"layout"})
    if "threads" not in fields and found.vendor.is_host:
        fields["threads"] = max(1, usable_cores() // processes)
        origin = f"default: {usable_cores()} usable cores over {processes} process(es)"
        return Tuning(layout=layout, **fields), {**choice.origins, "threads": origin}
    return Tuning(layout=layout, **fields), choice.origins


def refuse_unsupported(
    implementation: ImplementationFile, work: Work, tuning: Tuning, kind: str, captures: bool = False
) -> None:
    """Raises NotHere for what the implementation does not declare, and for what it refuses, with its reason.

    captures: a step's tensors are written.
    """
    offered = implementation.offered_parallelism(kind)
    lacking = [f"{name}{MEANING.get(name, '')} on {kind}" for name in tuning.parallelism if name not in offered]
    precisions = implementation.offered_precisions(kind)
    if work.training.precision not in precisions:
        lacking.append(f"precision {work.training.precision} on {kind} (it has {', '.join(precisions) or 'none'})")
    if tuning.recompute not in implementation.recompute:
        lacking.append(f"recomputation {tuning.recompute}")
    lacking += [
        f"{name} (an option that {implementation.framework} does not have)"
        for name in tuning.differing
        if FREE_FIELDS[name].of_framework and name not in implementation.free_fields
    ]
    refusals = implementation.refusals(kind)
    lacking += [f"{name} ({refusals[name]})" for name in refused(refusals, work, tuning, captures)]
    if lacking:
        raise NotHere(f"{implementation.framework} does not offer: {', '.join(lacking)}")
