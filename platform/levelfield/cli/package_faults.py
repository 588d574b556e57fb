"""Errors of packages that the platform needs: broken, of another machine, or another one of the same name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType

from levelfield import installer

_OWN = "levelfield"


def package_fault(error: Exception) -> str | None:
    """Return which package an error comes from, and what to do; None where it comes from none."""
    if isinstance(error, ModuleNotFoundError) and _is_foreign(error.name or _OWN):
        return installer.lost(error.name)
    name, file = _package_of(error)
    if name is None:
        return None
    said = f"the package '{name}'{f' ({file})' if file else ''} cannot be used: {type(error).__name__}: {error}"
    if folder := _given(file):
        return f"{said}. PYTHONPATH names {folder}, in which it is: leave that out"
    return f"{said}. {installer.renewed()}"


def _package_of(error: Exception) -> tuple[str | None, str | None]:
    """Return name and file of the package that was imported, or that lacks what it should have."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and _is_foreign(error.obj.__name__):
        return _top(error.obj.__name__), error.obj.__file__
    imported = [frame for frame in _frames(error.__traceback__) if _is_foreign(frame[0])]
    if imported:
        name, file = imported[-1]
        return _top(name), file
    if isinstance(error, ImportError) and error.name and _is_foreign(error.name):
        return _top(error.name), error.path
    return None, None


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, str | None]]:
    """Yield name and file of each module that was being imported."""
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "<module>":
            found = trace.tb_frame.f_globals
            yield str(found.get("__name__", _OWN)), found.get("__file__")
        trace = trace.tb_next


def _is_foreign(module: str) -> bool:
    return _top(module) not in {_OWN, "__main__", *sys.stdlib_module_names}


def _top(module: str) -> str:
    return module.partition(".")[0]


def _given(file: str | None) -> str | None:
    """Return the folder of PYTHONPATH that holds a file; None where none does."""
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return next((folder for folder in folders if file and Path(file).is_relative_to(folder)), None)
