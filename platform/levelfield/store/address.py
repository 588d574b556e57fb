"""Where a store is: a file of SQLite or a database of PostgreSQL. Nothing is opened here."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from levelfield.errors import UsageError
from levelfield.specs.variables import is_utf8
from levelfield.user_folders import data_folder, expanded

STORE_VARIABLE = "LEVELFIELD_STORE"  # names the store, as --store does
NO_STORE = "none"  # as the value of LEVELFIELD_STORE: no run is recorded
# Processes on several machines share these, and SQLite's write-ahead log needs one memory for all of its processes.
_NETWORK_FILE_SYSTEMS = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"),
    *("nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs"),
    *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
}
_MOUNTS = Path("/proc/self/mounts")
_PASSWORD = re.compile(r"(?<=//)([^/@:]*):[^/@]*(?=@)|(?<=password=)[^&]*")


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is."""

    kind: Literal["sqlite", "postgresql"]
    url: str
    path: Path | None  # the file of SQLite; None for PostgreSQL

    @property
    def text(self) -> str:
        """How messages name the store, without a password."""
        return str(self.path) if self.path else without_password(self.url)


def default_url() -> str:
    """Return LEVELFIELD_STORE, else the file in the user's data folder."""
    return os.environ.get(STORE_VARIABLE) or f"sqlite:///{data_folder() / 'levelfield' / 'results.sqlite'}"


def parse_address(url: str | None) -> StoreAddress:
    """Return the address of a URL or of a path; without one the default's. Raises UsageError for another database."""
    text = url or default_url()
    if text == NO_STORE:
        raise UsageError(
            f"{STORE_VARIABLE}={NO_STORE}: found no store; name one with --store FILE or --store postgresql://..."
        )
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "sqlite":
        path = expanded(rest.removeprefix("/") if separator else text)
        file = "a file such as results.sqlite"
        if not path.name or path.is_dir():
            raise UsageError(f"--store {text}: found a folder, expected {file}")
        if path.exists() and not path.is_file():  # SQLite would wait half a minute for a device, as for a lock
            raise UsageError(f"--store {text}: found a device, a pipe or a socket, expected {file}")
        if not is_utf8(str(path)):
            raise UsageError(f"--store {text}: found a byte that is not UTF-8, which no address of a database can hold")
        return StoreAddress("sqlite", text, path.absolute())
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        return StoreAddress("postgresql", f"postgresql+psycopg://{rest}", None)
    raise UsageError(
        f"--store {without_password(text)}: found the database '{scheme}', expected a file, sqlite:///FILE or "
        "postgresql://USER@HOST/DATABASE"
    )


def is_missing(url: str | None) -> bool:
    """Return whether a store is a file that does not exist. A command that only reads a store must not create one."""
    path = parse_address(url).path
    return path is not None and not path.exists()


def without_password(url: str) -> str:
    return _PASSWORD.sub(lambda match: f"{match[1]}:***" if match[1] is not None else "***", url)


def refuse_network_file_system(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise UsageError for a file on a network file system, where SQLite loses rows."""
    if (kind := file_system_kind(path, mounts)) in _NETWORK_FILE_SYSTEMS:
        raise UsageError(
            f"{path}: lies on a network file system ({kind}), on which SQLite's write-ahead log is not safe. Name a "
            f"file on a local disk with {STORE_VARIABLE} or --store, or use postgresql://..."
        )


def file_system_kind(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the kind of file system that holds a path, as the kernel names it; None where the kernel lists none."""
    absolute, best_match = path.absolute(), (0, None)
    resolved = absolute.resolve() if absolute.exists() else absolute.parent.resolve() / absolute.name
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        _, mount_point, kind, *_ = [*line.split(" "), "", "", ""]
        folder = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), mount_point))
        if mount_point and resolved.is_relative_to(folder) and len(folder.parts) >= best_match[0]:
            best_match = (len(folder.parts), kind)  # type: ignore[assignment]
    return best_match[1]
