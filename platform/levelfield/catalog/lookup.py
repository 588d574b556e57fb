"""Finds the documents and devices of a selector among the plugins and on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import tuning_rows
from levelfield.contracts.readings import memory_fault
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import NotHere, UsageError
from levelfield.specs.case import Case
from levelfield.specs.chips import OverlayUsed
from levelfield.specs.constants import Constants, MemoryModel
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
    """All documents and devices of one selector. devices: those of this chip that are here.

    overlay: the private values of the chip. constants: the planner's constants of the framework; None without them.
    problem: why the vendor's tool, which is here, does not show all devices. notices: sentences about the machine for
    the plan and the result; the problem is one of them. listed: how many devices of all chips of the vendor are here.
    busy: the devices that others use, by index, each with a sentence. options: of a command that finds the same names.
    """

    case: Case
    implementation: ImplementationFile
    folder: Path
    adapter: Vendor
    chip: Chip
    devices: tuple[Device, ...]
    tuning_rows: tuple[TuningRow, ...]
    overlay: OverlayUsed | None = None
    constants: Constants | None = None
    problem: str | None = None
    notices: tuple[str, ...] = ()
    listed: int = 0
    busy: Mapping[int, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @property
    def vendor(self) -> VendorFile:
        return self.adapter.spec

    @property
    def memory_model(self) -> MemoryModel | None:
        return self.constants.keeping if self.constants else None

    @property
    def default_devices(self) -> int:
        """Return the default number of devices of a node: all that are here; a host is one device."""
        return 1 if self.vendor.is_divided else max(1, len(self.devices))

    def memory_of_device(self, processes: int) -> int | None:
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


def find(registry: Registry, selector: Selector, check: bool = True) -> Selection:
    """Return the documents and devices of the selector. Raises UnknownName, DocumentError or UsageError.

    There is no fallback to another name. check: raise NotHere where the framework does not have the family, or the
    vendor does not have the framework.
    """
    case = registry.case(selector.case)
    implementation, folder = registry.implementation(selector.framework, selector.version)
    here = find_hardware(registry, selector.target)
    vendor, constants = here.adapter.spec, registry.constants(implementation.framework)
    if check:
        _check_supported(case, implementation, vendor)
        _check_version(implementation, vendor.device_kind, folder)
    return Selection(
        case=case,
        implementation=implementation,
        folder=folder,
        adapter=here.adapter,
        chip=here.chip,
        devices=here.devices,
        tuning_rows=tuning_rows(registry, vendor.name, case.name),
        overlay=registry.overlay.used(vendor, here.chip) if registry.overlay else None,
        constants=constants and constants.on_kind(vendor.device_kind),
        problem=here.problem,
        notices=(*here.notices, *access_notices(implementation, vendor)),
        listed=len(registry.machine.devices(vendor.name)),
        busy=registry.machine.busy(vendor.name),
        options=registry.options,
    )


@dataclass(frozen=True)
class HardwareHere:
    """The adapter, chip and devices of a target on this machine. problem, notices: as in Selection."""

    adapter: Vendor
    chip: Chip
    devices: tuple[Device, ...]
    problem: str | None = None
    notices: tuple[str, ...] = ()


def find_hardware(registry: Registry, target: str | None) -> HardwareHere:
    """Return the hardware of `target`; for None, of the first accelerator here, else the cpu.

    Raises UnknownName, and UsageError where no target is given and a tool that is here does not show its devices.
    """
    if target is None or target in registry.vendors:
        name = detect(registry).spec.name if target is None else target
        found = registry.machine.devices(name)
        chip, devices = _chip_of(registry.vendor_file(name), found)
    else:
        spec, chip = find_chip(registry, target)
        name, found = spec.name, registry.machine.devices(spec.name)
        devices = tuple(d for d in found if d.chip == chip.name)
    notices = _notices(registry, name, target)
    return HardwareHere(registry.vendor(name), chip, devices, found.problem, notices)


def _notices(registry: Registry, name: str, target: str | None) -> tuple[str, ...]:
    """Return a sentence about the chosen vendor's tool, and one for each vendor that is not used for its silent tool.

    Beside the cpu every vendor counts, and otherwise those that come before the chosen one.
    """
    own = registry.machine.devices(name).problem
    others = [other for other in _accelerators(registry) if other != name]
    if not registry.vendor_file(name).is_host:
        others = [other for other in others if other < name] if target is None else []
    silent = (f"vendor {other} is not used: {why}" for other, why in registry.machine.silent(others))
    return (*((f"vendor {name}: {own}",) if own else ()), *silent)


def _accelerators(registry: Registry) -> list[str]:
    return sorted(set(registry.vendors) - {FALLBACK_VENDOR})


def detect(registry: Registry) -> Vendor:
    """Return the first vendor by name with devices here; the cpu when there is no other.

    Raises UsageError instead of the cpu where a vendor's tool is here and does not show whether it has devices.
    """
    known = _accelerators(registry)
    if found := next((name for name in known if registry.machine.devices(name)), None):
        return registry.vendor(found)
    if silent := dict(registry.machine.silent(known)):
        raise UsageError(_silent_tools(registry, silent))
    return registry.vendor(FALLBACK_VENDOR)


def _silent_tools(registry: Registry, silent: Mapping[str, str]) -> str:
    variables = [registry.vendor_file(name).visible_devices_variable for name in silent]
    hide = " ".join(f"{variable}=" for variable in variables if variable)
    return (
        f"{'; '.join(f'vendor {name}: {why}' for name, why in silent.items())}. So it is unknown whether the devices "
        "are here, and the cpu is not taken in their place. Repair the tool, or name the vendor to use behind the "
        f"framework, for example `:{FALLBACK_VENDOR}`{f'; or hide the devices: {hide}' if hide else ''}"
    )


def _chip_of(spec: VendorFile, devices: Sequence[Device]) -> tuple[Chip, tuple[Device, ...]]:
    """Return the chip of the devices here, or one without peaks when vendor.yaml does not have it."""
    if not devices:
        return spec.chips[0], ()
    first = devices[0]
    chip = spec.chip(first.chip) if first.chip else None
    same = tuple(d for d in devices if d.chip == first.chip)
    unknown = Chip(
        name=first.description, device_is=HOST_SHARE if spec.is_host else "card", memory_bytes=first.memory_bytes
    )
    return chip or unknown, same


def lacking_parts(case: Case, implementation: ImplementationFile) -> list[str]:
    """Return the parts of the case's model that the framework does not have."""
    return [part for part in case.parts if part not in implementation.architecture]


