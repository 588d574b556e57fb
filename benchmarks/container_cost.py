#!/usr/bin/env python3
"""One training step in a container against the same without, and how soon the container starts.

Both train the same smoke case turn by turn, with the same packages. Quoted: the ratio of the medians
of the runs' median step times, process over container (1.00: a container costs nothing), and the
seconds from the command to the container's start when nothing has changed. Needs a container engine;
.ci/engine up gives one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from docker import DockerClient
from docker.errors import DockerException
from levelfield.run.runtimes.engine import RUN_LABEL

ROOT = Path(__file__).resolve().parents[1]
CASE, QUICK = "gpt3_6.7B:torch", "gpt3_6.7B+steps4+seq16+batch8:torch"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=CASE, help="default %(default)s, at smoke scale")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns, arguments.case = 1, QUICK if arguments.case == CASE else arguments.case
    try:
        client = DockerClient.from_env()
    except DockerException:
        print("skipped: no container engine answers; .ci/engine up starts one")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(client, arguments.case, arguments.turns, arguments.quick, Path(folder))
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))
    return 0


def measure(client: DockerClient, case: str, turns: int, quick: bool, runs: Path) -> dict[str, float]:
    """The first run of each makes its environment or image and is not counted."""
    for runtime in () if quick else ("process", "docker"):
        run(case, runtime, runs)
    process, container, starts = [], [], []
    for _ in range(turns):
        process += run(case, "process", runs)
        with Starts(client) as seen:
            began = time.time()
            container += run(case, "docker", runs)
        starts.append(seen.first() - began)
    return {
        "process_ms": statistics.median(process),
        "container_ms": statistics.median(container),
        "ratio": statistics.median(process) / statistics.median(container),
        "start_seconds": statistics.median(starts),
    }


def run(case: str, runtime: str, runs: Path) -> list[float]:
    """Step times of the window in milliseconds, from the result of a real run."""
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), "--case", case, "--scale", "smoke", "--no-store", "--json"]
    argv += ["--runtime", runtime, "--runs", str(runs)]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1"})
    if done.returncode not in (0, 4):
        raise SystemExit(done.stderr)
    (result,) = json.loads(done.stdout)
    return [result["throughput"]["step_seconds"]["median"] * 1e3]


class Starts:
    """When the engine started containers of ours, while the block lasts: its own words, in seconds since 1970."""

    def __init__(self, client: DockerClient) -> None:
        self._events = client.events(decode=True, filters={"event": "start", "label": RUN_LABEL})
        self._times: list[float] = []

    def __enter__(self) -> Starts:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._events.close()

    def first(self) -> float:
        return self._times[0]

    def _listen(self) -> None:
        for event in self._events:
            self._times.append(event["timeNano"] / 1e9)


def text(figures: dict[str, float]) -> str:
    return (
        f"step time without / in a container: {figures['ratio']:.3f} "
        f"({figures['process_ms']:.1f} ms / {figures['container_ms']:.1f} ms)\n"
        f"command to container's start, nothing changed: {figures['start_seconds']:.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
