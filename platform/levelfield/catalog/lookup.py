"""Finds the documents and devices of a selector among the plugins and on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import tuning_rows
from levelfield.contracts.readings import chip_named, memory_fault
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import NotHere, UsageError
from levelfield.specs.case import Case
from levelfield.specs.chips import OverlayUsed
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.selector import Selector
from levelfield.specs.tuning import TuningRow
from levelfield.specs.vendor import HOST_SHARE, Chip, FrameworkAccess, VendorFile

if TYPE_CHECKING:
    from levelfield.specs.plan import Plan
    from levelfield.specs.reference import Reference

FALLBACK_VENDOR = "cpu"


@dataclass(frozen=True)
class Selection:
    """All documents and devices of one selector."""

    case: Case
    implementation: ImplementationFile
    folder: Path  # of the implementation
    adapter: Vendor
    chip: Chip
    devices: tuple[Device, ...]  # of this chip that are here
    tuning_rows: tuple[TuningRow, ...]
    overlay: OverlayUsed | None = None  # the private values of the chip
    constants: Constants | None = None  # the planner's constants of the framework
    problem: str | None = None  # why the vendor's tool, which is here, does not show all devices
    notices: tuple[str, ...] = ()  # sentences about the machine for plan and result; the problem is one of them
    vendor_devices: int = 0  # here, of all chips of the vendor
    busy_devices: Mapping[int, str] = field(default_factory=dict)  # by index: a sentence about a device that others use
    options: tuple[str, ...] = ()  # with which another command finds the same names, such as --plugins

    @property
    def vendor(self) -> VendorFile:
        return self.adapter.spec

    @property
    def default_devices(self) -> int:
        """The default number of devices of a node: all that are here; a host is one device."""
        return 1 if self.vendor.is_divided else max(1, len(self.devices))

    def device_memory_bytes(self, processes: int) -> int | None:
        """Return the bytes of memory of one device, or the share of one of `processes` of a host. None: unknown.

        The tool's figure is used, unless it cannot be that of the chip.
        """
        memory = self.chip.memory_bytes
        if self.devices and not memory_fault(self.devices[0], self.chip):
            memory = self.devices[0].memory_bytes or memory
        return memory // processes if self.vendor.is_divided and memory else memory

    def has_devices(self, count: int) -> bool:
        """Return whether `count` devices are here. A host can be divided into any number of processes."""
        return bool(self.devices) and (self.vendor.is_divided or len(self.devices) >= count)


def find_selection(registry: Registry, selector: Selector, require_support: bool = True) -> Selection:
    """Return the documents and devices of the selector. Raises UnknownName, DocumentError or UsageError.

    There is no fallback to another name. require_support: raise NotHere where the framework lacks a part of the model,
    the device kind, the way to it, or pins of this version.
    """
    case = registry.case(selector.case)
    implementation, folder = registry.implementation(selector.framework, selector.version)
    hardware = find_hardware(registry, selector.target)
    vendor, constants = hardware.adapter.spec, registry.planner_constants(implementation.framework)
    name, kind = implementation.framework, vendor.device_kind
    missing_parts = [part for part in case.parts if part not in implementation.architecture]
    if require_support and missing_parts:
        raise NotHere(
            f"{name} does not have {', '.join(missing_parts)}, which case {case.name} needs; it has "
            f"{', '.join(implementation.architecture)}"
        )
    if require_support and not implementation.offered_precisions(kind):
        kinds = ", ".join(implementation.precisions)
        raise NotHere(f"{name} says nothing about device kind '{kind}'; it has {kinds}")
    if require_support and framework_access(implementation, vendor) is None:
        raise NotHere(
            f"neither {name} nor vendor {vendor.name} says how {name} reaches devices of kind '{kind}'; "
            f"add `reaches.{kind}` to {name}'s implementation.yaml"
        )
    if require_support and implementation.is_further and kind not in implementation.requirements:
        raise NotHere(
            f"{implementation.label} on {kind}: found requirements for {', '.join(implementation.requirements)}; "
            f"expected some for {kind}. Add `versions.{implementation.version}.requirements.{kind}` to "
            f"{folder / 'implementation.yaml'}, or take the default: `{implementation.framework}`"
        )
    return Selection(
        case=case,
        implementation=implementation,
        folder=folder,
        adapter=hardware.adapter,
        chip=hardware.chip,
        devices=hardware.devices,
        tuning_rows=tuning_rows(registry, vendor.name, case.name),
        overlay=registry.overlay.overlay_used(vendor, hardware.chip) if registry.overlay else None,
        constants=constants and constants.for_device_kind(vendor.device_kind),
        problem=hardware.problem,
        notices=(*hardware.notices, *access_notices(implementation, vendor)),
        vendor_devices=len(registry.machine.devices(vendor.name)),
        busy_devices=registry.machine.busy_devices(vendor.name),
        options=registry.options,
    )


@dataclass(frozen=True)
class LocalHardware:
    """The adapter, chip and devices of a target on this machine."""

    adapter: Vendor
    chip: Chip
    devices: tuple[Device, ...]
    problem: str | None = None  # as in Selection, and so the next
    notices: tuple[str, ...] = ()


def find_hardware(registry: Registry, target: str | None) -> LocalHardware:
    """Return the hardware of `target`; for None, of the first accelerator here, else the cpu.

    Raises UnknownName, and UsageError where no target is given and a tool that is here does not show its devices.
    """
    if target is None or target in registry.vendors:
        name = detect_vendor(registry).spec.name if target is None else target
        spec, listing = registry.vendor_file(name), registry.machine.devices(name)
        chip, devices = spec.chips[0], tuple(device for device in listing if device.chip == listing[0].chip)
        if devices:
            first_device = devices[0]
            # A chip that vendor.yaml does not have is one without peaks.
            chip = spec.chip(first_device.chip) or Chip(
                name=first_device.description,
                device_is=HOST_SHARE if spec.is_host else "card",
                memory_bytes=first_device.memory_bytes,
            )
    else:
        spec, chip = find_chip(registry, target)
        name, listing = spec.name, registry.machine.devices(spec.name)
        devices = tuple(device for device in listing if device.chip == chip.name)
    # Vendors whose tool is here and shows no device become notices: all of them where the cpu was taken, else those
    # that detection tried before the chosen vendor.
    others = sorted(set(registry.vendors) - {FALLBACK_VENDOR, name})
    if not spec.is_host:
        others = [other for other in others if other < name] if target is None else []
    listings = {other: registry.machine.devices(other) for other in others}
    silent_vendors = [
        (other, other_listing.problem)
        for other, other_listing in listings.items()
        if other_listing.problem and not other_listing
    ]
    notices = [f"vendor {name}: {listing.problem}"] if listing.problem else []
    notices += [f"vendor {other} is not used: {problem}" for other, problem in silent_vendors]
    notices += [*_foreign_names(registry, spec, devices), *_shared_identities(name, devices)]
    return LocalHardware(registry.vendor(name), chip, devices, listing.problem, tuple(notices))


def _foreign_names(registry: Registry, spec: VendorFile, devices: Sequence[Device]) -> Iterator[str]:
    """Yield a sentence for the devices that the tool names as another chip than they count as, of any vendor."""
    others = [registry.vendor_file(other) for other in registry.vendors if other != spec.name]
    first_devices = {(device.description, device.chip): device for device in reversed(devices)}
    for device in reversed(first_devices.values()):
        chip_of_maker = chip_named(spec, device.description)
        named = [(chip_of_maker, spec.name)] if chip_of_maker not in (None, device.chip) else []
        named += [(chip, other.name) for other in others if (chip := chip_named(other, device.description))]
        for chip, maker in named:
            yield (
                f"vendor {spec.name}: its tool names device {device.index} '{device.description}', which is {chip} of "
                f"vendor {maker}; memory and peaks of this run are those that {spec.name} gives for "
                f"{device.chip or 'an unknown chip'}"
            )


def _shared_identities(vendor: str, devices: Sequence[Device]) -> Iterator[str]:
    """Yield a sentence for each identity that several devices have. Dies of a card may have the card's."""
    indices: dict[str, list[int]] = {}
    for device in devices:
        if device.identity:
            indices.setdefault(device.identity, []).append(device.index)
    for sharing in indices.values():
        if len(sharing) > 1:
            numbers = ", ".join(map(str, sharing))
            yield f"vendor {vendor}: devices {numbers} have one identity, so one device may be counted several times"


