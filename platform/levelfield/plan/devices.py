"""The devices of a plan, and the container of a node with its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.catalog.lookup import Selection
from levelfield.contracts.readings import visible_value_tool
from levelfield.contracts.vendor import Device
from levelfield.errors import UsageError
from levelfield.plan.image_recipe import image_plan
from levelfield.plan.permissions import allowed_permissions
from levelfield.plan.request import Decision
from levelfield.specs.plan import ContainerPlan, Hardware
from levelfield.specs.requirements import EnvironmentPackages

if TYPE_CHECKING:
    from levelfield.plan.arrangement import Arrangement


def plan_hardware(decision: Decision, arrangement: Arrangement) -> Hardware:
    """Return the devices of the arrangement: idle ones, while there are enough. Raises UsageError where they are
    absent and not assumed.

    What a node that a launcher reaches has is checked there before the training. A host's memory and cores are taken to
    be those of this machine, until the nodes report theirs. Devices of another machine count from 0, also where some
    are here.
    """
    selection, nodes, devices = decision.selection, arrangement.nodes, arrangement.devices_per_node
    is_launched = decision.request.launch is not None
    # containers divide a host into nodes
    divides_host = selection.vendor.is_divided and decision.request.runtime == "docker"
    is_assumed = not is_launched and ((nodes > 1 and not divides_host) or not selection.has_devices(devices))
    if is_assumed and not decision.request.may_lack_hardware:
        # where the vendor alone is named, its first chip stands for all of its chips
        names_chip = decision.selector.target not in (None, selection.vendor.name)
        raise UsageError(_absent_devices_message(selection, nodes, devices, names_chip))
    is_elsewhere = is_launched or is_assumed
    chosen_devices = () if is_elsewhere else _idle_first_devices(selection, devices)
    indices = tuple(range(devices)) if is_elsewhere else tuple(device.index for device in chosen_devices)
    variable, memory = selection.vendor.visible_devices_variable, selection.device_memory_bytes(nodes * devices)
    if is_launched:
        memory = selection.device_memory_bytes(devices) if selection.vendor.is_host else selection.chip.memory_bytes
    return Hardware(
        vendor=selection.vendor.name,
        device_kind=selection.vendor.device_kind,
        chip=selection.chip,
        description=selection.devices[0].description if selection.devices and not is_launched else selection.chip.name,
        nodes=nodes,
        devices_per_node=devices,
        device_indices=() if selection.vendor.is_divided else indices,
        memory_bytes_per_device=memory,
        visible={variable: ",".join(_visible_values(decision, chosen_devices) or map(str, indices))}
        if variable and indices
        else {},
        environment=selection.vendor.environment,
        assumed=is_assumed,
        overlay=selection.overlay,
    )


def _idle_first_devices(selection: Selection, count: int) -> tuple[Device, ...]:
    """Return so many devices, in the tool's order. One that others use is taken after all idle ones."""
    idle_first = sorted(selection.devices, key=lambda device: device.index in selection.busy_devices)
    return tuple(device for device in selection.devices if device in idle_first[:count])


def _visible_values(decision: Decision, chosen_devices: tuple[Device, ...]) -> list[str]:
    """Return the devices' values in the visible-devices variable. Raises UsageError where one is unknown.

    All devices of a machine have all numbers from 0, whichever number is whose, where a tool should print them. A
    container that is given the devices' files needs no numbers.
    """
    selection = decision.selection
    unnumbered_reason = next((device.unnumbered_reason for device in chosen_devices if device.unnumbered_reason), None)
    in_container = decision.request.runtime == "docker" and selection.vendor.container.renumbered
    if unnumbered_reason is None or in_container:
        return [device.visible for device in chosen_devices]
    if visible_value_tool(selection.vendor) and len(chosen_devices) == selection.vendor_devices:
        return [str(number) for number in range(len(chosen_devices))]
    raise UsageError(f"vendor {selection.vendor.name}: {unnumbered_reason}")


def device_use_notices(selection: Selection, hardware: Hardware) -> tuple[str, ...]:
    """Return a sentence for each device that others use: it is part of the plan, or was left out."""
    if hardware.assumed:
        return ()
    planned_indices = hardware.device_indices
    first_indices = {device.index for device in selection.devices[: len(planned_indices)]}
    left_out = first_indices - {*planned_indices}
    return (
        *(use for index, use in selection.busy_devices.items() if index in planned_indices),
        *(f"device {index} is left out: {use}" for index, use in selection.busy_devices.items() if index in left_out),
    )


def _absent_devices_message(selection: Selection, nodes: int, devices: int, names_chip: bool) -> str:
    """Return what is here and what was expected. names_chip: the user named a chip, and not only its vendor."""
    if nodes > 1:
        return (
            f"found one node, expected {nodes}: the local launcher reaches only this machine. --launcher ssh, slurm or "
            "kubernetes reaches others (docs/many-machines.md); --dry-run shows the plan; with vendor cpu, --runtime "
            "docker starts a container for each node"
        )
    problem = f": {selection.problem}" if selection.problem else ""
    present = f"{len(selection.devices)} x {selection.chip.name}" if selection.devices or names_chip else "no devices"
    return (
        f"found {present} (vendor {selection.vendor.name}), expected {devices}{problem}. "
        "`show vendors` shows the devices here; --dry-run shows the plan without them"
    )


def plan_container(decision: Decision, hardware: Hardware, packages: EnvironmentPackages) -> ContainerPlan | None:
    """Return the container of a node with its image and devices; None for another runtime. Raises UsageError."""
    selection, request = decision.selection, decision.request
    if request.runtime != "docker":
        values = {
            "--base-image": request.base_image,
            "--base-has-framework": request.base_has_framework,
            "--container-memory": request.container_memory_bytes,
            "--allow": request.allow,
        }
        if unused := [name for name, value in values.items() if value]:
            raise UsageError(f"{', '.join(unused)}: found no --runtime docker; add it, or leave the option out")
        return None
    if request.python:
        raise UsageError("--python: a container has its own Python; leave it out, or use --runtime inside or process")
    local_devices = [] if hardware.assumed else [d for d in selection.devices if d.index in hardware.device_indices]
    indices = hardware.device_indices or range(hardware.devices_per_node)
    assumed_devices = [Device(i, selection.chip.name, selection.chip.name, None) for i in indices]
    options = selection.adapter.container(local_devices or assumed_devices)
    return ContainerPlan(
        image=image_plan(
            selection.implementation,
            selection.folder,
            selection.vendor,
            packages,
            request.base_image,
            request.base_has_framework,
        ),
        options=options,
        allowed=allowed_permissions(options, request.allow, selection.vendor.name),
        visible={} if selection.vendor.container.renumbered else hardware.visible,
        memory_bytes=request.container_memory_bytes,
        offline=request.offline,
    )
