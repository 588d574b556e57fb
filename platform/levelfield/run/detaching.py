"""Lets a command go on without the shell that started it.

The platform is a fork. It checks and plans with the shell's terminal, then leaves it for a session of its own. The
first process waits for that, so each refusal is printed, and is its exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from levelfield.errors import UsageError, write_failure_text
from levelfield.rundir.detached_calls import Call, start_call


class Detachment:
    """The platform's side, until it leaves the shell."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe  # the first process reads the call's id from it

    def leave_shell(
        self, runs: Path, call_id: str, planned_runs: Sequence[str] = (), plugins: Sequence[Path] = ()
    ) -> Call:
        """Go on in a session of its own, and write to the call's files. Raises UsageError where that cannot be."""
        os.setsid()
        try:
            call = start_call(runs, call_id, planned_runs, plugins)
            descriptors = [
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) for path in (call.stdout, call.stderr)
            ]
            descriptors.insert(0, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise UsageError(f"not-run: {write_failure_text(error, runs)}. Name another folder with --runs") from None
        sys.stdout.flush()
        sys.stderr.flush()
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.write(self._pipe, call.id.encode())
        os.close(self._pipe)
        return call


def fork_platform(show_call: Callable[[str], None]) -> Detachment:
    """Return in the new process, which is the platform.

    The first process waits until the platform has left the shell, calls show_call with the call's id, and raises
    SystemExit, with the platform's exit code where it has ended before.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        return Detachment(writing)
    os.close(writing)
    call_id = b""
    with os.fdopen(reading, "rb") as pipe:
        try:
            call_id = pipe.read()
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
            call_id = pipe.read()
    if call_id:
        show_call(call_id.decode())
        raise SystemExit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    raise SystemExit(code if code >= 0 else 128 - code)
