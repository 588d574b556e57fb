"""A folder held open, below which no link is followed: others may have put anything there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not block
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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

    def __init__(self, path: Path, above: FolderDescriptor | None = None) -> None:
        """Open the folder. above: the folder that it is in; it is then no link."""
        self.path = path
        with _whole_path(path):
            self.descriptor: int = (
                os.open(path.name, _FOLDER | os.O_NOFOLLOW, dir_fd=above.descriptor)
                if above
                else os.open(path, _FOLDER)
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def below(self, name: str, make: bool = False) -> FolderDescriptor:
        """Return a folder of this one. make: where nothing has its name, it is made."""
        with _whole_path(self.path / name):
            if make and self.kind(name) is None:
                os.mkdir(name, dir_fd=self.descriptor)
        return FolderDescriptor(self.path / name, self)

    def names(self) -> list[str]:
        with _whole_path(self.path):
            return sorted(os.listdir(self.descriptor))  # noqa: PTH208 (pathlib takes no descriptor)

    def kind(self, name: str) -> str | None:
        """Return what has this name, such as `a file` or `a link`; None where nothing has it."""
        try:
            mode = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        return _KINDS.get(stat.S_IFMT(mode), "a device")

    def read(self, name: str, largest: int) -> bytes:
        """Return the content of a regular file of at most `largest` bytes."""
        with _whole_path(self.path / name):
            if (kind := self.kind(name)) not in (None, "a file"):  # before it is opened: that may have an effect
                raise OSError(errno.EINVAL, f"found {kind}, expected a regular file")
            with os.fdopen(os.open(name, _READ, dir_fd=self.descriptor), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(errno.EINVAL, "found no regular file")
                content = file.read(largest + 1)
            if len(content) > largest:
                raise OSError(errno.EFBIG, f"found more than {largest:,} bytes")
            return content

    def write_new(self, name: str, content: bytes) -> None:
        """Write a file that was not there. Where that fails, none stays."""
        with _whole_path(self.path / name):
            file = os.fdopen(os.open(name, _NEW, 0o666, dir_fd=self.descriptor), "wb")
            try:
                with file:
                    file.write(content)
            except BaseException:
                os.unlink(name, dir_fd=self.descriptor)
                raise

    def move(self, name: str, target: FolderDescriptor, new_name: str) -> None:
        """Give a file its place in another folder. Of a link that has this place, the link is replaced."""
        with _whole_path(target.path / new_name):
            os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=target.descriptor)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all. What has its name is replaced, a link too, and what it leads to is not."""
        part = f".{name}.{os.getpid()}-{os.urandom(4).hex()}"
        self.write_new(part, content)
        try:
            self.move(part, self, name)
        except BaseException:
            self.remove(part)
            raise

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        with _whole_path(self.path / name):
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                return

    def locked(self) -> bool:
        """Lock the folder until it is closed. Return whether nobody else has locked it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # locked, or a file system without locks, on which nobody can tell
            return False
        return True


@contextmanager
def _whole_path(path: Path) -> Iterator[None]:
    """Name the whole path in an error: by a descriptor, the system names the last part or none."""
    try:
        yield
    except OSError as error:
        is_whole = isinstance(error.filename, str) and os.sep in error.filename
        raise OSError(error.errno, error.strerror, error.filename if is_whole else str(path)) from None
