"""A run directory that was never trained: the platform's own inputs and the worker's own events, by a made-up clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Outcome, ProcessEnd
from levelfield.plan.peak import MeasuredPeaks
from levelfield.rundir.directory import write_json
from levelfield.rundir.seal import add_seal
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.worker import Batches, Initializer, Recorder, coordinates, learning_rate, load_job
from levelfield.worker.architecture import is_mixture
from levelfield.worker.job import Job
from plans import PLUGINS, make_plan

STEP_NS = 500_000_000
SECOND_NS = 1_000_000_000
BEGIN_NS = 7_000_000_000_000
WATTS = 100.0
USED_BYTES = 3 * 2**30
MEASURED = MeasuredPeaks({"fp32": 2.0}, "a probe of the tests")
Event = dict[str, Any]


def record_run(paths: RunPaths, plugins: Path = PLUGINS, case: str = "tiny") -> None:
    """Two data-parallel ranks on two fake dies, whose fp32 peak was measured. plugins: a further folder with `case`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_DEVICES", "2")
        plan = make_plan(Registry(sorted({PLUGINS, plugins})), f"{case}:fake:F1:1:2", scale="smoke", measured=MEASURED)
        write_run(paths, plan.model_copy(update={"run_id": paths.root.name}))


def write_run(paths: RunPaths, plan: Plan, step_ns: int = STEP_NS, loss_factor: float = 1.0) -> None:
    """Write the raw files of a run of the plan, sealed, with steps that last as long by a made-up clock."""
    paths.events.mkdir(parents=True)
    paths.logs.mkdir()
    paths.plan.write_text(dump(plan))
    write_json(paths.job, job_content(plan, paths))
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(plan.world_size):
            _record_rank(paths, plan, rank, patch, step_ns, loss_factor)
    _write_telemetry(paths, plan, step_ns)
    ends = tuple(ProcessEnd(rank, 0, None, False) for rank in range(plan.world_size))
    write_json(paths.outcome, Outcome("exited", ends).to_dict())
    seal_again(paths)


def seal_again(paths: RunPaths) -> None:
    """Seal the run as it is now, so that a change by a test is what the run itself left."""
    outcome = json.loads(paths.outcome.read_text())
    write_json(paths.outcome, add_seal(paths, {key: value for key, value in outcome.items() if key != "seal"}))


def rename(paths: RunPaths, **changes: Any) -> None:
    """Give a copied run the id of its folder, as its own training would have it, and changes of its plan."""
    for path, more in ((paths.plan, changes), (paths.job, {})):
        write_json(path, {**json.loads(path.read_text()), "run_id": paths.root.name, **more})
    seal_again(paths)


