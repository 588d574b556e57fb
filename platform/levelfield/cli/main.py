"""Run one command of the command line and return its exit code.

Exit codes: 0 success; 2 wrong usage or configuration; 3 a run failed; 4 a check failed; 5 a fault of the platform;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from levelfield.cli.arguments import parser_of
from levelfield.cli.package_faults import package_fault
from levelfield.cli.streams import Streams
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, LevelfieldError, UsageError
from levelfield.run.interruption import interrupted_once

# Commands that train. Output that is lost changes neither their results, which are in files, nor their exit codes.
TRAINING = ("run", "sweep", "nightly", "bisect", "align", "diagnose")


_LIMITED = (
    "this machine gives no more memory, processes or threads: {}. Look at `ulimit -a`, at pids.max and memory.max of "
    "the control group, and at what else runs"
)


def started(arguments: Sequence[str]) -> int:
    """Run one command as a process of its own and return its exit code. Lost output ends nothing."""
    streams = Streams()
    trains = not arguments or arguments[0] in TRAINING or arguments[0].startswith("-")
    try:
        with interrupted_once(to_the_end=True) if trains else nullcontext():
            code = main(arguments)
    except SystemExit as ended:  # by argparse: --help, or wrong usage
        code = ended.code if isinstance(ended.code, int) else 2
    if lost := streams.lost():
        return _fail(lost, code if trains or code else PLATFORM_FAULT)
    return code


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors become sentences on stderr, without a traceback."""
    try:
        options = parser_of(arguments)
        code: int = options.command(options)
        return code
    except LevelfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        if not _can_start_a_thread():  # OpenBLAS sends itself SIGINT where it cannot
            return _fail(_LIMITED.format("no thread can be started"), UsageError.exit_code)
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:
        if said := _of_surroundings(error):
            return _fail(said, UsageError.exit_code)
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        detail = f"{type(error).__name__}: {error}"
        said = f"a fault of the platform itself: {detail}. run again with LEVELFIELD_DEBUG=1 and report the traceback"
        return _fail(said, PLATFORM_FAULT)


def _of_surroundings(error: Exception) -> str | None:
    """Return what is wrong with this machine, its files or its packages; None for a fault of the platform itself."""
    if isinstance(error, OSError):
        gone = "" if _has_folder() else ". The current folder was removed: go to another one"
        from levelfield.rundir.directory import room_left

        place = Path(os.fsdecode(error.filename or ""))
        said = f"{error.filename or 'this machine'}: {error.strerror or error}{room_left(error, place)}"
        return f"{said}; the measurements so far are kept{gone}"
    if isinstance(error, UnicodeEncodeError):
        shown = error.object[max(0, error.start - 40) : error.end + 40]
        return f"found {shown!a}, in which a byte is not UTF-8; give the file or the variable another name or value"
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
