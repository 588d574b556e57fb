"""What a fuzzed command may touch: it writes in the given folders alone, starts two programs, and reaches no network.

The guard is an audit hook of this process. What it refuses fails as it would for a user without rights, programs and
network, so a drawn command harms nothing and ends at once. A write in a place that nobody named is a finding.
"""

from __future__ import annotations

import errno
import os
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("git", "ssh-keygen")  # they end at once; what trains, installs or asks other machines is refused
DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
# The paths among the arguments of each event that changes files, and the place of a folder's descriptor for each.
CHANGES = {
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "sqlite3.connect": ((0, None),),
}
REFUSED = {
    "os.fork": errno.EAGAIN,
    "socket.bind": errno.EADDRINUSE,
    "socket.connect": errno.ECONNREFUSED,
    "socket.getaddrinfo": errno.ECONNREFUSED,
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
COMPILED = re.compile(r"/__pycache__(/|$)|\.pyc(\.\d+)?$")


@dataclass
class Guard:
    """allowed: where a command may write; everywhere else it is refused.

    named: places elsewhere that its words name, and own: those that it is for. A write there is no finding.
    """

    allowed: Sequence[Path]
    named: Sequence[Path] = ()
    own: Sequence[Path] = ()
    found: list[str] = field(default_factory=list)

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raises OSError for what is refused."""
        if event == "open":
            self._opened(*arguments)
        for path, folder in CHANGES.get(event, ()):
            self._written(arguments[path], arguments[folder] if folder is not None else -1, event)
        if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name not in PROGRAMS:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(arguments[0]))
        if event in REFUSED:
            raise OSError(REFUSED[event], os.strerror(REFUSED[event]))

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        writes = flags & WRITING if mode is None else set(mode) & set("wax+")
        if writes and not isinstance(path, int):
            self._written(path, -1, "open")

    def _written(self, target: Any, folder: int, event: str) -> None:
        if isinstance(target, int):  # a descriptor, whose opening was checked
            return
        path = os.fsdecode(target)
        if event == "sqlite3.connect":
            path = path.removeprefix("file:").partition("?")[0]
            if path in ("", ":memory:"):
                return
        if folder >= 0 and not path.startswith("/"):
            path = str(Path(f"/proc/self/fd/{folder}").readlink() / path)
        real = _real(path, follow=event in ("open", "sqlite3.connect", "os.truncate"))
        if COMPILED.search(real) or real in DEVICES or _within(real, self.allowed):
            return
        if not _within(real, self.own) and not {Path(real), Path(real).parent} & set(self.named):
            self.found.append(f"{event} {real}")
        raise PermissionError(errno.EACCES, "Permission denied", path)


def _real(path: str, follow: bool) -> str:
    """The path without links; its last part stays where the file itself is changed."""
    if "\0" in path:  # the call will be refused
        return os.devnull
    return os.path.realpath(path) if follow else str(Path(os.path.realpath(Path(path).parent)) / Path(path).name)


def _within(real: str, places: Sequence[Path]) -> bool:
    return any(Path(real).is_relative_to(place) for place in places)


_guards: list[Guard] = []  # the innermost last; a hook cannot be removed, so one hook serves all
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _guards:
        _guards[-1].check(event, arguments)


@contextmanager
def guarded(guard: Guard) -> Iterator[Guard]:
    """Hold this process to a guard in the block."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _guards.append(guard)
    try:
        yield guard
    finally:
        _guards.pop()


def main(folder: str, script: str, words: list[str]) -> None:
    """Run a script in a process of its own, which may write in the folder alone, and print what else it tried."""
    sys.argv, sys.path[0] = [script, *words], str(Path(script).parent)
    guard = Guard([Path(folder)])
    try:
        with guarded(guard):
            runpy.run_path(script, run_name="__main__")
    finally:
        if guard.found:
            print("writes elsewhere:", *guard.found, file=sys.__stderr__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