def _record_rank(
    paths: RunPaths, plan: Plan, rank: int, patch: pytest.MonkeyPatch, step_ns: int, loss_factor: float
) -> None:
    clock = SimpleNamespace(now=BEGIN_NS + rank)
    patch.setattr("levelfield.worker.events.time", SimpleNamespace(monotonic_ns=lambda: clock.now))
    patch.setattr("levelfield.worker.events.start_heartbeat", lambda path: Path(path).touch())
    patch.setenv("RANK", str(rank))
    patch.setenv("WORLD_SIZE", str(plan.world_size))
    job = load_job(str(paths.job))
    recorder, initializer = Recorder(job), Initializer(job)
    recorder.framework(name="fake", version="1.2.3", device="cpu")
    weights = [
        (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
        for name, spec in initializer.parameters(job.model).items()
    ]
    recorder.weights(weights)
    recorder.begin()
    for batch in Batches(job, coordinates(job).data):
        clock.now += step_ns
        mixture = job.model.experts is not None
        if mixture:
            recorder.experts(batch.step, _chosen_by(job, batch.inputs))
        recorder.step(
            batch.step,
            loss=4.0 * 0.9**batch.step * loss_factor,
            grad_norm=1.0,
            tokens=batch.tokens,
            learning_rate=learning_rate(job.training.schedule, batch.step),
            tokens_checksum=batch.checksum,
            memory={"allocated_peak_bytes": 2**31, "reserved_peak_bytes": None, "process_peak_bytes": 2**30 + rank},
            auxiliary_loss=0.02 * 0.99**batch.step if mixture else None,
        )
    recorder.final_weights(weights)
    recorder.close()


def _chosen_by(job: Job, inputs: Any) -> list[tuple[int, list[int]]]:
    """The routing of a layer: token t takes experts t + layer, t + layer + 1, ... It depends on the tokens alone."""
    experts = job.model.experts
    assert experts is not None
    layers = [layer for layer in range(job.model.layers) if is_mixture(job.model, layer)]
    choices = [(inputs[..., None] + layer + np.arange(experts.chosen)) % experts.count for layer in layers]
    counts = [np.bincount(chosen.ravel(), minlength=experts.count).tolist() for chosen in choices]
    return list(zip(layers, counts, strict=True))


def _write_telemetry(paths: RunPaths, plan: Plan, step_ns: int) -> None:
    seconds = -(-plan.work.training.steps * step_ns // SECOND_NS) + 1
    sample: Event = {"power_watts": WATTS, "memory_used_bytes": USED_BYTES, "energy_joules": None, "reasons": {}}
    lines = [
        {"time_ns": BEGIN_NS + second * SECOND_NS, "samples": [{"index": i, **sample} for i in range(plan.world_size)]}
        for second in range(seconds)
    ]
    paths.telemetry.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(path: Path, change: Callable[[list[Event]], list[Event]]) -> None:
    """Rewrite a file of JSON lines by a function over all its objects, and seal its run again."""
    tamper(path, change)
    run = RunPaths(path.parents[1] if path.parent.name in ("events", "telemetry") else path.parent)
    if run.outcome.exists():
        seal_again(run)


def tamper(path: Path, change: Callable[[list[Event]], list[Event]]) -> None:
    """Rewrite a file of JSON lines and leave the seal as it was."""
    events = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def change_steps(run: RunPaths, change: Callable[[Event], Any], rank: int = 1) -> None:
    """Change each step event of one rank in place."""
    change_lines(run.events / f"rank{rank}.jsonl", lambda event: event["event"] == "step" and change(event))


def change_all_steps(run: RunPaths, change: Callable[[Event], Any]) -> None:
    """Change each step event of both ranks in place."""
    for rank in (0, 1):
        change_steps(run, change, rank)


def change_lines(path: Path, change: Callable[[Event], Any]) -> None:
    """Change each object of a file of JSON lines in place, and seal its run again."""

    def apply(lines: list[Event]) -> list[Event]:
        for line in lines:
            change(line)
        return lines

    edit(path, apply)


def insert_event(run: RunPaths, rank: int, event: Event) -> None:
    """Put an event of a rank behind its first three: framework, weights and begin."""
    edit(run.events / f"rank{rank}.jsonl", lambda events: [*events[:3], event, *events[3:]])


def report_framework(run: RunPaths, *ranks: int, **values: Any) -> None:
    """Change what the given ranks report of their framework; both, where none is given."""
    for rank in ranks or (0, 1):
        change_lines(
            run.events / f"rank{rank}.jsonl", lambda event: event["event"] == "framework" and event.update(values)
        )


def change_plan(run: RunPaths, **values: Any) -> Plan:
    """Change fields of the plan of a run, seal it again, and return the plan."""
    plan = load(Plan, run.plan).model_copy(update=values)
    run.plan.write_text(dump(plan))
    seal_again(run)
    return plan


def fail(
    run: RunPaths, cause: str = "rank-failed", evidence: str = "rank 1 ended with exit code 1", **end: Any
) -> None:
    """Replace the outcome: rank 0 was stopped by the platform, rank 1 ended as `end` says."""
    ends = (
        ProcessEnd(0, None, 15, True),
        ProcessEnd(**{"rank": 1, "exit_code": 1, "signal": None, "stopped_by_us": False, **end}),
    )
    write_json(run.outcome, Outcome(cause, ends, evidence).to_dict())  # type: ignore[arg-type]
    seal_again(run)


def break_off(run: RunPaths, last_step: int, error: Event | None = None) -> None:
    """Cut all ranks' events after `last_step`; rank 1 ends with `error` where one is given."""
    for rank in (0, 1):
        edit(
            run.events / f"rank{rank}.jsonl",
            lambda events: [e for e in events if e.get("step", 0) <= last_step and e["event"] != "end"],
        )
    if error:
        edit(run.events / "rank1.jsonl", lambda events: [*events, {"event": "error", **error}])
