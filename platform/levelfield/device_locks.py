"""Devices are locked while a run uses them, across all users of the machine.

A lock is the kernel's, on a file for each device: it goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from levelfield.specs.plan import Plan


class DeviceTaken(Exception):
    """Says which device is taken, and by which run."""


def lock_folder() -> Path:
    return Path(os.environ.get("LEVELFIELD_LOCKS") or Path(tempfile.gettempdir()) / "levelfield-devices")


@contextmanager
def devices_locked(plan: Plan) -> Iterator[None]:
    """Hold the plan's devices. A host that is divided into shares has none to hold. Raises DeviceTaken or OSError."""
    with ExitStack() as stack:
        for index in plan.hardware.device_indices:
            stack.enter_context(_locked(f"{plan.hardware.vendor}-{index}", plan.run_id))
        yield


@contextmanager
def _locked(device: str, run_id: str) -> Iterator[None]:
    folder = lock_folder()
    with suppress(PermissionError):  # another user made it, for everyone
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)
    descriptor = os.open(folder / f"{device}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    with os.fdopen(descriptor, "r+") as file:
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip() or "another run"
            raise DeviceTaken(
                f"device {device} is in use by {holder}; wait for its end, or choose others by the vendor's "
                "visible-devices variable"
            ) from None
        file.truncate(0)
        file.write(f"run {run_id} (process {os.getpid()})")
        file.flush()
        yield
