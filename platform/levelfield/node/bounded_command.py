"""Runs a vendor's tool. It may be missing, slow or failing, or print another encoding; `ask` never raises.

A command has a time limit and a limit on its output. The wait for a killed command is bounded too: SIGKILL does not end
a process that hangs in a driver or on a file server. `end_tools` ends the tools that a thread still runs.
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

KILL_WAIT_SECONDS = 1.0  # the time for a killed tool to end; a tool that hangs in its driver never ends
MAX_OUTPUT_BYTES = 4 * 2**20  # of each stream; the longest real output, JSON of 64 devices, is a tenth of it
MAX_COMPLAINT_CHARACTERS = 4096
_PART_BYTES = 65536


class CommandOutput(NamedTuple):
    """The output of a tool; None when there is no readable output, and `reason` gives the cause.

    absent: this machine does not have the tool. Every other cause is a fault of a tool that is here.
    complaint: the first MAX_COMPLAINT_CHARACTERS characters that a successful tool printed on standard error.
    """

    text: str | None
    reason: str = ""
    absent: bool = False
    complaint: str = ""


Ask = Callable[[Sequence[str], float], CommandOutput]
_thread_by_tool: dict[subprocess.Popen[bytes], int] = {}  # by running tool: the thread that waits for it
_running_lock = threading.Lock()
_thread_local = threading.local()


class _TooMuchOutput(subprocess.SubprocessError):
    """The tool printed more than MAX_OUTPUT_BYTES."""


def ask(argv: Sequence[str], timeout_seconds: float) -> CommandOutput:
    """Run a tool from PATH in the C locale and return its output. After `timeout_seconds` the tool is killed."""
    name = argv[0]
    # some tools read LANG or LANGUAGE, and not LC_ALL before them
    variables = {key: value for key, value in os.environ.items() if key != "LANGUAGE" and not key.startswith("LC_")}
    try:
        code, output, error_output = _run_to_end(argv, timeout_seconds, {**variables, "LANG": "C", "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        return CommandOutput(None, f"{name} did not answer within {timeout_seconds:g} s")
    except _TooMuchOutput:
        return CommandOutput(None, f"{name} printed more than {MAX_OUTPUT_BYTES} bytes")
    except (OSError, ValueError) as error:
        reason = f"{name} cannot be started: {getattr(error, 'strerror', None) or error}"
        # folders of PATH that this user may not read do not count
        folders = [""] if os.sep in name else os.get_exec_path()
        is_here = any(os.access(Path(folder) / name, os.F_OK) for folder in folders)
        return CommandOutput(None, reason, absent=not is_here)
    if code != 0:
        message = (error_output.strip() or output.strip()).decode(errors="replace").partition("\n")[0][:120]
        return CommandOutput(None, f"{name} ended with exit code {code}" + (f": {message}" if message else ""))
    try:
        return CommandOutput(
            output.decode(), complaint=error_output.decode(errors="replace")[:MAX_COMPLAINT_CHARACTERS]
        )
    except UnicodeDecodeError as error:
        return CommandOutput(None, f"{name} printed {encoding_problem(error)}")


def encoding_problem(error: UnicodeDecodeError) -> str:
    """Return why an output is not UTF-8, with the encoding that it may have."""
    try:
        error.object.decode("gb2312")
    except UnicodeDecodeError:
        return f"no UTF-8 text: byte {error.start}"
    return f"no UTF-8 text: byte {error.start}; perhaps GBK: let the tool print English, or UTF-8"


def run_bounded(
    argv: Sequence[str], timeout_seconds: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended, with its output. Raises OSError, and SubprocessError when it takes too long.

    In contrast to subprocess.run it also returns when SIGKILL does not end the command.
    """
    code, *streams = _run_to_end(argv, timeout_seconds, environment)
    output, error_output = (stream.decode(errors="replace") for stream in streams)
    return subprocess.CompletedProcess(argv, code, output, error_output)


def _run_to_end(argv: Sequence[str], seconds: float, environment: dict[str, str] | None) -> tuple[int, bytes, bytes]:
    """Return the exit code of a command, its output and its error output.

    Raises OSError, ValueError, TimeoutExpired and _TooMuchOutput. The command and all processes that it
    started are ended in any case.
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
    output_by_stream = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream}
    with _running_lock:
        _thread_by_tool[process] = getattr(_thread_local, "tools_run_for", threading.get_ident())
    try:
        with selectors.DefaultSelector() as open_streams:
            for stream in output_by_stream:
                open_streams.register(stream, selectors.EVENT_READ)
            while open_streams.get_map():
                if (remaining_seconds := deadline - time.monotonic()) <= 0:
                    raise subprocess.TimeoutExpired(argv, seconds)
                for key, _ in open_streams.select(remaining_seconds):
                    part = os.read(key.fd, _PART_BYTES)
                    if not part:
                        open_streams.unregister(key.fileobj)
                    output_by_stream[key.fileobj] += part  # type: ignore[index]
                    if len(output_by_stream[key.fileobj]) > MAX_OUTPUT_BYTES:  # type: ignore[index]
                        raise _TooMuchOutput(f"more than {MAX_OUTPUT_BYTES} bytes")
        process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        with _running_lock:
            del _thread_by_tool[process]
        if process.returncode is None:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_WAIT_SECONDS)
        for stream in output_by_stream:
            stream.close()
    output, error_output = output_by_stream.values()
    return process.returncode, bytes(output), bytes(error_output)


def assign_tools_to(thread: int) -> None:
    """Let the tools that this thread runs from now on belong to another thread, which waits for this one."""
    _thread_local.tools_run_for = thread


@atexit.register  # ends what a daemon thread still runs when the platform ends
def end_tools(thread: int | None = None) -> None:
    """End every tool that belongs to a thread, by its identifier, or every tool without one.

    `ask` then returns there, with a reason.
    """
    with _running_lock:
        for process, waiting_thread in _thread_by_tool.items():
            if thread in (None, waiting_thread):
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool and all processes that it started: they share a session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
