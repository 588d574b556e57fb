"""A node's part under Open MPI's mpirun, of which only the output is used: its standard input loses data.

    python3 mpi_part.py keep         writes the work on standard input to nodes/node<k>.json below its root
    python3 mpi_part.py run FILE     starts node_agent.py with that work, and sends what it prints

Signals that mpirun forwards take the place of standard input. The first SIGUSR2 starts the node's part, each further
one is a sign of the platform, and SIGUSR1 ends the node's part in order. The end of this process ends it, too: its
standard input ends then.

Each line of output begins with the node's rank: `0 ready`, `0 frame {...}`, `0 said "..."` and `0 ended CODE`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Mapping

START_SECONDS = 60.0  # mpirun must have started all nodes then
LOOK_SECONDS = 0.05
_OF_MPI = ("OMPI_", "OPAL_", "PMIX_", "PRTE_", "DYLD_LIBRARY_PATH")


def main(arguments: list[str]) -> int:
    """Do what the first argument says. Return the exit code: 0 also after a rank failed, which a line says.

    With another one mpirun ends all other nodes at once, before their last words.
    """
    if arguments == ["keep"]:
        return _keep()
    work = Path(arguments[1])
    return _Part(work.read_bytes()).run()


def _keep() -> int:
    line = sys.stdin.buffer.readline()
    content = json.loads(line)
    file = Path(content["root"]) / "nodes" / f"node{int(content['node_rank'])}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(line)
    except OSError as error:
        print(f"levelfield: {file}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    return 0


class _Part:
    """The node's part as a process with pipes. It has a session of its own: mpirun's SIGKILL does not reach it."""

    def __init__(self, work: bytes) -> None:
        self._work, self._rank = work, int(json.loads(work)["node_rank"])
        self._input: IO[bytes] | None = None  # of the node's part
        self._is_started = self._is_ended = False
        self._writing = threading.Lock()

    def run(self) -> int:
        signal.signal(signal.SIGUSR2, lambda number, frame: self._sign())
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda n, frame: self._end())
        self._print(b"ready")
        deadline = time.monotonic() + START_SECONDS
        while not self._is_started and not self._is_ended and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if self._is_started and not self._is_ended:
            self._print(b"ended %d" % self._attended())
        return 0

    def _sign(self) -> None:
        self._is_started = True
        if self._input is not None and not self._is_ended:
            with suppress(OSError, ValueError):  # it has ended, or it does not read
                self._input.write(b"\n")

    def _end(self) -> None:
        self._is_ended = True
        if self._input is not None:
            self._input.close()

    def _attended(self) -> int:
        """Start the node's part, send what it prints until it ends, and return its exit code."""
        agent = str(Path(__file__).resolve().parent / "node_agent.py")
        os.chdir(Path.home())
        process = subprocess.Popen(
            [sys.executable, agent, "run", "-", "--stream"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_of(os.environ),
            start_new_session=True,
            bufsize=0,
        )
        assert process.stdin and process.stdout and process.stderr
        _write_all(process.stdin.fileno(), self._work)
        os.set_blocking(process.stdin.fileno(), False)
        self._input = process.stdin
        if self._is_ended:  # the signal came before there was a pipe to close
            process.stdin.close()
        errors = threading.Thread(target=self._say, args=(process.stderr,), daemon=True)
        errors.start()
        for line in _lines(process.stdout):
            self._print(b"frame " + line)
        code = process.wait()
        errors.join(1.0)
        return code

    def _say(self, errors: Any) -> None:
        for line in _lines(errors):
            self._print(b"said " + json.dumps(line.decode(errors="replace")).encode("ascii"))

    def _print(self, line: bytes) -> None:
        """Write one line. Where nobody takes it, this process ends, and so does the node's part."""
        with self._writing:
            try:
                _write_all(sys.stdout.fileno(), b"%d %s\n" % (self._rank, line))
            except OSError:
                os._exit(1)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables as ssh alone gives them: without those of Open MPI, and its folders of libraries."""
    kept = {name: value for name, value in variables.items() if not name.startswith(_OF_MPI)}
    kept["PWD"] = str(Path.home())
    libraries = variables.get("OMPI_LIBDIR_LOC", "")
    paths = [each for each in kept.pop("LD_LIBRARY_PATH", "").split(":") if each and each != libraries]
    return {**kept, "LD_LIBRARY_PATH": ":".join(paths)} if paths else kept


def _write_all(output: int, content: bytes) -> None:
    while content:
        content = content[os.write(output, content) :]


def _lines(stream: Any) -> Any:
    """Yield the lines of an unbuffered stream as they come."""
    rest = b""
    while part := os.read(stream.fileno(), 65536):
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    if rest:
        yield rest


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    os._exit(exit_code)  # without Python's own end, in which a signal of the platform would end it badly
