"""Checks of trainings that go wrong: a refused job, a killed rank, a loss that is not finite, and planted faults.

A planted fault is a job that differs from the definition in one value. The comparison of curves must detect it.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from levelfield.specs.implementation import RECOMPUTE_FIRST_LAYERS
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject, torch_curve, torch_curve_of_job
from levelfield.testing.framework_kit.layout_checks import is_within_sharp_limits, offered_runs
from levelfield.testing.framework_kit.small_jobs import (
    LONG_STEPS,
    MODELS,
    SINGLE,
    STANDARD_VARIANTS,
    enlarge_weights,
    has_parts,
    refusal_reason,
    small_job,
)
from levelfield.testing.framework_kit.small_runs import read_events, run_small
from levelfield.testing.framework_kit.training_curves import Curve, compare, first_steps

ALONE_SECONDS = 60.0  # how long rank 0 may take to refuse a job that no other rank joins
KILLED_AFTER_STEPS = 2
# By kind of parallelism, the variant that needs little else.
SIMPLEST_VARIANTS = {
    "data": "DP2", "tensor": "TP2", "pipeline": "PP2", "sequence": "TP2 sequence parallel", "context": "CP2",
    "zero1": "ZeRO 1, DP2", "zero2": "ZeRO 2, DP2", "zero3": "ZeRO 3, DP2", "interleaved": "PP2 interleaved",
}  # fmt: skip
STEPS = 10
Job = dict[str, Any]


def check_refusals(subject: FrameworkSubject) -> str:
    """Check that jobs which the manifest does not offer are refused, by a rank that no other rank joins."""
    jobs = list(_refused_jobs(subject))
    if not jobs:
        raise NotApplicable("the manifest offers everything that the check tries")
    for what, job in jobs:
        with subject.scratch_folder() as folder:
            run = run_small(
                subject.program, subject.job_on_device(job), folder, only_ranks=[0], limit_seconds=ALONE_SECONDS
            )
        (rank,) = run.ranks
        if run.was_stopped:
            raise Fails(f"{what} is not offered, and rank 0 waited {ALONE_SECONDS:g} s", "check(job) before ranks join")
        if rank.error is None or rank.error["class"] != "unsupported":
            end = (
                f"error {rank.error['class']}: {rank.error['message']}" if rank.error else f"exit code {rank.exit_code}"
            )
            hint = "raise Unsupported in check(job), as in levelfield.worker's `check_...`; or offer it in the manifest"
            raise Fails(f"{what} is not offered, and the training ended with {end}", hint)
    return f"unsupported, before ranks join: {'; '.join(what for what, _ in jobs)}"


def _refused_jobs(subject: FrameworkSubject) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return a job for each precision, kind of recomputation and kind of parallelism that is not offered."""
    manifest, kind = subject.manifest, subject.kind
    model = next(iter(subject.models.values()))
    for precision in ("fp32", "bf16", "fp16"):
        if precision not in manifest.offered_precisions(kind):
            yield precision, small_job(model, SINGLE, precision=precision)
    for recompute in ("none", "selective", "full"):
        if recompute in manifest.recompute:
            continue
        variant = replace(SINGLE, name=f"recompute {recompute}", recompute=recompute)
        yield variant.name, small_job(model, variant)
    if "full" in manifest.recompute and RECOMPUTE_FIRST_LAYERS in manifest.refusals(kind):
        variant = replace(
            SINGLE, name="recompute full of 1 layer (tuning.recompute_layers)", recompute="full", recompute_layers=1
        )
        yield variant.name, small_job(model, variant)
    missing_model = next((name for name, candidate in MODELS.items() if not has_parts(manifest, candidate)), None)
    if missing_model:
        yield f"the model {missing_model}", small_job(MODELS[missing_model], SINGLE)
    offered = set(manifest.offered_parallelism(kind))
    variants = {variant.name: variant for variant in STANDARD_VARIANTS}
    for parallelism, name in SIMPLEST_VARIANTS.items():
        variant = variants[name]
        job = small_job(model, variant)
        if parallelism not in offered and refusal_reason(manifest, kind, job):
            yield variant.name, job


def check_killed_rank(subject: FrameworkSubject) -> str:
    """Kill the last rank in a step of a training. Check the events and processes that all ranks leave."""
    variant = next((offer.variant for offer in offered_runs(subject) if offer.variant.ranks > 1), SINGLE)
    job = small_job(next(iter(subject.models.values())), variant, 100 * LONG_STEPS)
    with subject.scratch_folder() as folder:
        victim, start = variant.ranks - 1, time.monotonic()

        def kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
            done = [event for event in read_events(folder / f"rank{victim}.jsonl") if event["event"] == "step"]
            if processes[victim].poll() is None and len(done) >= KILLED_AFTER_STEPS:
                os.kill(processes[victim].pid, signal.SIGKILL)

        run = run_small(subject.program, subject.job_on_device(job), folder, watch=kill)
    last = run.ranks[victim]
    if last.exit_code != -signal.SIGKILL:
        raise Fails(f"rank {victim} was killed in a step and ended with {last.exit_code}", "see its log")
    steps = [event["step"] for event in last.events_named("step")]
    if not steps or steps != list(range(1, len(steps) + 1)) or last.events_named("end"):
        raise Fails(f"the killed rank recorded steps {steps[:3]}...{steps[-1:]}", "record each step by train_steps")
    if finished := [number for number, rank in enumerate(run.ranks) if rank.events_named("end") or rank.exit_code == 0]:
        raise Fails(f"rank {finished[0]} finished although rank {victim} was killed", "exchange in every step")
    if run.outlived_ranks:
        raise Fails(f"{run.outlived_ranks} process(es) outlived their rank", "end what a rank starts, also by a signal")
    others = (
        "they waited and were ended"
        if run.was_stopped
        else f"they ended by themselves in {run.seconds_between_ends:.0f} s"
    )
    subject.report_progress(f"killed: {time.monotonic() - start:.0f} s")
    return f"{variant.name}: every finished step is there{f'; the others: {others}' if victim else ''}"