def detect_vendor(registry: Registry) -> Vendor:
    """Return the first vendor by name with devices here; the cpu when there is no other.

    Raises UsageError instead of the cpu where a vendor's tool is here and does not show whether it has devices.
    """
    problems: dict[str, str] = {}
    for name in sorted(set(registry.vendors) - {FALLBACK_VENDOR}):
        if devices := registry.machine.devices(name):
            return registry.vendor(name)
        if devices.problem:
            problems[name] = devices.problem
    if not problems:
        return registry.vendor(FALLBACK_VENDOR)
    variables = [registry.vendor_file(name).visible_devices_variable for name in problems]
    hide = " ".join(f"{variable}=" for variable in variables if variable)
    raise UsageError(
        f"{'; '.join(f'vendor {name}: {reason}' for name, reason in problems.items())}. So it is unknown whether the "
        "devices are here, and the cpu is not taken in their place. Repair the tool, or name the vendor to use behind "
        f"the framework, for example `:{FALLBACK_VENDOR}`{f'; or hide the devices: {hide}' if hide else ''}"
    )


def framework_access(implementation: ImplementationFile, vendor: VendorFile) -> FrameworkAccess | None:
    """Return how the framework reaches the vendor's devices: as the vendor says, else as the framework says."""
    reach = implementation.reaches.get(vendor.device_kind)
    return vendor.frameworks.get(implementation.framework) or (reach.access if reach else None)


def access_notices(implementation: ImplementationFile, vendor: VendorFile) -> tuple[str, ...]:
    """Return a sentence where the vendor and the framework say different things; the vendor's are used."""
    name = implementation.framework
    access, reach = vendor.frameworks.get(name), implementation.reaches.get(vendor.device_kind)
    if access is None or reach is None or access == reach.access:
        return ()
    vendor_way, framework_way = (
        f"{way.device} and {way.backend}" + (f", after importing {', '.join(way.preload)}" if way.preload else "")
        for way in (access, reach)
    )
    return (
        f"vendor {vendor.name} says that {name} reaches its devices by {vendor_way}; {name} says {framework_way} for "
        f"device kind '{vendor.device_kind}'. The vendor's words are used",
    )


def find_reference(registry: Registry, plan: Plan) -> Reference | None:
    """Return the reference of the plan's case, scale and precision, else that of another case with the same work.

    Cases that differ at full scale only have the same work at smoke scale. Raises DocumentError for a damaged one.
    """
    from levelfield.specs.reference import reference_name

    name = reference_name(plan.case, plan.scale, plan.work.training.precision)
    if name in registry.references:
        return registry.reference(name)
    others = (registry.reference(other) for other in sorted(registry.references))
    return next((other for other in others if other.identity.work == plan.work_digest), None)
