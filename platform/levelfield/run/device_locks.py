"""Locks the devices of a run, against all users of the machine.

A lock is a kernel lock on a file for each device. The kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from levelfield.errors import RunFailed
from levelfield.specs.plan import Plan

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe with no reader must not block


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
            holder = "".join(c for c in file.read(200) if c.isprintable()).strip() or "another run"
            raise DeviceInUse(
                f"device {device} is in use by {holder}; wait for its end, or choose others by the vendor's "
                "visible-devices variable"
            ) from None
        file.truncate(0)
        file.write(f"run {run_id} (process {os.getpid()})")
        file.flush()
        yield


def _opened(path: Path) -> int:
    """Return a descriptor of the file. Every user can read and write it, whoever made it.

    The folder is shared, so another user may have put anything there: no link is followed, and only a plain file with
    one name is taken. Nothing is changed that this process did not make.
    """
    folder = _folder(path.parent)
    try:
        with suppress(FileExistsError):  # another run made it first
            _make_file(path.name, folder)
        descriptor = os.open(path.name, _FLAGS, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(folder)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "found no plain file with one name", str(path))
    return descriptor


def _make_file(name: str, folder: int) -> None:
    """Make the file for all users. Raises FileExistsError for one that is there, with whatever owner and kind."""
    descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    os.fchmod(descriptor, 0o666)
    os.close(descriptor)


def _folder(path: Path) -> int:
    """Return a descriptor of the folder, which is made for all users where it is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o1777)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise OSError(error.errno, "found no folder, or a link to one", str(path)) from error
