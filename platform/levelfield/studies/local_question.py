"""A question to the planner about the devices of this machine."""

from __future__ import annotations

from collections.abc import Callable

from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.predict.layout_search import LayoutQuestion
from levelfield.predict.questions import question_on_chip, question_on_host
from levelfield.run import host_probe
from levelfield.specs.case import Work


def question_here(
    registry: Registry, found: Selection, work: Work, devices: int, say: Callable[[str], None]
) -> LayoutQuestion:
    """Return the question about the devices here. A host is measured once; later questions use the stored rates."""
    memory = found.devices[0].memory_bytes if found.devices else None
    if not found.vendor.is_host:
        return question_on_chip(
            registry, found.implementation.framework, work, found.chip, found.vendor.device_kind, 1, devices, None
        )
    rates = host_probe.known_host_rates(registry) or host_probe.measure_host_rates(registry, say)
    return question_on_host(registry, found.implementation.framework, work, devices, memory, rates)
