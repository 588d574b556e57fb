"""The free fields, layout, nodes and devices of a plan, with the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from levelfield.catalog.host_cores import usable_cores
from levelfield.catalog.lookup import Selection
from levelfield.plan.decision import Decision
from levelfield.specs.case import Scale, Work
from levelfield.specs.layout import Layout, LayoutText, parse_layout
from levelfield.specs.tuning import Tuning, TuningChoice, TuningRow


@dataclass(frozen=True)
class Arrangement:
    """The work of one scale with every free field set. origins: free field to the name of its source."""

    scale: Scale
    work: Work
    tuning: Tuning
    nodes: int
    devices_per_node: int
    origins: dict[str, str]


@dataclass(frozen=True)
class _Choice:
    """Chosen free fields, and the source of each."""

    fields: TuningChoice
    origins: dict[str, str]

    def with_default(self, name: str, origin: str) -> _Choice:
        return replace(self, origins={**self.origins, name: origin})


def arrange(decision: Decision, scale: Scale) -> Arrangement:
    """Return every free field at this scale. Raises LayoutError for an unreadable layout text."""
    found, choice = decision.found, _chosen(decision, scale)
    written = parse_layout(choice.fields.layout) if choice.fields.layout else None
    nodes = written.nodes if written and written.nodes else decision.selector.nodes
    devices = decision.selector.devices or (written and written.devices) or _default_devices(written, nodes, found)
    if written is None:
        choice = choice.with_default("layout", "default: data parallel over all devices")
    layout = written.layout if written else Layout(data=nodes * devices)
    tuning, origins = _tuning(choice, layout, found, nodes * devices)
    return Arrangement(scale, found.case.work(scale), tuning, nodes, devices, origins)


def _chosen(decision: Decision, scale: Scale) -> _Choice:
    """Return the free fields of all sources: case, vendor, case string, suite, command line. The last has priority."""
    found = decision.found
    sources = [
        (f"case {found.case.name}", found.case.tuning.get(scale, TuningChoice())),
        *((f"vendor {found.vendor.name}: {row.why}", row.set) for row in _rows(decision, scale)),
        ("case string", TuningChoice(layout=decision.selector.layout)),
        (decision.suggestion.by, decision.suggestion.choice),
        ("command line", decision.request.choice),
    ]
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, choice in sources:
        for key, value in choice.model_dump(exclude_none=True).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
            origins[key] = origin
    return _Choice(TuningChoice.model_validate(merged), origins)


def _rows(decision: Decision, scale: Scale) -> Iterator[TuningRow]:
    """Return the rows of the vendor's tuning that apply here."""
    found = decision.found
    devices = decision.selector.devices or len(found.devices)
    for row in found.tuning_rows:
        if row.applies(scale, found.chip.name, found.implementation.framework, devices):
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
        choice = choice.with_default("threads", origin)
    return Tuning(layout=layout, **fields), choice.origins
