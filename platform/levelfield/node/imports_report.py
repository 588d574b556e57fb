"""What a rank imported from elsewhere: from outside of Python, of installed packages and of the platform.

The rank writes it at its end. The platform leaves out what the digest of the code covers (run/code_watch.py).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Iterator

# Libraries of the system and of makers: the environment and the vendor's software tell their versions.
_OF_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/opt/", "/etc/", "/dev/", "/proc/", "/sys/")


def report_at_end(file: str) -> None:
    """Have this process write `file` when it ends, also by os._exit. Processes that it forks write none."""
    own, leave = os.getpid(), os._exit

    def report() -> None:
        if os.getpid() == own:
            with contextlib.suppress(OSError):  # a full disk: the platform says that nothing is known
                Path(file).write_text(json.dumps({"files": imported_from_elsewhere()}) + "\n", encoding="utf-8")

    def report_and_leave(status: int) -> Any:
        report()
        leave(status)

    atexit.register(report)
    os._exit = report_and_leave


def imported_from_elsewhere() -> list[dict[str, str]]:
    """Return path and sha256 of each file of a module, and of each library that is mapped."""
    known = tuple(os.path.realpath(str(place)) + os.sep for place in (*_installed(), *_generated()))
    known += (os.path.realpath(tempfile.gettempdir()) + "/torchinductor_",)  # with the user's name behind it
    found = {os.path.realpath(path) for path in (*_modules(), *_mapped())}
    return [{"path": path, "sha256": _digest(path)} for path in sorted(found) if not path.startswith(known)]


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and Path(name).is_file():
            yield name


def _mapped() -> Iterator[str]:
    """Yield the libraries of this process that lie outside of the system's folders."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line[line.find("/") :] if "/" in line else ""
            if ".so" in Path(path).name and not path.startswith(_OF_SYSTEM) and Path(path).is_file():
                yield path


def _installed() -> Iterator[str | Path]:
    """Yield the folders of Python, of its packages and of the platform."""
    yield from sysconfig.get_paths().values()
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix)
    yield Path(__file__).resolve().parents[2]


def _generated() -> Iterator[str | Path]:
    """Yield the folders in which compilers of frameworks keep what they made of code that is known."""
    with contextlib.suppress(RuntimeError):  # a user without a home has no such folder
        home = Path.home()
        if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            yield os.environ["TORCHINDUCTOR_CACHE_DIR"]
        yield os.environ.get("TRITON_CACHE_DIR") or home / ".triton"
        yield os.environ.get("TORCH_EXTENSIONS_DIR") or home / ".cache" / "torch_extensions"


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        return f"unreadable: {error.strerror}"
    return digest.hexdigest()
