#!/usr/bin/env python3
"""What the platform itself costs with many nodes, whose files are really written and read. Nothing is trained.

Quoted: processor seconds and megabytes of a dry run for Slurm, and megabytes and number of the files that it sends;
processor seconds of watching a whole run and of judging it; how many files the watch opens and how many megabytes it
reads a second, which a file server has to answer; the gigabytes that the nodes' samplers write an hour, by arithmetic;
and the most memory that the process needed. The watch is that of Slurm's launcher, at its own intervals.

To compare two versions of the platform, run this file from both checkouts.
"""

from __future__ import annotations

import argparse
import io
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
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from levelfield.catalog.registry import Registry
from levelfield.cli import dry_run
from levelfield.contracts.execution import FIRST_NODE, NodeEnd, Outcome, ProcessEnd
from levelfield.judge.collector import collect
from levelfield.plan.request import Entry, UserRequest
from levelfield.run.launchers import liveness
from levelfield.run.launchers.launched_ranks import build_request
from levelfield.run.launchers.liveness import Liveness, NodePulse, pause_after
from levelfield.run.launchers.node_records import UnfinishedNodes
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

STEP_SECONDS, STEPS, BEGIN_NS = 10.0, 16, 7_000_000_000_000
CASE = "gpt3_6.7B:torch:cpu"
SAMPLE_BYTES = 3900  # that one sample of a node with 8 H100 leaves: what nvidia-smi prints, and what is read of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8, help="ranks of a node")
    parser.add_argument("--dry-run", action="store_true", help="measure that alone")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    nodes, devices = (4, 2) if arguments.quick else (arguments.nodes, arguments.devices)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(nodes, devices, Path(folder), arguments.dry_run)
    print(
        json.dumps(figures, indent=2) if arguments.json else "\n".join(f"{k:<32}{v:>10.2f}" for k, v in figures.items())
    )


def measure(nodes: int, devices: int, folder: Path, is_dry_run: bool) -> dict[str, float]:
    seconds: dict[str, float] = {}
    plan = timed(seconds, "plan_seconds", lambda: planned(nodes, devices))
    paths = RunPaths(folder / plan.run_id)
    figures = {"nodes": float(nodes), "ranks": float(plan.world_size)}
    for form, as_json in (("text", False), ("json", True)):
        output = io.StringIO()
        with redirect_stdout(output):
            timed(seconds, f"dry_run_{form}_seconds", partial(dry_run.show, [plan], folder, as_json))
        figures[f"dry_run_{form}_megabytes"] = len(output.getvalue().encode()) / 1e6
    (request,) = (content["request"] for content in json.loads(output.getvalue()))
    files = [text for submission in request["submissions"] for text in submission["files"].values()]
    figures |= {"sent_files": float(len(files)), "sent_megabytes": sum(len(text.encode()) for text in files) / 1e6}
    works = (json.loads(text) for text in files if text.startswith("{"))
    interval = next(work["samples"]["interval_seconds"] for work in works if "samples" in work)
    figures["sampled_gigabytes_an_hour"] = nodes * SAMPLE_BYTES * 3600 / interval / 1e9
    if not is_dry_run:
        figures |= watched_and_judged(plan, paths, seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**figures, **seconds, "total_seconds": sum(seconds.values()), "most_memory_mebibytes": peak}


def watched_and_judged(plan: Plan, paths: RunPaths, seconds: dict[str, float]) -> dict[str, float]:
    """Watch and judge a simulated run. Return what a file server would have had to answer."""
    files, server = Simulated(plan, paths), FileServer(paths.root)
    before = files.seconds
    run_seconds = timed(seconds, "watch_seconds", lambda: watched(plan, paths, files, server))
    seconds["watch_seconds"] -= files.seconds - before
    requests_a_second = {
        "opened_files_a_second": server.opened / run_seconds,
        "listed_folders_a_second": server.listed / run_seconds,
    }
    ends = tuple(ProcessEnd(rank, 0, None, False) for rank in range(plan.world_size))
    nodes = tuple(NodeEnd(n, f"node{n}", "ended") for n in range(plan.hardware.nodes))
    outcome = Outcome("exited", ends, nodes=nodes)
    timed(seconds, "seal_seconds", lambda: write_json(paths.outcome, add_seal(paths, outcome.to_dict())))
    result = timed(seconds, "collect_seconds", lambda: collect(paths))
    assert result.throughput is not None, result.status
    return requests_a_second


