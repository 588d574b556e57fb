"""Locks the devices of a run, against all users of the machine.

A lock is a kernel lock on a file for each device. The kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from levelfield.errors import RunFailed
from levelfield.specs.plan import Plan


class DeviceInUse(Exception):
    """A device is in use. The message names the device and the run."""


def lock_folder() -> Path:
    return Path(os.environ.get("LEVELFIELD_LOCKS") or Path(tempfile.gettempdir()) / "levelfield-devices")


@contextmanager
def devices_locked(plan: Plan) -> Iterator[None]:
    """Lock the plan's devices until the block ends. A host that is divided into shares has none to lock.

    Raises DeviceInUse, or RunFailed where a lock cannot be made.
    """
    with ExitStack() as stack:
        for index in plan.hardware.device_indices:
            stack.enter_context(_locked(f"{plan.hardware.vendor}-{index}", plan.run_id))
        yield


@contextmanager
def _locked(device: str, run_id: str) -> Iterator[None]:
    try:
        descriptor = _opened(lock_folder() / f"{device}.lock")
    except OSError as error:
        raise RunFailed(
            f"device {device} cannot be locked: {error.filename}: {error.strerror}; set LEVELFIELD_LOCKS to a folder "
            "that all users of the machine can write"
        ) from None
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "another run"
            raise DeviceInUse(
                f"device {device} is in use by {holder}; wait for its end, or choose others by the vendor's "
                "visible-devices variable"
            ) from None
        file.truncate(0)
        file.write(f"run {run_id} (process {os.getpid()})")
        file.flush()
        yield


def _opened(path: Path) -> int:
    """Return a descriptor of the file. Every user can read and write it, whoever made it."""
    try:
        # Without O_CREAT: in a sticky folder Linux forbids O_CREAT on a file of another user.
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's folder
            path.parent.chmod(0o1777)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
