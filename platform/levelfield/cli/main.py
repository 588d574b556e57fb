"""Run one command of the command line and return its exit code.

Exit codes: 0 success; 2 wrong usage or configuration; 3 a run failed; 4 a check failed; 5 a fault of the platform;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from levelfield.cli.arguments import parser_of
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, LevelfieldError


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors become sentences on stderr, without a traceback."""
    options = parser_of(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except LevelfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `... | head` closed the pipe, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(
            f"{error.filename or 'output'}: {error.strerror}; the measurements so far are kept", PLATFORM_FAULT
        )
    except Exception as error:
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        detail = f"{type(error).__name__}: {error}"
        said = f"a fault of the platform itself: {detail}. run again with LEVELFIELD_DEBUG=1 and report the traceback"
        return _fail(said, PLATFORM_FAULT)


def _fail(text: str, code: int) -> int:
    print(f"levelfield: error: {text}", file=sys.stderr)
    return code
