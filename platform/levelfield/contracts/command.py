"""Runs a vendor's tool. It may be missing, slow or failing, or print another encoding; nothing here raises."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

LEAVE_SECONDS = 1.0  # the time for a killed tool to end; a tool that hangs in its driver never ends


class CommandOutput(NamedTuple):
    """The output of a tool; None when there is no readable output, and `reason` gives the cause."""

    text: str | None
    reason: str = ""


Ask = Callable[[Sequence[str], float], CommandOutput]


def ask(argv: Sequence[str], timeout_seconds: float) -> CommandOutput:
    """Run a tool from PATH in the C locale and return its output. After `timeout_seconds` the tool is killed."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return CommandOutput(None, f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}")
    try:
        printed, complaint = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return CommandOutput(None, f"{argv[0]} did not answer within {timeout_seconds:g} s")
    finally:
        if process.returncode is None:
            _end(process)
    return _answer(argv[0], process.returncode, printed, complaint)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool and all processes that it started: they share a session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_SECONDS)
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _answer(name: str, code: int, printed: bytes, complaint: bytes) -> CommandOutput:
    if code != 0:
        said = complaint.decode(errors="replace").strip().partition("\n")[0][:120]
        return CommandOutput(None, f"{name} ended with exit code {code}" + (f": {said}" if said else ""))
    try:
        return CommandOutput(printed.decode())
    except UnicodeDecodeError as error:
        return CommandOutput(None, f"{name} printed no UTF-8 text: byte {error.start}")
