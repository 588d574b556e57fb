"""A folder that holds a Python environment: whether it is Levelfield's own, its lock, and which process runs from it.

It uses the standard library only, because run_benchmarks.py needs it before the platform's packages are there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from levelfield.errors import UsageError

MARK = "levelfield-made-this"  # the first file of an environment: an attempt that was interrupted is known by it
STAMPS = ("levelfield-requirements.sha256", "levelfield-environment.json")  # earlier versions wrote these alone
SILENT_SECONDS = 1.0  # the longest wait for another start without a word
_POLL_SECONDS = 0.05
_MARK_TEXT = "Levelfield made this folder and may remove it.\n"
WITHOUT = "set LEVELFIELD_NO_BOOTSTRAP=1 to use the Python that you started"

Say = Callable[[str], None]  # takes a sentence for the user


def is_own(folder: Path) -> bool:
    """Return whether Levelfield made what is in the folder."""
    return any((folder / name).is_file() for name in (MARK, *STAMPS))


def refuse_foreign(folder: Path, instead: str = WITHOUT) -> None:
    """Raises UsageError for a place with anything that Levelfield did not make. Nothing there is touched.

    instead: what the user can do without this folder.
    """
    if not os.path.lexists(folder) or is_own(folder):
        return
    if folder.is_symlink():
        kind = f"a link to {folder.readlink()}"
    elif not folder.is_dir():
        kind = "a file"
    elif any(folder.iterdir()):
        kind = "an environment" if (folder / "pyvenv.cfg").exists() else "a folder"
    else:
        return
    raise UsageError(
        f"{folder}: found {kind} that Levelfield did not make, expected none. It is left as it is: move it to "
        f"another place, then start again. Or {instead}"
    )


def make_empty(folder: Path) -> None:
    """Make the folder an empty one of Levelfield's own. Raises UsageError for a foreign one, and OSError."""
    refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(_MARK_TEXT, encoding="utf-8")  # before anything is removed or made
    for name in STAMPS:  # what is half removed is not complete
        (folder / name).unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.name != MARK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def opened_lock(path: Path) -> int:
    """Return a descriptor of a lock file. Nothing is written to it, and no link is followed.

    Another user's lock is opened to read, which is enough to share it. Raises OSError.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe with no reader must not block
    try:
        descriptor = _descriptor(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "found a link, expected a file or nothing; remove the link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "found no plain file; remove it", str(path))
    return descriptor


def _descriptor(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS):
            with suppress(FileNotFoundError):  # then the reason is that none can be made
                return os.open(path, flags | os.O_RDONLY)
        raise


def lock_file(path: Path) -> TextIO:
    """Return the lock file, opened as opened_lock does; `with` closes it."""
    return os.fdopen(opened_lock(path), encoding="utf-8")


def wait_for_lock(descriptor: int, path: Path, what: str, say: Say) -> None:
    """Take the lock for this process alone, and say after a second whom it waits for.

    what: what the holder does. A file system without locks is said, and the start goes on.
    """
    deadline = time.monotonic() + SILENT_SECONDS
    while time.monotonic() < deadline:
        if is_taken(descriptor, fcntl.LOCK_EX, path, say):
            return
        time.sleep(_POLL_SECONDS)
    say(f"waiting for {_holder(descriptor)}, which {what}")
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def is_taken(descriptor: int, kind: int, path: Path, say: Say) -> bool:
    """Take a lock if it is free, and return whether it was; also where the file system has no locks, which is said."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        say(f"{path} cannot be locked ({error.strerror}): start nothing else from this checkout meanwhile")
    return True


def _holder(descriptor: int) -> str:
    """Return who holds a lock, as the kernel lists it."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and fields[5].rpartition(":")[2] == inode:
                return f"another start (process {fields[4]})"
    return "another start"


def hold(folder: Path) -> int | None:
    """Mark an environment as used until this process ends: a shared lock. Return its descriptor; None without locks."""
    try:
        descriptor = os.open(folder / "pyvenv.cfg", os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is being removed, or there are no locks
        return None
    return descriptor


def user_of(folder: Path) -> str | None:
    """Return who uses an environment, in words; None when nobody does as far as this user can see.

    A process uses it that was started by its Python, or that has loaded a library of it.
    """
    real = Path(os.path.realpath(folder))
    python, library = os.fsencode(real / "bin") + b"/", b" " + os.fsencode(real) + b"/"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or belongs to another user
            if process.name != str(os.getpid()) and (
                (process / "cmdline").read_bytes().startswith(python) or library in (process / "maps").read_bytes()
            ):
                return f"process {process.name}"
    with suppress(OSError):
        descriptor = os.open(real / "pyvenv.cfg", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(descriptor).replace("another start", "another command")
        finally:
            os.close(descriptor)
    return None
