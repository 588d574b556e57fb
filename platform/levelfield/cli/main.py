"""Run one command of the command line and return its exit code.

Exit codes: 0 success; 2 wrong usage or configuration; 3 a run failed; 4 a check failed; 5 a fault of the platform;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from levelfield import installer
from levelfield.cli.arguments import parser_of
from levelfield.cli.streams import Streams
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, LevelfieldError, UsageError

# Commands that train. Output that is lost changes neither their results, which are in files, nor their exit codes.
TRAINING = ("run", "sweep", "nightly", "bisect", "align", "diagnose")


def started(arguments: Sequence[str]) -> int:
    """Run one command as a process of its own and return its exit code. Lost output ends nothing."""
    streams = Streams()
    try:
        code = main(arguments)
    except SystemExit as ended:  # by argparse: --help, or wrong usage
        code = ended.code if isinstance(ended.code, int) else 2
    if lost := streams.lost():
        trains = not arguments or arguments[0] in TRAINING or arguments[0].startswith("-")
        return _fail(lost, code if trains or code else PLATFORM_FAULT)
    return code


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors become sentences on stderr, without a traceback."""
    options = parser_of(arguments)
    try:
        code: int = options.command(options)
        return code
    except LevelfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except OSError as error:  # of a disk, a folder, or a limit of the machine
        place = error.filename or "this machine"
        return _fail(f"{place}: {error.strerror or error}; the measurements so far are kept", UsageError.exit_code)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "levelfield").startswith("levelfield"):
            return _fail(installer.lost(error.name), UsageError.exit_code)
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        detail = f"{type(error).__name__}: {error}"
        said = f"a fault of the platform itself: {detail}. run again with LEVELFIELD_DEBUG=1 and report the traceback"
        return _fail(said, PLATFORM_FAULT)


def _fail(text: str, code: int) -> int:
    print(f"levelfield: error: {text}", file=sys.stderr)
    return code
