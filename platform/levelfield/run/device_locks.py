"""Locks the devices of a run on this machine (node/device_files.py), against all users of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO

from levelfield.errors import RunFailed
from levelfield.node.device_files import DeviceInUse, DeviceLocks, device_locked, lock_folder
from levelfield.node.process_identity import end_left_ranks
from levelfield.specs.plan import Plan

__all__ = ["DeviceInUse", "DeviceLocks", "devices_locked"]


@contextmanager
def devices_locked(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Iterator[DeviceLocks]:
    """Lock the plan's devices until the block ends. A host that is divided into shares has none to lock, and where a
    launcher reaches other nodes, each node locks its own.

    What a killed platform left is ended first: it may use a device, or memory and cores of the host.
    Raises DeviceInUse, or RunFailed where a lock cannot be made.
    """
    if plan.launch:
        yield DeviceLocks(())
        return
    for sentence in end_left_ranks():
        say(sentence)
    with ExitStack() as stack:
        devices = [f"{plan.hardware.vendor}-{index}" for index in plan.hardware.device_indices]
        yield DeviceLocks([stack.enter_context(_locked(device, plan.run_id)) for device in devices])


@contextmanager
def _locked(device: str, run_id: str) -> Iterator[FileIO]:
    with ExitStack() as stack:
        try:
            file = stack.enter_context(device_locked(lock_folder(), device, run_id))
        except OSError as error:
            raise RunFailed(
                f"device {device} cannot be locked: {error.filename}: {error.strerror}; set LEVELFIELD_LOCKS to a "
                "folder that all users of the machine can write"
            ) from None
        yield file
