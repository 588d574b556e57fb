"""The command line: which command, and what the process ends with.

Exit codes: 0 good; 2 wrong usage or configuration; 3 a run failed; 4 a gate refused; 5 the platform's own fault;
130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from levelfield.cli.arguments import parser_of
from levelfield.errors import INTERRUPTED, PLATFORM_FAULT, LevelfieldError


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors become sentences on stderr, never tracebacks."""
    options = parser_of(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except LevelfieldError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `... | head`: nobody reads on, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(
            f"{error.filename or 'output'}: {error.strerror}; what was measured before is kept", PLATFORM_FAULT
        )
    except Exception as error:
        if os.environ.get("LEVELFIELD_DEBUG"):
            raise
        detail = f"{type(error).__name__}: {error}"
        said = f"a fault of the platform itself: {detail}. LEVELFIELD_DEBUG=1 shows where; please report it"
        return _fail(said, PLATFORM_FAULT)


def _fail(text: str, code: int) -> int:
    print(f"levelfield: error: {text}", file=sys.stderr)
    return code
