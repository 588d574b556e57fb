"""An open folder below which no link is followed: others may have put anything there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a file",
}


class FolderDescriptor(AbstractContextManager["FolderDescriptor"]):
    """Reaches the files of one folder by its descriptor. A folder or a link that takes its place later has no effect.

    The folder that is named may be a link, or lie behind one: whoever names it decides that. Every name is one part of
    a path. Each method raises OSError with the whole path.
    """

    def __init__(self, path: Path, parent: FolderDescriptor | None = None) -> None:
        """Open the folder. parent: the folder that it is in; it is then no link."""
        self.path = path
        with _with_whole_path(path):
            self.descriptor: int = (
                os.open(path.name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent.descriptor)
                if parent
                else os.open(path, _FOLDER_FLAGS)
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def subfolder(self, name: str, make: bool = False) -> FolderDescriptor:
        """Return a folder in this one. make: make it where nothing has its name."""
        with _with_whole_path(self.path / name):
            if make and self.kind(name) is None:
                os.mkdir(name, dir_fd=self.descriptor)
        return FolderDescriptor(self.path / name, self)

    def names(self) -> list[str]:
        with _with_whole_path(self.path):
            return sorted(os.listdir(self.descriptor))  # noqa: PTH208 (pathlib takes no descriptor)

    def kind(self, name: str) -> str | None:
        """Return what has this name, such as `a file` or `a link`; None where nothing has it."""
        try:
            mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        return _KINDS.get(stat.S_IFMT(mode), "a device")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of at most `max_bytes` bytes."""
        with _with_whole_path(self.path / name):
            if (kind := self.kind(name)) not in (None, "a file"):  # before it is opened: that may have an effect
                raise OSError(errno.EINVAL, f"found {kind}, expected a regular file")
            with os.fdopen(os.open(name, _READ_FLAGS, dir_fd=self.descriptor), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "found no regular file")
                content = file.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise OSError(errno.EFBIG, f"found more than {max_bytes:,} bytes")
            return content

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file that was not there. Where that fails, none stays."""
        with _with_whole_path(self.path / name):
            file = os.fdopen(os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=self.descriptor), "wb")
            try:
                with file:
                    file.write(content)
            except BaseException:
                os.unlink(name, dir_fd=self.descriptor)
                raise

    def move_to(self, name: str, target: FolderDescriptor, new_name: str) -> None:
        """Move a file into another folder under a new name. A link of that name is replaced, not followed."""
        with _with_whole_path(target.path / new_name):
            os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all. It replaces what has its name; a link is replaced, not followed."""
        temporary_name = f".{name}.{os.getpid()}-{os.urandom(4).hex()}"
        self.write_new(temporary_name, content)
        try:
            self.move_to(temporary_name, self, name)
        except BaseException:
            self.remove(temporary_name)
            raise

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        with _with_whole_path(self.path / name):
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                return

    def try_lock(self) -> bool:
        """Lock the folder until it is closed. Return whether nobody else has locked it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # locked, or a file system without locks, on which nobody can tell
            return False
        return True


@contextmanager
def _with_whole_path(path: Path) -> Iterator[None]:
    """Name the whole path in an error: by a descriptor, the system names the last part or none."""
    try:
        yield
    except OSError as error:
        is_whole = isinstance(error.filename, str) and os.sep in error.filename
        raise OSError(error.errno, error.strerror, error.filename if is_whole else str(path)) from None
