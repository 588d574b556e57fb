"""The part of a preflight that needs no framework: the node's checks, once for each node, before anything else.

As a module (`python -m levelfield.worker.preflight [--short]`) it is the whole rank of a preflight, for frameworks
whose implementation measures no collectives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .events import Recorder
from .job import Job
from .process import run

CHECKS = Path(__file__).resolve().parents[1] / "node" / "preflight_checks.py"
LIMIT_SECONDS = 60.0
POLL_SECONDS = 0.1


def main(job: Job, recorder: Recorder) -> None:
    check_node(job, recorder, "--short" in sys.argv[1:])


def check_node(job: Job, recorder: Recorder, short: bool) -> None:
    """Record what the node's checks gave, on its first rank. The others wait: they would disturb what is measured."""
    node = int(os.environ.get("NODE_RANK", "0"))
    done = Path(job.events_dir) / f"node{node}.checked"
    if job.local_rank:
        _wait_for(done)
        return
    recorder.measured("begun", {"node": node})
    recorder.measured("node", {"node": node, **_checked(Path(job.events_dir).parent, short)})
    done.touch()


def _wait_for(done: Path) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _checked(folder: Path, short: bool) -> dict[str, Any]:
    """Return the object that the checks print, or the reason why there is none."""
    argv = [sys.executable, str(CHECKS), "--folder", str(folder), "--own", str(os.getppid())]
    try:
        done = subprocess.run(
            argv + (["--short"] if short else []),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        report = json.loads(done.stdout.decode())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"reason": f"the node's checks failed: {' '.join(str(error).split())[:200]}"}
    return report if isinstance(report, dict) else {"reason": "the node's checks printed no object"}


if __name__ == "__main__":
    run(main)
