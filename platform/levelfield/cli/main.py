"""Run one command of the command line and return its exit code.

Exit codes: 0 success; 2 wrong usage or configuration; 3 a run failed; 4 a check failed; 5 a fault of the platform;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from levelfield import installer
from levelfield.cli.command_line import parse_command_line
from levelfield.cli.streams import Streams
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, LevelfieldError, UsageError, disk_hint
from levelfield.run.interruption import interrupt_once

_OWN = "levelfield"
_LIMITED = (
    "this machine gives no more memory, processes or threads: {}. Look at `ulimit -a`, at pids.max and memory.max of "
    "the control group, and at what else runs"
)


def started(arguments: Sequence[str]) -> int:
    """Run one command as a process of its own and return its exit code. Lost output ends nothing.

    Of a command that trains, lost output changes neither its results, which are in files, nor its exit code.
    """
    streams, trains = Streams(), False

    def training() -> AbstractContextManager[None]:
        nonlocal trains
        trains = True
        return interrupt_once(process_ends=True)

    try:
        code = main(arguments, training)
    except SystemExit as ended:  # by argparse: --help, or wrong usage
        code = ended.code if isinstance(ended.code, int) else 2
    if lost := streams.lost():
        return _fail(lost, code if trains or code else PLATFORM_FAULT)
    return code


def main(arguments: Sequence[str], training: Callable[[], AbstractContextManager[None]] = nullcontext) -> int:
    """Run one command and return its exit code. Errors become sentences on stderr, without a traceback.

    training: gives the block in which a command runs that trains.
    """
    try:
        options = parse_command_line(arguments)
        with training() if options.trains else nullcontext():
            code: int = options.command(options)
        return code
    except LevelfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        if not _can_start_a_thread():  # OpenBLAS sends itself SIGINT where it cannot
            return _fail(_LIMITED.format("no thread can be started"), UsageError.exit_code)
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if message := _surroundings_fault(error):
            return _fail(message, UsageError.exit_code)
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        do = "run again with LEVELFIELD_DEBUG=1 and report the traceback"
        message = f"a fault of the platform itself: {type(error).__name__}: {error}. {do}"
        return _fail(message, PLATFORM_FAULT)


def _surroundings_fault(error: Exception) -> str | None:
    """Return what is wrong with this machine, its files or its packages; None for a fault of the platform itself."""
    if isinstance(error, OSError):
        removed = "" if _has_folder() else ". The current folder was removed: go to another one"
        place = Path(os.fsdecode(error.filename or ""))
        message = f"{error.filename or 'this machine'}: {error.strerror or error}{disk_hint(error, place)}"
        return f"{message}; the measurements so far are kept{removed}"
    if isinstance(error, UnicodeEncodeError):
        part = error.object[max(0, error.start - 40) : error.end + 40]
        return f"found {part!a}, in which a byte is not UTF-8; give the file or the variable another name or value"
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return _LIMITED.format(error or "MemoryError")
    return package_fault(error)


def _can_start_a_thread() -> bool:
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except RuntimeError:
        return False
    return True


def _has_folder() -> bool:
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False


def _fail(text: str, code: int) -> int:
    print(f"levelfield: error: {text}", file=sys.stderr)
    return code


def package_fault(error: Exception) -> str | None:
    """Return which package an error comes from, and what to do; None where it comes from none."""
    if isinstance(error, ModuleNotFoundError) and _is_foreign(error.name or _OWN):
        return installer.lost(error.name)
    name, file = _package_of(error)
    if name is None:
        return None
    message = f"the package '{name}'{f' ({file})' if file else ''} cannot be used: {type(error).__name__}: {error}"
    if folder := _python_path(file):
        return f"{message}. PYTHONPATH names {folder}, in which it is: leave that out"
    return f"{message}. {installer.renewed()}"


def _package_of(error: Exception) -> tuple[str | None, str | None]:
    """Return name and file of the package that was imported, or that lacks what it should have."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and _is_foreign(error.obj.__name__):
        return _top(error.obj.__name__), error.obj.__file__
    imported = [frame.f_globals for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    foreign = [module for module in imported if _is_foreign(str(module.get("__name__", _OWN)))]
    if foreign:
        return _top(str(foreign[-1]["__name__"])), foreign[-1].get("__file__")
    if isinstance(error, ImportError) and error.name and _is_foreign(error.name):
        return _top(error.name), error.path
    return None, None


def _is_foreign(module: str) -> bool:
    return _top(module) not in {_OWN, "__main__", *sys.stdlib_module_names}


def _top(module: str) -> str:
    return module.partition(".")[0]


def _python_path(file: str | None) -> str | None:
    """Return the folder of PYTHONPATH that holds a file; None where none does."""
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return next((folder for folder in folders if file and Path(file).is_relative_to(folder)), None)
