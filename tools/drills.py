#!/usr/bin/env python3
"""Repeats the tests marked `drill` while every core has other work: ends of a run must not depend on a quiet machine.

.venvs/dev/bin/python tools/drills.py [TIMES]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = 10
BUSY_PER_CORE = 2
FOLDERS = ("tests/core/cli", "tests/core/run", "tests/e2e")
SELECTED = ("-m", "drill and not thorough")


def main(times: int) -> int:
    """Run all drills so many times, and stop at the first failure. Return 1 for a failure."""
    with load():
        for number in range(1, times + 1):
            started = time.monotonic()
            argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *SELECTED, *FOLDERS]
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
            if done.returncode:
                print(done.stdout + done.stderr)
                return 1
            (summary,) = [line for line in done.stdout.splitlines() if " passed" in line]
            busy = os.getloadavg()[0]
            print(f"{number} of {times}: {summary} ({time.monotonic() - started:.0f} s, load {busy:.1f})", flush=True)
    return 0


@contextmanager
def load() -> Iterator[None]:
    """Keep every core busy with processes that end with the block, or with this process.

    Work that others give to the machine counts.
    """
    script = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100000))"
    argv = [sys.executable, "-S", "-c", script]
    missing = BUSY_PER_CORE * len(os.sched_getaffinity(0)) - int(os.getloadavg()[0])
    busy = [subprocess.Popen(argv) for _ in range(max(0, missing))]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", nargs="?", type=int, default=TIMES, help=f"by default {TIMES}")
    sys.exit(main(parser.parse_args().times))