def check_nan_loss(subject: FrameworkSubject) -> str:
    """Check that a loss which is not finite ends the training with its own class of error."""
    job = small_job(next(iter(subject.models.values())), SINGLE, 5)
    schedule = {**job["training"]["schedule"], "peak_lr": 1e30, "min_lr": 1e29, "warmup_steps": 1}
    job["training"]["schedule"] = schedule
    with subject.scratch_folder() as folder:
        run = run_small(subject.program, subject.job_on_device(job), folder)
    (rank,) = run.ranks
    if rank.exit_code == 0 or rank.error is None or rank.error["class"] != "non-finite":
        ended = rank.error["class"] if rank.error else f"exit code {rank.exit_code}"
        raise Fails(f"weights became infinite, and the training ended with {ended}", "report the loss as it is")
    return f"a loss that is not finite ends the run at step {len(rank.events_named('step'))}"


@dataclass(frozen=True)
class PlantedFault:
    """A change of one value of a job. key: its path, such as `training.seed`."""

    name: str
    key: str
    change: Callable[[Any], Any]

    def applied(self, job: Job) -> Job | None:
        """Return a changed copy; None for a job without this value."""
        changed = inner = copy.deepcopy(job)
        *path, last = self.key.split(".")
        for part in path:
            inner = inner[part]
        if inner[last] is None:
            return None
        inner[last] = self.change(inner[last])
        return changed


# A framework whose curve does not change by a fault does not read that field of the job: it has a value of its own.
PLANTED_FAULTS = (
    PlantedFault("rate 1 % higher", "training.schedule.peak_lr", lambda value: value * 1.01),
    PlantedFault("warm-up a step longer", "training.schedule.warmup_steps", lambda value: value + 1),
    PlantedFault("another beta1", "training.optimizer.beta1", lambda value: value - 0.05),
    PlantedFault("another beta2", "training.optimizer.beta2", lambda value: value + 0.04),
    PlantedFault("Adam's epsilon 1e-5", "training.optimizer.eps", lambda value: 1e-5),
    PlantedFault("no weight decay", "training.optimizer.weight_decay", lambda value: 0.0),
    PlantedFault("clipped at half", "training.gradient_clip", lambda value: value / 2),
    PlantedFault("other initial weights", "training.seed", lambda value: value + 1),
    PlantedFault("another order of data", "data.seed", lambda value: value + 1),
    PlantedFault("weights 1 % larger", "model.init_std", lambda value: value * 1.01),
    PlantedFault("the norms' epsilon 1e-3", "model.norm_eps", lambda value: 1e-3),
    PlantedFault("rotary base 1 % higher", "model.rope_base", lambda value: value * 1.01),
)


def check_planted_faults(subject: FrameworkSubject) -> str:
    """Check that the comparison sees every planted fault that applies, in each small model."""
    seen_count = 0
    for family, model in subject.models.items():
        correct_job = small_job(model, SINGLE, STEPS)
        reference = first_steps(torch_curve(subject, family).curve, STEPS)
        for planted in PLANTED_FAULTS:
            if job := planted.applied(correct_job):
                _check_detected(subject, f"{family}: {planted.name}", reference, job)
                seen_count += 1
                subject.report_progress(f"planted {family}: {planted.name}: seen")
    # the other form of GELU, with large weights
    if {"gelu", "gelu_tanh"} <= set(subject.manifest.architecture) and "gpt" in subject.models:
        model = enlarge_weights(subject.models["gpt"])
        reference = torch_curve_of_job(subject, small_job(model, SINGLE, STEPS)).curve
        curve = subject.train(small_job({**model, "activation": "gelu"}, SINGLE, STEPS))
        if is_within_sharp_limits(compare(curve, reference)):
            raise Fails("gpt: the other form of GELU: the training does not change", "`gelu` is the erf form")
        seen_count += 1
    # another order of data on the last of two data ranks: the sum of the tokens' checksums must show it
    if run := next((run for run in offered_runs(subject) if run.variant.layout.get("data", 1) == 2), None):
        job = small_job(subject.models[run.family], run.variant, STEPS)
        other = copy.deepcopy(job)
        other["data"]["seed"] += 1
        reference = first_steps(torch_curve(subject, run.family).curve, STEPS)
        is_missed = False
        with suppress(Fails):  # a training that does not end is seen as well
            is_missed = compare(
                subject.train(job, rank_jobs={run.variant.ranks - 1: other}), reference
            ).is_within_limits()
        if is_missed:
            what = f"{run}: the last rank trains other data, and nothing shows it"
            raise Fails(what, "count tokens on each data rank")
        seen_count += 1
    return f"{seen_count} planted faults are seen"


def _check_detected(subject: FrameworkSubject, what: str, reference: Curve, job: Job) -> None:
    try:
        difference = compare(subject.train(job), reference)
    except Fails:
        return  # a training that does not end is seen as well
    if difference.is_within_limits():
        raise Fails(f"{what}: the training does not change", "read this value from the job, and have none of your own")
