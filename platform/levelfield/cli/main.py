"""Run one command of the command line and return its exit code.

Exit codes: 0 success; 2 wrong usage or configuration; 3 a run failed; 4 a check failed; 5 a fault of the platform;
130 interrupted.
"""

from __future__ import annotations

import errno
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
from levelfield.errors import (
    INTERRUPTED,
    PLATFORM_FAULT,
    LevelfieldError,
    UsageError,
    bounded_message,
    write_failure_ending,
)
from levelfield.run.interruption import interrupt_once
from levelfield.rundir.detached_calls import FOLDER_VARIABLE, continue_call, end_this_call

_PLATFORM_PACKAGE = "levelfield"
_RESOURCE_LIMIT = (
    "this machine gives no more memory, processes or threads: {}. Look at `ulimit -a`, at pids.max and memory.max of "
    "the control group, and at what else runs"
)


def run_as_process(arguments: Sequence[str]) -> int:
    """Run one command as the whole process, with safe output streams. Return its exit code.

    Output that cannot be written does not stop the command; it makes the exit code 5. A command that trains keeps its
    exit code, because its results are in files.
    """
    streams, is_training = Streams(), False
    if call_folder := os.environ.pop(FOLDER_VARIABLE, None):
        continue_call(Path(call_folder))

    def training_context() -> AbstractContextManager[None]:
        nonlocal is_training
        is_training = True
        return interrupt_once(process_ends=True)

    try:
        code = main(arguments, training_context)
    except SystemExit as ended:  # by argparse: --help, or wrong usage
        code = ended.code if isinstance(ended.code, int) else 2
    if output_failure := streams.output_failure():
        code = _print_error(output_failure, code if is_training or code else PLATFORM_FAULT)
    end_this_call(code)
    return code


def main(arguments: Sequence[str], training_context: Callable[[], AbstractContextManager[None]] = nullcontext) -> int:
    """Run one command and return its exit code. Errors become sentences on stderr, without a traceback.

    training_context: opens the context in which a command that trains runs.
    """

    def execute() -> int:
        options = parse_command_line(arguments)
        with training_context() if options.trains else nullcontext():
            code: int = options.command(options)
        return code

    return exit_code_of(execute)


def exit_code_of(execute: Callable[[], int]) -> int:
    """Return the exit code that a function returns. Its errors become sentences on stderr, without a traceback."""
    try:
        return execute()
    except LevelfieldError as error:
        return _print_error(str(error), error.exit_code)
    except KeyboardInterrupt:
        if not _can_start_thread():  # OpenBLAS sends itself SIGINT where it cannot
            return _print_error(_RESOURCE_LIMIT.format("no thread can be started"), UsageError.exit_code)
        return _print_error("interrupted", INTERRUPTED)
    except Exception as error:
        if message := _external_fault(error):
            return _print_error(message, UsageError.exit_code)
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        advice = "run again with LEVELFIELD_DEBUG=1 and report the traceback"
        message = f"a fault of the platform itself: {type(error).__name__}: {error}. {advice}"
        return _print_error(message, PLATFORM_FAULT)


def _external_fault(error: Exception) -> str | None:
    """Return what is wrong with the machine, its files or its packages; None for a fault of the platform itself."""
    if isinstance(error, OSError):
        folder_hint = "" if _has_current_folder() else ". The current folder was removed: go to another one"
        place = Path(os.fsdecode(error.filename or ""))
        message = f"{error.filename or 'this machine'}: {error.strerror or error}{write_failure_ending(error, place)}"
        kept_hint = "" if error.errno == errno.ENOENT else "; the measurements so far are kept"  # a folder may be gone
        return f"{message}{kept_hint}{folder_hint}"
    if isinstance(error, UnicodeEncodeError):
        part = error.object[max(0, error.start - 40) : error.end + 40]
        return f"found {part!a}, in which a byte is not UTF-8; give the file or the variable another name or value"
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return _RESOURCE_LIMIT.format(error or "MemoryError")
    return package_fault(error)


def _can_start_thread() -> bool:
    try:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    except RuntimeError:
        return False
    return True


def _has_current_folder() -> bool:
    try:
        return Path.cwd().is_dir()
    except OSError:
        return False


def _print_error(text: str, code: int) -> int:
    print(f"levelfield: error: {bounded_message(text)}", file=sys.stderr)
    return code


def package_fault(error: Exception) -> str | None:
    """Return which package causes an error, and what to do; None where no package does."""
    if isinstance(error, ModuleNotFoundError) and _is_third_party(error.name or _PLATFORM_PACKAGE):
        return installer.lost(error.name)
    name, file = _package_of(error)
    if name is None:
        return None
    message = f"the package '{name}'{f' ({file})' if file else ''} cannot be used: {type(error).__name__}: {error}"
    if folder := _python_path_folder(file):
        return f"{message}. PYTHONPATH names {folder}, in which it is: leave that out"
    return f"{message}. {installer.renewed()}"


def _package_of(error: Exception) -> tuple[str | None, str | None]:
    """Return name and file of the third-party package whose import failed, or that lacks an attribute."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType) and _is_third_party(error.obj.__name__):
        return _top_package(error.obj.__name__), error.obj.__file__
    imported = [frame.f_globals for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    third_party = [module for module in imported if _is_third_party(str(module.get("__name__", _PLATFORM_PACKAGE)))]
    if third_party:
        return _top_package(str(third_party[-1]["__name__"])), third_party[-1].get("__file__")
    if isinstance(error, ImportError) and error.name and _is_third_party(error.name):
        return _top_package(error.name), error.path
    return None, None


def _is_third_party(module: str) -> bool:
    return _top_package(module) not in {_PLATFORM_PACKAGE, "__main__", *sys.stdlib_module_names}


def _top_package(module: str) -> str:
    return module.partition(".")[0]


def _python_path_folder(file: str | None) -> str | None:
    """Return the folder of PYTHONPATH that holds the file; None where none does."""
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return next((folder for folder in folders if file and Path(file).is_relative_to(folder)), None)
