"""Checks of trainings that do not go well: refusals, a killed rank, a loss that is not finite."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.framework_kit.layout_checks import offered_runs
from levelfield.testing.framework_kit.small_jobs import LONG_STEPS, SINGLE, Variant
from levelfield.testing.framework_kit.small_models import MODELS
from levelfield.testing.framework_kit.small_runs import read_events, run_small
from levelfield.testing.framework_kit.variants import TRIED, has_parts, refusal, small_job

ALONE_SECONDS = 60.0  # for a rank that refuses, and none joins it
KILLED_AFTER = 2


def refusals(subject: FrameworkSubject) -> str:
    """Check that jobs which the manifest does not offer are refused, by a rank that no other rank joins."""
    found = list(_refused_jobs(subject))
    if not found:
        raise NotApplicable("the manifest offers everything that the check tries")
    for what, job in found:
        _check_refused(subject, what, job)
    return f"unsupported, before ranks join: {'; '.join(what for what, _ in found)}"


def _refused_jobs(subject: FrameworkSubject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a job for each precision, kind of recomputation and kind of parallelism that is not offered."""
    manifest, kind = subject.manifest, subject.kind
    model = next(iter(subject.models.values()))
    for precision in ("fp32", "bf16", "fp16"):
        if precision not in manifest.offered_precisions(kind):
            yield precision, small_job(model, SINGLE, precision)
    for recompute in ("none", "selective", "full"):
        if recompute not in manifest.recompute:
            yield f"recompute {recompute}", small_job(model, replace(SINGLE, recompute=recompute), "fp32")
    lacking = next((name for name, each in MODELS.items() if not has_parts(manifest, each)), None)
    if lacking:
        yield f"the model {lacking}", small_job(MODELS[lacking], SINGLE, "fp32")
    offered = set(manifest.offered_parallelism(kind))
    for parallelism, variant in _one_kind_each().items():
        job = small_job(model, variant, "fp32")
        if parallelism not in offered and refusal(manifest, kind, job):
            yield variant.name, job


def _one_kind_each() -> dict[str, Variant]:
    """Return the layout that needs little more than this kind of parallelism."""
    names = {"data": "DP2", "tensor": "TP2", "pipeline": "PP2", "sequence": "TP2 sequence parallel", "context": "CP2"}
    names |= {"zero1": "ZeRO 1, DP2", "zero2": "ZeRO 2, DP2", "zero3": "ZeRO 3, DP2", "interleaved": "PP2 interleaved"}
    by_name = {variant.name: variant for variant in TRIED}
    return {parallelism: by_name[name] for parallelism, name in names.items()}


def _check_refused(subject: FrameworkSubject, what: str, job: dict[str, Any]) -> None:
    with subject.scratch() as folder:
        run = run_small(subject.program, subject.on_device(job), folder, only=[0], limit=ALONE_SECONDS)
    (rank,) = run.ranks
    if run.stopped:
        raise Fails(f"{what} is not offered, and rank 0 waited {ALONE_SECONDS:g} s", "check(job) before ranks join")
    if rank.error is None or rank.error["class"] != "unsupported":
        ended = f"error {rank.error['class']}: {rank.error['message']}" if rank.error else f"exit code {rank.code}"
        raise Fails(f"{what} is not offered, and the training ended with {ended}", "raise Unsupported in check(job)")


def killed(subject: FrameworkSubject) -> str:
    """Kill the last rank in the midst of a training. Check what all ranks leave."""
    variant = next((each.variant for each in offered_runs(subject) if each.variant.ranks > 1), SINGLE)
    job = small_job(next(iter(subject.models.values())), variant, "fp32", steps=100 * LONG_STEPS)
    with subject.scratch() as folder:
        victim, start = variant.ranks - 1, time.monotonic()
        run = subject.run(job, folder, watch=_kill(folder / f"rank{victim}.jsonl", victim))
    last = run.ranks[victim]
    if last.code != -signal.SIGKILL:
        raise Fails(f"rank {victim} was killed in a step and ended with {last.code}", "see its log")
    steps = [event["step"] for event in last.of("step")]
    if not steps or steps != list(range(1, len(steps) + 1)) or last.of("end"):
        raise Fails(f"the killed rank recorded steps {steps[:3]}...{steps[-1:]}", "record each step by train_steps")
    if finished := [number for number, rank in enumerate(run.ranks) if rank.of("end") or rank.code == 0]:
        raise Fails(f"rank {finished[0]} finished although rank {victim} was killed", "exchange in every step")
    if run.left:
        raise Fails(f"{run.left} process(es) outlived their rank", "end what a rank starts, also by a signal")
    others = "they waited and were ended" if run.stopped else f"they ended by themselves in {run.seconds:.0f} s"
    subject.say(f"killed: {time.monotonic() - start:.0f} s")
    return f"{variant.name}: every finished step is there{f'; the others: {others}' if victim else ''}"


def _kill(path: Path, victim: int) -> Any:
    """Return a watch that kills a rank once it has finished some steps."""

    def watch(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        process = processes[victim]
        done = [event for event in read_events(path) if event["event"] == "step"]
        if process.poll() is None and len(done) >= KILLED_AFTER:
            os.kill(process.pid, signal.SIGKILL)

    return watch


def nan(subject: FrameworkSubject) -> str:
    """Check that a loss which is not finite ends the training with its own class of error."""
    job = small_job(next(iter(subject.models.values())), SINGLE, "fp32", steps=5)
    schedule = {**job["training"]["schedule"], "peak_lr": 1e30, "min_lr": 1e29, "warmup_steps": 1}
    job["training"]["schedule"] = schedule
    with subject.scratch() as folder:
        run = subject.run(job, folder)
    (rank,) = run.ranks
    if rank.code == 0 or rank.error is None or rank.error["class"] != "non-finite":
        ended = rank.error["class"] if rank.error else f"exit code {rank.code}"
        raise Fails(f"weights became infinite, and the training ended with {ended}", "report the loss as it is")
    return f"a loss that is not finite ends the run at step {len(rank.of('step'))}"
