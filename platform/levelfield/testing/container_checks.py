"""Checks of container options: only the chosen devices, no privilege without a reason, known base images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict

from levelfield.contracts.vendor import ContainerOptions, Device
from levelfield.plan.permissions import needs, places
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.subject import VendorSubject

HOST_ITSELF = ("/", "/dev", "/proc", "/sys", "/etc", "/root", "/home", "/var", "/run", "/var/run")
EVERYTHING = ("ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")


def options(subject: VendorSubject) -> str:
    """Check that container() is pure and shows exactly the given devices."""
    known = subject.devices_or_two()
    adapter = subject.adapter()
    shown = adapter.container(known)
    if adapter.container(known) != shown or subject.adapter().container(known) != shown:
        raise Fails("container() returns another value at the second call", "compute it from its arguments alone")
    _are_nodes(shown)
    if subject.spec.is_host:
        return "one machine, divided into devices; containers see all of it"
    for device in known:
        _check_one_device(subject, device, known)
    return _restriction(subject, known)


def _are_nodes(shown: ContainerOptions) -> None:
    for node in shown.device_nodes:
        if not node.startswith("/dev/") or "{" in node or "*" in node:
            raise Fails(f"device node '{node}'", "use a file under /dev; only '{index}' may be in braces")
    for name, text in shown.environment.items():
        if "{" in text:
            raise Fails(f"container.environment.{name}: '{text}'", "only '{index}' may be in braces")


def _check_one_device(subject: VendorSubject, device: Device, known: Sequence[Device]) -> None:
    """Check that the options of one device are part of the options of all, without those of other devices."""
    one, everything = subject.adapter().container([device]), subject.adapter().container(known)
    others = subject.adapter().container([other for other in known if other != device])
    if not set(one.device_nodes) <= set(everything.device_nodes):
        raise Fails(f"device {device.index} alone has nodes that all together lack", "use one rule for every choice")
    for field in ("device_nodes", "device_request"):
        alone, rest, whole = (set(getattr(o, field)) for o in (one, others, everything))
        if whole - rest and not whole - rest <= alone:
            raise Fails(f"{field} of device {device.index}: {sorted(alone)}, expected {sorted(whole - rest)} too", "")
    if one.request_driver and len(one.device_request) != 1:
        raise Fails(f"found device_request {one.device_request} for one device", "give one identity for each device")


def _restriction(subject: VendorSubject, known: Sequence[Device]) -> str:
    """Return how the container restricts the devices. Raises Fails when it does not restrict them."""
    spec, variable = subject.spec, subject.spec.visible_devices_variable
    first, second = [asdict(subject.adapter().container([d])) for d in _two(known)]
    by = sorted(field for field in first if first[field] != second[field])
    if by:
        return f"devices differ in {', '.join(by)}"
    declared = [*spec.container.device_nodes, *spec.container.environment.values()]
    if any("{index}" in text for text in declared) or spec.container.device_request:
        raise Fails("vendor.yaml has options for each device, but container() ignores them", "show the given devices")
    if variable and not spec.container.renumbered:
        _check_all_shown(subject, known)
        return f"the container sees all devices; only {variable} restricts the processes"
    raise Fails(
        "the container options are the same for every choice of devices",
        "use {index} in device_nodes or environment, or device_request; or leave renumbered out and name the variable",
    )


def _check_all_shown(subject: VendorSubject, known: Sequence[Device]) -> None:
    """Raise Missing when no device is shown, and Fails when one device has its own node and another has none."""
    shown = subject.adapter().container(known)
    if not (shown.device_nodes or shown.device_request or shown.engine_runtime or shown.environment):
        raise Missing("container: no option shows a device", "add device_nodes, device_request or engine_runtime")
    numbered = [match for node in shown.device_nodes if (match := re.fullmatch("(.*?)([0-9]+)", node))]
    for node in numbered:
        own = {int(other[2]) for other in numbered if other[1] == node[1]}
        if hidden := [device.index for device in known if device.index not in own]:
            raise Fails(
                f"device {hidden[0]} has no node: {node[0]} belongs to one device, but every container gets it",
                f"write {node[1]}{{index}} in device_nodes",
            )


def _two(known: Sequence[Device]) -> list[Device]:
    first = known[0]
    other = Device(first.index + 1, first.chip, first.description, first.memory_bytes, f"{first.identity}-other")
    return [first, known[1] if len(known) > 1 else other]


def privileges(subject: VendorSubject) -> str:
    """Check that every addition to the engine's defaults has a name and a reason, and that none opens the host."""
    access = subject.spec.container
    shown = subject.adapter().container(subject.devices_or_two())
    reasons = {**access.capabilities, **access.security_options, **{mount.path: mount.why for mount in access.mounts}}
    for name in (*shown.capabilities, *shown.security_options, *shown.read_only_mounts):
        if len(reasons.get(name, "").strip()) < 3:
            raise Missing(f"container: {name} has no reason", "write why it is needed in vendor.yaml, or leave it out")
    for name in shown.capabilities:
        if name.upper().removeprefix("CAP_") in EVERYTHING:
            raise Fails(f"container.capabilities: {name} opens the whole host", "name only the needed capabilities")
    for path in shown.read_only_mounts:
        if any(place in HOST_ITSELF or place.endswith(".sock") for place in places(path)):
            raise Fails(f"container.mounts: {path} is the host itself", "mount the folders of the driver alone")
    said = f"{len(shown.capabilities) + len(shown.security_options)} privilege(s), each with its reason"
    asked = " ".join(f"--allow '{need}'" for need in needs(shown))
    return f"{said}; its containers start only with {asked}" if asked else said


def images(subject: VendorSubject) -> str:
    """Check that images belong to frameworks of vendor.yaml."""
    found = subject.spec.images
    if not found:
        raise NotApplicable("found no `images`: runs in containers need --base-image")
    unknown = sorted(set(found) - set(subject.registry.reaching(subject.spec)) - {"base"})
    if unknown:
        raise Fails(
            f"images: {', '.join(unknown)} is not a framework of this vendor", "use the frameworks' names, or base"
        )
    loose = [name for name, image in found.items() if not image.digest]
    note = f"; without a digest, so their content may change: {', '.join(loose)}" if loose else ""
    return f"{len(found)} image(s){note}"
