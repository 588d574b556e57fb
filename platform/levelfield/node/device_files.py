"""Locks devices against all users of a machine, by one file for each device.

The kernel releases a lock when its process ends, however it ends. A rank of a killed platform, or one that SIGKILL does
not end, still holds the device then: the file names the ranks, and the device stays locked until they have ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Iterator, NamedTuple, Sequence

from levelfield.node.process_identity import identify_process, is_alive, parse_identity

HELD_PREFIX = "held by "  # precedes the identity of a process for which the device stays locked
DEFAULT_LOCK_FOLDER = "/tmp/levelfield-devices"
MAX_LOCK_BYTES = 4096  # of a lock's content
_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe with no reader must not block


class DeviceInUse(Exception):
    """A device is in use. The message names the device and the run."""


class DeviceLocks(NamedTuple):
    """The locks of a run."""

    files: Sequence[FileIO]  # one for each device, locked while it is open

    def hold_for(self, processes: Sequence[int]) -> None:
        """Keep the devices locked until these processes of this machine have ended, and no longer until others have.

        It is called with the ranks when they start, because this process may be killed, and with those left at the end.
        """
        identities = [identity for identity in map(identify_process, processes) if identity]
        for file in self.files:
            with suppress(OSError):  # not writable: the kernel's lock holds without the line, and the run goes on
                file.seek(0)
                first_line = file.readline(MAX_LOCK_BYTES).rstrip(b"\n")
                file.seek(len(first_line))
                file.truncate()
                file.write("".join(f"\n{HELD_PREFIX}{identity.to_text()}" for identity in identities).encode())


def lock_folder() -> Path:
    """Return the folder of the locks: one for all users of the machine, whatever their temporary folders are."""
    return Path(os.environ.get("LEVELFIELD_LOCKS") or DEFAULT_LOCK_FOLDER)


@contextmanager
def lock_device(folder: Path, device: str, run_id: str) -> Iterator[FileIO]:
    """Lock one device for the block. Raises DeviceInUse, or OSError where the lock cannot be made."""
    with FileIO(_open_lock_file(folder / f"{device}.lock"), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        content = file.read(MAX_LOCK_BYTES).decode(errors="replace")
        # without control characters, as any user may have written it
        first_line = "".join(character for character in content.partition("\n")[0][:200] if character.isprintable())
        run_text = first_line.strip() or "another run"
        if holder := _surviving_process(content, run_text) if is_free else run_text:
            raise DeviceInUse(
                f"device {device} is in use by {holder}; wait for its end, or choose others by the vendor's "
                "visible-devices variable"
            )
        file.truncate(0)
        file.seek(0)
        with suppress(OSError):  # a full disk: the kernel's lock holds without the name of its run
            file.write(f"run {run_id} (process {os.getpid()})".encode())
        yield file


def _surviving_process(content: str, run_text: str) -> str | None:
    """Return words for a process that still runs although its run has ended, because SIGKILL did not end it; None
    without one."""
    for line in content.splitlines()[1:]:
        identity = parse_identity(line[len(HELD_PREFIX) :] if line.startswith(HELD_PREFIX) else line)
        if identity and is_alive(identity):
            reason = "which SIGKILL did not end"
            try:
                os.kill(identity.process, 0)
            except PermissionError:  # only its user's next run ends what a killed platform left
                reason = "which the killed platform of another user left"
            except OSError:
                pass
            return (
                f"process {identity.process}, {reason} (see its state in "
                f"/proc/{identity.process}/status); it belongs to {run_text}"
            )
    return None


def _open_lock_file(path: Path) -> int:
    """Return a descriptor of the file. Every user can read and write it, whoever made it.

    The folder is shared, so another user may have put anything there: no link is followed, and only a plain file with
    one name is taken. Nothing is changed that this process did not make.
    """
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    try:
        folder_descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise OSError(error.errno, "found no folder, or a link to one", str(path.parent)) from error
    try:
        with suppress(FileExistsError):  # another run made it first, or anybody put something there
            new_descriptor = os.open(path.name, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder_descriptor)
            os.fchmod(new_descriptor, 0o666)
            os.close(new_descriptor)
        descriptor = os.open(path.name, _OPEN_FLAGS, dir_fd=folder_descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(folder_descriptor)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "found no plain file with one name", str(path))
    return descriptor
