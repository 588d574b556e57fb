"""Runs a vendor's tool. It may be missing, slow or failing, or print another encoding; `ask` never raises.

A command has a time limit and a limit on its output. The wait for a killed one is bounded too: what hangs in a driver
or on a file server does not end by SIGKILL. `end_tools` ends the tools that a thread still runs.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

LEAVE_SECONDS = 1.0  # the time for a killed tool to end; a tool that hangs in its driver never ends
MOST_BYTES = 4 * 2**20  # of each stream; the longest real output, JSON of 64 devices, is a tenth of it
MOST_COMPLAINT = 4096  # characters
_PART_BYTES = 65536


class CommandOutput(NamedTuple):
    """The output of a tool; None when there is no readable output, and `reason` gives the cause.

    absent: this machine does not have the tool. Every other cause is a fault of a tool that is here.
    complaint: what a tool that ended well printed as errors; its beginning.
    """

    text: str | None
    reason: str = ""
    absent: bool = False
    complaint: str = ""


Ask = Callable[[Sequence[str], float], CommandOutput]
_running: dict[subprocess.Popen[bytes], int] = {}  # each running tool, and the thread that waits for it
_guard = threading.Lock()
_this = threading.local()


class _TooMuch(subprocess.SubprocessError):
    """The tool printed more than MOST_BYTES."""


def ask(argv: Sequence[str], timeout_seconds: float) -> CommandOutput:
    """Run a tool from PATH in the C locale and return its output. After `timeout_seconds` the tool is killed."""
    name = argv[0]
    # some tools read LANG or LANGUAGE, and not LC_ALL before them
    variables = {key: value for key, value in os.environ.items() if key != "LANGUAGE" and not key.startswith("LC_")}
    try:
        code, printed, complaint = _ended(argv, timeout_seconds, {**variables, "LANG": "C", "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return CommandOutput(None, f"{name} did not answer within {timeout_seconds:g} s")
    except _TooMuch:
        return CommandOutput(None, f"{name} printed more than {MOST_BYTES} bytes")
    except (OSError, ValueError) as error:
        reason = f"{name} cannot be started: {getattr(error, 'strerror', None) or error}"
        # folders of PATH that this user may not read do not count
        folders = [""] if os.sep in name else os.get_exec_path()
        is_here = any(os.access(Path(folder) / name, os.F_OK) for folder in folders)
        return CommandOutput(None, reason, absent=not is_here)
    if code != 0:
        message = (complaint.strip() or printed.strip()).decode(errors="replace").partition("\n")[0][:120]
        return CommandOutput(None, f"{name} ended with exit code {code}" + (f": {message}" if message else ""))
    try:
        return CommandOutput(printed.decode(), complaint=complaint.decode(errors="replace")[:MOST_COMPLAINT])
    except UnicodeDecodeError as error:
        return CommandOutput(None, f"{name} printed {no_text(error)}")


def no_text(error: UnicodeDecodeError) -> str:
    """Return why an output is no text, with the encoding that it may have."""
    try:
        error.object.decode("gb2312")
    except UnicodeDecodeError:
        return f"no UTF-8 text: byte {error.start}"
    return f"no UTF-8 text: byte {error.start}; perhaps GBK: let the tool print English, or UTF-8"


def completed(
    argv: Sequence[str], timeout_seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended, with its output. Raises OSError, and SubprocessError when it takes too long.

    In contrast to subprocess.run it also returns when SIGKILL does not end the command.
    """
    code, *streams = _ended(argv, timeout_seconds, environment)
    printed, complaint = (stream.decode(errors="replace") for stream in streams)
    return subprocess.CompletedProcess(argv, code, printed, complaint)


def _ended(argv: Sequence[str], seconds: float, environment: dict[str, str] | None) -> tuple[int, bytes, bytes]:
    """Return the exit code of a command and both streams. Raises OSError, ValueError, TimeoutExpired and _TooMuch.

    The command and all processes that it started are ended in any case.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + seconds
    content = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream}
    with _guard:
        _running[process] = getattr(_this, "asks_for", threading.get_ident())
    try:
        with selectors.DefaultSelector() as open_streams:
            for stream in content:
                open_streams.register(stream, selectors.EVENT_READ)
            while open_streams.get_map():
                if (left := deadline - time.monotonic()) <= 0:
                    raise subprocess.TimeoutExpired(argv, 0)
                for key, _ in open_streams.select(left):
                    part = os.read(key.fd, _PART_BYTES)
                    if not part:
                        open_streams.unregister(key.fileobj)
                    content[key.fileobj] += part  # type: ignore[index]
                    if len(content[key.fileobj]) > MOST_BYTES:  # type: ignore[index]
                        raise _TooMuch(f"more than {MOST_BYTES} bytes")
        process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        with _guard:
            del _running[process]
        if process.returncode is None:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_SECONDS)
        for stream in content:
            stream.close()
    printed, complaint = content.values()
    return process.returncode, bytes(printed), bytes(complaint)


def ask_for(thread: int) -> None:
    """Let the tools that this thread runs from now on count as those of another one, which waits for it."""
    _this.asks_for = thread


@atexit.register  # ends what a daemon thread still runs when the platform ends
def end_tools(thread: int | None = None) -> None:
    """End every tool that `ask` runs in this thread (its identifier), or in any without one.

    `ask` then returns there, with a reason.
    """
    with _guard:
        for process, owner in _running.items():
            if thread in (None, owner):
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool and all processes that it started: they share a session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
