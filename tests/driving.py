"""Drives run_benchmarks.py in a process of its own, as a user does, with runs and caches in a folder of the test's."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 900
# A training that only pretends, a vendor with FAKE_DEVICES devices, and the case `long`: time to break something.
PRETENDING = ("--plugins", str(ROOT / "tests/core/plugins"), "--plugins", str(ROOT / "tests/containers/plugins"))
LONG = ("--case", "long:fake:fake:1:2", *PRETENDING, "--python", sys.executable)
SHORT = ("--plugins", str(ROOT / "tests/e2e/plugins"))  # the case `short`: forty small steps of a real training
# torch by this Python, which has it as torch's environment has: e2e/test_first_run.py alone makes and runs that one.
TORCH_HERE = ("--python", sys.executable)


def copy_checkout(folder: Path) -> None:
    """Copy what git tracks or would track: the tree as it would be committed now."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


class Benchmark:
    """One runs folder; `start` gives a process, `run` waits for it."""

    def __init__(self, runs: Path, cache: Path, **variables: str) -> None:
        self.runs = runs
        self._started: list[subprocess.Popen[str]] = []
        own = {"LEVELFIELD_NO_BOOTSTRAP": "1", "XDG_CACHE_HOME": str(cache), "LEVELFIELD_LOCKS": f"{runs}.locks"}
        self.variables = {**os.environ, **own, **variables, "LEVELFIELD_RUNS": str(runs)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(ROOT / "run_benchmarks.py"), *arguments]
        process = subprocess.Popen(
            argv, env=self.variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def stop(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        return finished(process)

    def only_run(self) -> Path:
        (folder,) = [p.parent for p in self.runs.glob("*/plan.json")]
        return folder

    def result(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.only_run() / "result.json").read_text())
        return content

    def wait_for_step(self, process: subprocess.Popen[str], step: int, rank: int = 0) -> None:
        """Until the rank has finished this step; fails with what the process said when it ends before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not has_step(self.runs, step, rank):
            assert process.poll() is None and time.monotonic() < deadline, finished(process).stderr
            time.sleep(0.1)


def has_step(runs: Path, step: int, rank: int = 0) -> bool:
    return any(f'"step":{step},' in path.read_text() for path in runs.glob(f"*/events/rank{rank}.jsonl"))


def until_step(runs: Path, step: int) -> None:
    """Until the ranks 0 and 1 have finished this step."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (has_step(runs, step, 0) and has_step(runs, step, 1)):
        assert time.monotonic() < deadline, f"no step {step} in {runs}"
        time.sleep(0.1)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        raise
    assert "Traceback" not in out + err, err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def begun(benchmark: Benchmark, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """The command, once both ranks have done some steps: those that pretend do not wait for each other."""
    process = benchmark.start(*command)
    for rank in (0, 1):
        benchmark.wait_for_step(process, 5, rank)
    return process


def all_ended(runs: Path) -> bool:
    """Whether no training of this folder is left after a minute at most."""
    deadline = time.monotonic() + 60
    while trainings(runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not trainings(runs)


def steps(run: Path) -> list[tuple[float, float, str]]:
    """Loss, gradient norm and tokens of every step of rank 0, as they were written."""
    events = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    return [(e["loss"], e["grad_norm"], e["tokens_checksum"]) for e in events if e.get("event") == "step"]


@contextmanager
def alone_on_the_engine() -> Iterator[None]:
    """While no other test of this lock uses the engine: any start there removes what any killed run left."""
    with (ROOT / ".ci" / "engine").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def trainings(runs: Path) -> dict[int, psutil.Process]:
    """The training processes of the runs in this folder, by rank."""
    found = {}
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except psutil.Error:
            continue
        if variables.get("LEVELFIELD_JOB", "").startswith(str(runs)) and process.status() != psutil.STATUS_ZOMBIE:
            found[int(variables["RANK"])] = process
    return found
