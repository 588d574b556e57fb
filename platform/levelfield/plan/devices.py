"""The devices of a plan, and the container of a node with its devices."""

from __future__ import annotations

from levelfield.catalog.lookup import Selection
from levelfield.contracts.readings import printer
from levelfield.contracts.vendor import Device
from levelfield.errors import UsageError
from levelfield.plan.arrangement import Arrangement
from levelfield.plan.image_recipe import image_plan
from levelfield.plan.permissions import permitted
from levelfield.plan.request import Decision, UserRequest
from levelfield.specs.plan import ContainerPlan, Hardware
from levelfield.specs.requirements import Stages


def hardware_of(decision: Decision, arrangement: Arrangement) -> Hardware:
    """Return the devices of the arrangement: idle ones, while there are enough. Raises UsageError where they are
    absent and not assumed.

    What a node that a launcher reaches has is checked there before the training. A host's memory and cores are taken to
    be those of this machine, until the nodes report theirs. Devices of another machine count from 0, also where some
    are here.
    """
    found, nodes, devices = decision.found, arrangement.nodes, arrangement.devices_per_node
    launched = decision.request.launch is not None
    assumed = not launched and _are_absent(decision, nodes, devices)
    if assumed and not decision.request.assume:
        # where the vendor alone is named, its first chip stands for all of its chips
        names_chip = decision.selector.target not in (None, found.vendor.name)
        raise UsageError(_absent(found, nodes, devices, names_chip))
    elsewhere = launched or assumed
    chosen = () if elsewhere else _chosen(found, devices)
    indices = tuple(range(devices)) if elsewhere else tuple(device.index for device in chosen)
    variable, memory = found.vendor.visible_devices_variable, found.memory_of_device(nodes * devices)
    if launched:
        memory = found.memory_of_device(devices) if found.vendor.is_host else found.chip.memory_bytes
    return Hardware(
        vendor=found.vendor.name,
        device_kind=found.vendor.device_kind,
        chip=found.chip,
        description=found.devices[0].description if found.devices and not launched else found.chip.name,
        nodes=nodes,
        devices_per_node=devices,
        device_indices=() if found.vendor.is_divided else indices,
        memory_bytes_per_device=memory,
        visible={variable: ",".join(_visible(decision, chosen) or map(str, indices))} if variable and indices else {},
        environment=found.vendor.environment,
        assumed=assumed,
        overlay=found.overlay,
    )


def _chosen(found: Selection, count: int) -> tuple[Device, ...]:
    """Return so many devices, in the tool's order. One that others use is taken after all idle ones."""
    taken = sorted(found.devices, key=lambda device: device.index in found.busy)[:count]
    return tuple(device for device in found.devices if device in taken)


def _visible(decision: Decision, chosen: tuple[Device, ...]) -> list[str]:
    """Return the devices' values in the visible-devices variable. Raises UsageError where one is unknown.

    All devices of a machine have all numbers from 0, whichever number is whose, where a tool should print them. A
    container that is given the devices' files needs no numbers.
    """
    found = decision.found
    unknown = next((device.unnumbered for device in chosen if device.unnumbered), None)
    in_container = decision.request.runtime == "docker" and found.vendor.container.renumbered
    if unknown is None or in_container:
        return [device.visible for device in chosen]
    if printer(found.vendor) and len(chosen) == found.listed:
        return [str(number) for number in range(len(chosen))]
    raise UsageError(f"vendor {found.vendor.name}: {unknown}")


def use_notices(found: Selection, hardware: Hardware) -> tuple[str, ...]:
    """Return a sentence for each device that others use: it is part of the plan, or was left out."""
    if hardware.assumed:
        return ()
    mine = hardware.device_indices
    first = {device.index for device in found.devices[: len(mine)]}
    left_out = (f"device {index} is left out: {said}" for index, said in found.busy.items() if index in first - {*mine})
    return (*(said for index, said in found.busy.items() if index in mine), *left_out)


def _are_absent(decision: Decision, nodes: int, devices: int) -> bool:
    """Return whether the machine lacks nodes or devices. Containers divide a host into nodes."""
    containers = decision.found.vendor.is_divided and decision.request.runtime == "docker"
    return (nodes > 1 and not containers) or not decision.found.has_devices(devices)


def _absent(found: Selection, nodes: int, devices: int, is_named: bool) -> str:
    if nodes > 1:
        return (
            f"found one node, expected {nodes}: the local launcher reaches only this machine. --launcher ssh, slurm or "
            "kubernetes reaches others (docs/many-machines.md); --dry-run shows the plan; with vendor cpu, --runtime "
            "docker starts a container for each node"
        )
    why = f": {found.problem}" if found.problem else ""
    here = f"{len(found.devices)} x {found.chip.name}" if found.devices or is_named else "no devices"
    return (
        f"found {here} (vendor {found.vendor.name}), expected {devices}{why}. "
        "`show vendors` shows the devices here; --dry-run shows the plan without them"
    )


def container_of(decision: Decision, hardware: Hardware, stages: Stages) -> ContainerPlan | None:
    """Return the container of a node with its image and devices; None for another runtime. Raises UsageError."""
    found, request = decision.found, decision.request
    if request.runtime != "docker":
        _refuse_container_options(request)
        return None
    if request.python:
        raise UsageError("--python: a container has its own Python; leave it out, or use --runtime inside or process")
    options = found.adapter.container(_exposed(found, hardware))
    return ContainerPlan(
        image=image_plan(
            found.implementation, found.folder, found.vendor, stages, request.base_image, request.base_has_framework
        ),
        options=options,
        allowed=permitted(options, request.allow, found.vendor.name),
        visible={} if found.vendor.container.renumbered else hardware.visible,
        memory_bytes=request.container_memory_bytes,
        offline=request.offline,
    )


def _refuse_container_options(request: UserRequest) -> None:
    given = {
        "--base-image": request.base_image,
        "--base-has-framework": request.base_has_framework,
        "--container-memory": request.container_memory_bytes,
        "--allow": request.allow,
    }
    if unused := [name for name, value in given.items() if value]:
        raise UsageError(f"{', '.join(unused)}: found no --runtime docker; add it, or leave the option out")


def _exposed(found: Selection, hardware: Hardware) -> list[Device]:
    """Return the devices of a container; assumed ones where those of the plan are not here."""
    chosen = [] if hardware.assumed else [d for d in found.devices if d.index in hardware.device_indices]
    indices = hardware.device_indices or range(hardware.devices_per_node)
    return chosen or [Device(i, found.chip.name, found.chip.name, None) for i in indices]