class FileServer:
    """Counts what this process asks of the files below a folder, while it is watched."""

    def __init__(self, folder: Path) -> None:
        self.opened, self.listed, self.is_watched, self._folder = 0, 0, False, str(folder)
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_watched and event in ("open", "os.scandir") and str(arguments[0]).startswith(self._folder):
            self.opened += event == "open" and arguments[1] is not None  # without a mode it is part of another open
            self.listed += event == "os.scandir"


def timed(seconds: dict[str, float], name: str, act: Callable[[], Any]) -> Any:
    """Run it, and keep its processor seconds under the name."""
    started = time.process_time()
    result = act()
    seconds[name] = time.process_time() - started
    return result


def planned(nodes: int, devices: int) -> Plan:
    launch = LaunchPlan(launcher="slurm", site=Site())
    derivation = Derivation(global_batch=nodes * devices, steps=STEPS)
    user_request = UserRequest(scale="smoke", repeats=1, launch=launch, derivation=derivation)
    (job,) = plan_jobs(Registry(), [Entry(f"{CASE}:{nodes}:{devices}", user_request)], None)
    return job.plan


class Simulated:
    """The files of a run whose ranks all end their steps at the same times, but for a little noise."""

    def __init__(self, plan: Plan, paths: RunPaths) -> None:
        self.seconds, self._done, self._plan, self._paths = 0.0, 0, plan, paths
        started = time.process_time()
        for folder in (paths.events, paths.nodes, paths.telemetry_folder):
            folder.mkdir(parents=True)
        paths.plan.write_text(dump(plan))
        write_json(paths.job, job_content(plan, paths))
        self._files = [paths.events / f"rank{rank}.jsonl" for rank in range(plan.world_size)]
        self._first, self._steps, self._last = lines_of(plan, paths)
        job = load_job(str(paths.job))
        self._checksums = [[batch.checksum for batch in Batches(job, rank)] for rank in range(plan.world_size)]
        self._noise = random.Random(1)
        self._write(self._first)
        self._touch("started")
        self.seconds += time.process_time() - started

    def advance(self, now: float) -> None:
        """Write the steps that have ended by now."""
        started = time.process_time()
        while self._done < min(len(self._steps), int(now / STEP_SECONDS)):
            self._write([self._steps[self._done]])
            self._touch("sampled")
            self._done += 1
            if self._done == len(self._steps):
                self._write(self._last)
        self.seconds += time.process_time() - started

    def _touch(self, event: str) -> None:
        """Append to each node's record at its start, and later to its samples: they are the signs of a node."""
        for node in range(self._plan.hardware.nodes):
            record = self._paths.nodes / f"node{node}.record.jsonl"
            path = record if event == "started" else self._paths.node_raw_telemetry(node)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time_ns": 1, "event": event, "outputs": []}) + "\n")

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


def watched(plan: Plan, paths: RunPaths, files: Simulated, server: FileServer) -> float:
    """Watch a run whose steps take STEP_SECONDS, by a clock that jumps over the launchers' pauses. Return its end."""
    request = build_request(plan, paths, "slurm", NodeRuntime(FIRST_NODE), plan.hardware.nodes)
    now, end = 0.0, STEP_SECONDS * (plan.work.training.steps + 1)
    liveness.time = SimpleNamespace(monotonic=lambda: now)  # type: ignore[assignment, attr-defined]
    follower, alive = Follower(paths.events, plan), Liveness(request)
    pulse, unfinished_nodes = NodePulse(request), UnfinishedNodes(request)
    while now < end:
        files.advance(now)
        started, server.is_watched = time.process_time(), True
        follower.read()
        alive.hang_evidence([])  # the nodes watch the heartbeats of their ranks
        pulse.silent_nodes(unfinished_nodes.read())
        server.is_watched = False
        now += pause_after(time.process_time() - started)
    return end


if __name__ == "__main__":
    main()
