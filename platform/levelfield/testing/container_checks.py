"""Checks of container options: only the chosen devices, no privilege without a reason, known base images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace

from levelfield.contracts.vendor import Device
from levelfield.plan.permissions import needed_permissions, resolved_paths
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.subject import VendorSubject

HOST_FOLDERS = ("/", "/dev", "/proc", "/sys", "/etc", "/root", "/home", "/var", "/run", "/var/run")
HOST_ACCESS_CAPABILITIES = ("ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO")


def check_options(subject: VendorSubject) -> str:
    """Check that container() is pure and shows exactly the given devices."""
    devices = subject.recorded_or_invented_devices()
    adapter = subject.adapter()
    all_options = adapter.container(devices)
    if adapter.container(devices) != all_options or subject.adapter().container(devices) != all_options:
        raise Fails("container() returns another value at the second call", "compute it from its arguments alone")
    for node in all_options.device_nodes:
        if not node.startswith("/dev/") or "{" in node or "*" in node:
            raise Fails(f"device node '{node}'", "use a file under /dev; only '{index}' may be in braces")
    for name, text in all_options.environment.items():
        if "{" in text:
            raise Fails(f"container.environment.{name}: '{text}'", "only '{index}' may be in braces")
    if subject.spec.is_host:
        return "one machine, divided into devices; containers see all of it"
    for device in devices:  # its options are part of the options of all, without those of other devices
        single_options, together = subject.adapter().container([device]), subject.adapter().container(devices)
        others = subject.adapter().container([other for other in devices if other != device])
        if not set(single_options.device_nodes) <= set(together.device_nodes):
            fault = f"device {device.index} alone has nodes that all together lack"
            raise Fails(fault, "use one rule for every choice")
        for field in ("device_nodes", "device_request"):
            single_values, others_values, all_values = (
                set(getattr(o, field)) for o in (single_options, others, together)
            )
            if all_values - others_values and not all_values - others_values <= single_values:
                raise Fails(
                    f"{field} of device {device.index}: {sorted(single_values)}, expected "
                    f"{sorted(all_values - others_values)} too"
                )
        if single_options.request_driver and len(single_options.device_request) != 1:
            fault = f"found device_request {single_options.device_request} for one device"
            raise Fails(fault, "give one identity for each device")
    return _check_restriction(subject, devices)


def _check_restriction(subject: VendorSubject, devices: Sequence[Device]) -> str:
    """Return how the container restricts the devices.

    Raises Fails when it does not restrict them, and when one device has its own node and another has none. Raises
    Missing when no device is shown.
    """
    spec, variable = subject.spec, subject.spec.visible_devices_variable
    first = devices[0]
    second = replace(first, index=first.index + 1, identity=f"{first.identity}-other", visible_as=None)
    second = devices[1] if len(devices) > 1 else second
    first_options, second_options = (asdict(subject.adapter().container([device])) for device in (first, second))
    if differing := sorted(field for field in first_options if first_options[field] != second_options[field]):
        return f"devices differ in {', '.join(differing)}"
    declared = [*spec.container.device_nodes, *spec.container.environment.values()]
    if any("{index}" in text for text in declared) or spec.container.device_request:
        raise Fails("vendor.yaml has options for each device, but container() ignores them", "show the given devices")
    if not variable or spec.container.renumbered:
        raise Fails(
            "the container options are the same for every choice of devices",
            "use {index} in device_nodes or environment, or device_request; or leave renumbered out and name the "
            "variable",
        )
    options = subject.adapter().container(devices)
    if not (options.device_nodes or options.device_request or options.engine_runtime or options.environment):
        raise Missing("container: no option shows a device", "add device_nodes, device_request or engine_runtime")
    numbered = [match for node in options.device_nodes if (match := re.fullmatch("(.*?)([0-9]+)", node))]
    for node in numbered:
        indices = {int(second_options[2]) for second_options in numbered if second_options[1] == node[1]}
        if hidden := [device.index for device in devices if device.index not in indices]:
            raise Fails(
                f"device {hidden[0]} has no node: {node[0]} belongs to one device, but every container gets it",
                f"write {node[1]}{{index}} in device_nodes",
            )
    return f"the container sees all devices; only {variable} restricts the processes"


def check_privileges(subject: VendorSubject) -> str:
    """Check that every addition to the engine's defaults has a name and a reason, and that none opens the host."""
    access = subject.spec.container
    options = subject.adapter().container(subject.recorded_or_invented_devices())
    reasons = {**access.capabilities, **access.security_options, **{mount.path: mount.why for mount in access.mounts}}
    for name in (*options.capabilities, *options.security_options, *options.read_only_mounts):
        if len(reasons.get(name, "").strip()) < 3:
            raise Missing(f"container: {name} has no reason", "write why it is needed in vendor.yaml, or leave it out")
    for name in options.capabilities:
        if name.upper().removeprefix("CAP_") in HOST_ACCESS_CAPABILITIES:
            raise Fails(f"container.capabilities: {name} opens the whole host", "name only the needed capabilities")
    for path in options.read_only_mounts:
        if any(place in HOST_FOLDERS or place.endswith(".sock") for place in resolved_paths(path)):
            raise Fails(f"container.mounts: {path} is the host itself", "mount the folders of the driver alone")
    summary = f"{len(options.capabilities) + len(options.security_options)} privilege(s), each with its reason"
    flags = " ".join(f"--allow '{need}'" for need in needed_permissions(options))
    return f"{summary}; its containers start only with {flags}" if flags else summary


def check_images(subject: VendorSubject) -> str:
    """Check that images belong to frameworks of vendor.yaml."""
    base_images = subject.spec.images
    if not base_images:
        raise NotApplicable("found no `images`: runs in containers need --base-image")
    unknown = sorted(set(base_images) - set(subject.registry.frameworks_reaching(subject.spec)) - {"base"})
    if unknown:
        raise Fails(
            f"images: {', '.join(unknown)} is not a framework of this vendor", "use the frameworks' names, or base"
        )
    without_digest = [name for name, image in base_images.items() if not image.digest]
    note = f"; without a digest, so their content may change: {', '.join(without_digest)}" if without_digest else ""
    return f"{len(base_images)} image(s){note}"