def _check_supported(case: Case, implementation: ImplementationFile, vendor: VendorFile) -> None:
    name = implementation.framework
    if lacking := lacking_parts(case, implementation):
        raise NotHere(
            f"{name} does not have {', '.join(lacking)}, which case {case.name} needs; it has "
            f"{', '.join(implementation.architecture)}"
        )
    if not implementation.offered_precisions(vendor.device_kind):
        known = ", ".join(implementation.precisions)
        raise NotHere(f"{name} says nothing about device kind '{vendor.device_kind}'; it has {known}")
    if access_of(implementation, vendor) is None:
        raise NotHere(
            f"neither {name} nor vendor {vendor.name} says how {name} reaches devices of kind '{vendor.device_kind}'; "
            f"add `reaches.{vendor.device_kind}` to {name}'s implementation.yaml"
        )


def _check_version(implementation: ImplementationFile, kind: str, folder: Path) -> None:
    """Raises NotHere for a further version without requirements for the device kind: nothing else would bring it."""
    if implementation.is_further and kind not in implementation.requirements:
        raise NotHere(
            f"{implementation.label} on {kind}: found requirements for {', '.join(implementation.requirements)}; "
            f"expected some for {kind}. Add `versions.{implementation.version}.requirements.{kind}` to "
            f"{folder / 'implementation.yaml'}, or take the default: `{implementation.framework}`"
        )


def access_of(implementation: ImplementationFile, vendor: VendorFile) -> FrameworkAccess | None:
    """Return how the framework reaches the vendor's devices: as the vendor says, else as the framework says."""
    if own := vendor.frameworks.get(implementation.framework):
        return own
    reach = implementation.reaches.get(vendor.device_kind)
    return reach.access if reach else None


def access_notices(implementation: ImplementationFile, vendor: VendorFile) -> tuple[str, ...]:
    """Return a sentence where the vendor and the framework say different things; the vendor's are used."""
    own, reach = vendor.frameworks.get(implementation.framework), implementation.reaches.get(vendor.device_kind)
    if own is None or reach is None or own == reach.access:
        return ()
    name = implementation.framework
    return (
        f"vendor {vendor.name} says that {name} reaches its devices by {_said(own)}; {name} says {_said(reach)} for "
        f"device kind '{vendor.device_kind}'. The vendor's words are used",
    )


def _said(access: FrameworkAccess) -> str:
    preload = f", after importing {', '.join(access.preload)}" if access.preload else ""
    return f"{access.device} and {access.backend}{preload}"


def reference_of(registry: Registry, plan: Plan) -> Reference | None:
    """Return the reference of the plan's case, scale and precision, else that of another case with the same work.

    Cases that differ at full scale only have the same work at smoke scale. Raises DocumentError for a damaged one.
    """
    from levelfield.specs.reference import reference_name

    name = reference_name(plan.case, plan.scale, plan.work.training.precision)
    if name in registry.references:
        return registry.reference(name)
    others = (registry.reference(other) for other in sorted(registry.references))
    return next((found for found in others if found.identity.work == plan.work_digest), None)
