#!/usr/bin/env python3
"""What the platform itself costs with many nodes: one rank a node, whose event files are really written and read.

Nothing is trained. Quoted: processor seconds to plan, to make the request, to watch a whole run and to judge it, and
the most memory that the process needed. The watching is that of the launchers, at their own intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import FIRST_NODE, NodeEnd, Outcome, ProcessEnd
from levelfield.judge.collector import collect
from levelfield.plan.request import Entry, UserRequest
from levelfield.run.launchers import runtime_and_launcher
from levelfield.run.launchers.launched_ranks import build_request
from levelfield.run.launchers.liveness import Liveness, pause_after
from levelfield.run.runtimes.process_runtime import NodeRuntime
from levelfield.run.scheduler import plan_jobs
from levelfield.rundir.directory import write_json
from levelfield.rundir.follower import Follower
from levelfield.rundir.seal import add_seal
from levelfield.specs.base import dump
from levelfield.specs.derivation import Derivation
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.site import LaunchPlan, Site
from levelfield.worker import Batches, Initializer, Recorder, coordinates, events, learning_rate, load_job

STEP_SECONDS, BEGIN_NS = 10.0, 7_000_000_000_000
CASE = "gpt3_6.7B:torch:cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(8 if arguments.quick else arguments.nodes, Path(folder))
    print(
        json.dumps(figures, indent=2) if arguments.json else "\n".join(f"{k:<32}{v:>10.2f}" for k, v in figures.items())
    )


def measure(nodes: int, folder: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    plan = timed(seconds, "plan_seconds", lambda: planned(nodes))
    paths = RunPaths(folder / plan.run_id)
    timed(seconds, "request_seconds", lambda: request(plan, paths))
    files = Simulated(plan, paths)
    timed(seconds, "watch_seconds", lambda: watched(plan, paths, files))
    ends = tuple(ProcessEnd(rank, 0, None, False) for rank in range(nodes))
    outcome = Outcome("exited", ends, nodes=tuple(NodeEnd(n, f"node{n}", "ended") for n in range(nodes)))
    timed(seconds, "seal_seconds", lambda: write_json(paths.outcome, add_seal(paths, outcome.to_dict())))
    result = timed(seconds, "collect_seconds", lambda: collect(paths))
    assert result.throughput is not None, result.status
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    total = sum(seconds.values()) - files.seconds
    seconds["watch_seconds"] -= files.seconds
    return {"nodes": float(nodes), **seconds, "total_seconds": total, "most_memory_mebibytes": peak}


def timed(seconds: dict[str, float], name: str, act: Callable[[], Any]) -> Any:
    """Run it, and keep its processor seconds under the name."""
    started = time.process_time()
    result = act()
    seconds[name] = time.process_time() - started
    return result


def planned(nodes: int) -> Plan:
    launch = LaunchPlan(launcher="slurm", site=Site())
    user_request = UserRequest(scale="smoke", repeats=1, launch=launch, derivation=Derivation(global_batch=nodes))
    (job,) = plan_jobs(Registry(), [Entry(f"{CASE}:{nodes}:1", user_request)], None)
    return job.plan


def request(plan: Plan, paths: RunPaths) -> None:
    try:
        runtime, launcher = runtime_and_launcher(plan)
    except ImportError:
        return
    json.dumps(launcher.request(plan, paths, runtime).to_dict())


class Simulated:
    """The files of a run whose ranks all end their steps at the same times, but for a little noise."""

    def __init__(self, plan: Plan, paths: RunPaths) -> None:
        self.seconds, self._done, self._plan, self._paths = 0.0, 0, plan, paths
        started = time.process_time()
        paths.events.mkdir(parents=True)
        paths.plan.write_text(dump(plan))
        write_json(paths.job, job_content(plan, paths))
        self._files = [paths.events / f"rank{rank}.jsonl" for rank in range(plan.world_size)]
        self._first, self._steps, self._last = lines_of(plan, paths)
        job = load_job(str(paths.job))
        self._checksums = [[batch.checksum for batch in Batches(job, rank)] for rank in range(plan.world_size)]
        self._noise = random.Random(1)
        self._write(self._first)
        self.seconds += time.process_time() - started

    def advance(self, now: float) -> None:
        """Write the steps that have ended by now."""
        started = time.process_time()
        while self._done < min(len(self._steps), int(now / STEP_SECONDS)):
            self._write([self._steps[self._done]])
            self._done += 1
            if self._done == len(self._steps):
                self._write(self._last)
        self.seconds += time.process_time() - started

    def _write(self, lines: list[dict[str, Any]]) -> None:
        end_ns = BEGIN_NS + int(1e9 * STEP_SECONDS * (self._done + 1))
        for rank, path in enumerate(self._files):
            text = ""
            for line in lines:
                if "end_ns" in line:
                    line = {**line, "end_ns": end_ns + self._noise.randrange(10**6)}
                if line["event"] == "step":
                    line = {**line, "tokens_checksum": self._checksums[rank][line["step"] - 1]}
                text += json.dumps({**line, "rank": rank} if "rank" in line else line, separators=(",", ":")) + "\n"
            with path.open("a", encoding="utf-8") as file:
                file.write(text)


def single(value: float) -> float:
    """Return the value as float32 holds it, as a loss of the worker."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def lines_of(plan: Plan, paths: RunPaths) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lines of one rank, as the worker's recorder writes them: before the steps, of the steps, and after."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(plan.world_size)}
    scratch = paths.root / "one"
    scratch.mkdir()
    content = json.loads(paths.job.read_text())
    write_json(scratch / "job.json", {**content, "events_dir": str(scratch)})
    job = load_job(str(scratch / "job.json"))
    events.start_heartbeat = lambda path: None  # type: ignore[attr-defined]
    recorder, initializer = Recorder(job), Initializer(job)
    recorder.framework(name="torch", version="2.13.0", device="cpu")
    recorder.weights(
        [
            (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
            for name, spec in initializer.parameters(job.model).items()
        ]
    )
    recorder.begin()
    for batch in Batches(job, coordinates(job).data):
        recorder.step(
            batch.step,
            loss=single(7 * 0.96**batch.step),
            grad_norm=1.5,
            tokens=batch.tokens,
            tokens_checksum=batch.checksum,
            learning_rate=learning_rate(job.training.schedule, batch.step),
            memory={"process_peak_bytes": 2**29},
        )
    recorder.close()
    lines = [json.loads(line) for line in (scratch / "rank0.jsonl").read_text().splitlines()]
    shutil.rmtree(scratch)
    places = [number for number, line in enumerate(lines) if line["event"] == "step"]
    return lines[: places[0]], lines[places[0] : places[-1] + 1], lines[places[-1] + 1 :]


def watched(plan: Plan, paths: RunPaths, files: Simulated) -> None:
    """Watch a run whose steps take STEP_SECONDS, by a clock that jumps over the launchers' pauses."""
    follower, liveness = (
        Follower(paths.events, plan),
        Liveness(build_request(plan, paths, "slurm", NodeRuntime(FIRST_NODE), 0)),
    )
    now, steps = 0.0, plan.work.training.steps
    while now < STEP_SECONDS * (steps + 1):
        files.advance(now)
        started = time.process_time()
        follower.read()
        liveness.hang_evidence([])  # the nodes watch the heartbeats of their ranks
        now += pause_after(time.process_time() - started)


if __name__ == "__main__":
    main()
