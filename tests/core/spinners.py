"""Programs that use a whole core, and end with the process of the tests however that ends: they watch a pipe of its."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# A pipe whose writers are gone can be read: then it ends. In quotes for a shell.
WATCH = "import select\nwhile not select.select([0], [], [], 0)[0]: sum(range(10000))"
SPIN = f'"{sys.executable}" -S -c "{WATCH}"'


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A shell whose child spins: a grandchild of this process."""
    with subprocess.Popen(["/bin/sh", "-c", f"{SPIN}; :"], stdin=subprocess.PIPE) as shell:
        yield shell
        assert shell.stdin is not None
        shell.stdin.close()


@contextmanager
def stranger() -> Iterator[int]:
    """A program that spins and is no descendant of this process, as its parent has ended: its process id."""
    reads, writes = os.pipe()
    command = ["/bin/sh", "-c", f"exec 3<&0; {SPIN} <&3 >&2 & echo $!"]  # what & starts would read /dev/null
    started = subprocess.run(command, check=True, start_new_session=True, stdin=reads, stdout=subprocess.PIPE)
    os.close(reads)
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        os.close(writes)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
