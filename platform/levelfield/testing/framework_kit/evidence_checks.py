"""Checks of what a training leaves: its events, the tensors of a captured step, saved weights."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelfield.testing.findings import Fails
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.framework_kit.layout_checks import offered_runs
from levelfield.testing.framework_kit.small_jobs import SINGLE, Variant, small_job
from levelfield.testing.framework_kit.small_runs import SmallRank
from levelfield.worker.architecture import Model
from levelfield.worker.job import Schedule, parse
from levelfield.worker.parameters import list_parameters
from levelfield.worker.schedule import learning_rate

STEPS, CAPTURED_STEP = 4, 2
WHOLE_BATCH = Variant("accumulation 1", micro_batch=8)
NORM_TOLERANCE = 1e-4  # of norms and losses that float32 sums in another order
MEMORY_FIELDS = {"allocated_peak_bytes", "reserved_peak_bytes", "process_peak_bytes"}


def check_events(subject: FrameworkSubject) -> str:
    """Check each rank's events in one process, and in the first layout of several that is offered."""
    several = next((offer.variant for offer in offered_runs(subject) if offer.variant.ranks > 1), None)
    for variant in (SINGLE, *([several] if several else [])):
        job = _evidence_job(subject, variant)
        with subject.scratch_folder() as folder:
            run = subject.run_job(job, folder)
        for number, rank in enumerate(run.ranks):
            for fault in _event_faults(subject, job, rank):
                where = f"{variant.name}, rank {number}"
                raise Fails(f"{where}: {fault}", "compare with section 3 of docs/writing-a-framework.md")
    return f"complete in one process{f' and in {several.name}' if several else ''}"


def _evidence_job(subject: FrameworkSubject, variant: Variant) -> dict[str, Any]:
    job = small_job(next(iter(subject.models.values())), variant, STEPS)
    return {**job, "gradient_steps": [CAPTURED_STEP]}


def _event_faults(subject: FrameworkSubject, job: dict[str, Any], rank: SmallRank) -> Iterator[str]:
    """Return what is wrong with a rank's events, each as a sentence."""
    names = [event["event"] for event in rank.events]
    for name in ("framework", "weights", "begin", "final_weights", "end"):
        if names.count(name) != 1:
            yield f"found {names.count(name)} events `{name}`, expected one"
    if names.index("weights") > names.index("begin"):
        yield "the initial weights are reported after `begin`"
    facts = rank.events_named("framework")[0]
    if facts["name"] != subject.name or not facts["version"] or not facts["device"]:
        yield f"the framework event says {facts['name']} {facts['version']} on {facts['device']}; name all three"
    requirements = subject.manifest.requirements.get(subject.kind)
    expected = {facts["version"]}
    if requirements:  # the manifest's version, and those that its package is pinned to for other Pythons
        matches = (re.match(r"([\w.-]+)(?:\[.*\])?==([\w.+]+)", package) for package in requirements.packages)
        pins = [match.groups() for match in matches if match]
        names_pinned = {name for name, pin in pins if pin == subject.manifest.version}
        expected = {subject.manifest.version, *(pin for name, pin in pins if name in names_pinned)}
    if not {facts["version"], facts["version"].partition("+")[0]} & expected:
        pinned = " or ".join(sorted(expected))
        yield f"the framework event says version {facts['version']}, expected {pinned}, as pinned"
    steps = rank.events_named("step")
    if [event["step"] for event in steps] != list(range(1, STEPS + 1)):
        yield f"found steps {[event['step'] for event in steps]}, expected 1 to {STEPS}"
    yield from _step_faults(job, steps)
    if len(rank.events_named("gradients")) != 1:
        yield f"found {len(rank.events_named('gradients'))} events `gradients`, expected one of step {CAPTURED_STEP}"


def _step_faults(job: dict[str, Any], steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    schedule = parse(Schedule, job["training"]["schedule"], "schedule")
    for event in steps:
        expected = learning_rate(schedule, event["step"])
        if event["learning_rate"] is None or not math.isclose(event["learning_rate"], expected, rel_tol=1e-6):
            yield f"step {event['step']}: learning rate {event['learning_rate']}, expected {expected}"
        if not set(event["memory"] or {}) >= MEMORY_FIELDS or not event["memory"]["process_peak_bytes"]:
            yield f"step {event['step']}: memory {event['memory']}, expected the fields of process_memory"
        if event["tokens_checksum"] is None:
            yield f"step {event['step']}: no checksum of its tokens; give batch.checksum"
    if any(late["end_ns"] <= early["end_ns"] for early, late in itertools.pairwise(steps)):
        yield "a step ended before the one before it"


def check_capture(subject: FrameworkSubject) -> str:
    """Check the tensors of a captured step: names, shapes, the loss that follows from the logits, gradients."""
    job = _evidence_job(subject, WHOLE_BATCH)
    with subject.scratch_folder() as folder:
        job |= {"capture": {"step": CAPTURED_STEP, "folder": str(folder / "capture")}}
        run = subject.run_job(job, folder)
        tensors = {path.stem: np.load(path) for path in sorted((folder / "capture").glob("*.npy"))}
        updated = {path.stem for path in (folder / "capture" / "updated").glob("*.npy")}
    model, shapes = job["model"], _parameter_shapes(job)
    hidden = (job["tuning"]["micro_batch"], job["training"]["sequence_length"], model["hidden_size"])
    names = ["embedding", *(f"layers.{layer}" for layer in range(model["layers"])), "final_norm"]
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(names, hidden)
    expected["logits"] = (*hidden[:2], model["vocab_size"])
    expected |= {f"gradient.{name}": shape for name, shape in shapes.items()}
    for name, shape in expected.items():
        if name not in tensors:
            raise Fails(f"found no tensor `{name}`", "keep it by Capture.keep in the captured step")
        _check_array(f"captured {name}", tensors[name], shape)
    # the reported norms are those before clipping, and of the whole step
    for name, square in run.ranks[0].events_named("gradients")[0]["squares"].items():
        norm = float(np.square(tensors[f"gradient.{name}"], dtype=np.float64).sum())
        if not abs(norm - float(square)) <= NORM_TOLERANCE * max(float(square), 1e-12):
            message = f"gradient.{name}: squared norm {norm:g}, reported {float(square):g}"
            raise Fails(message, "capture before clipping")
    if missing := sorted(set(shapes) - updated):
        raise Fails(f"after the captured step save() did not write {', '.join(missing[:3])}", "write every parameter")
    return f"{len(tensors)} tensors of a step, with the shapes and norms that they must have"


def _parameter_shapes(job: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    parameters = list_parameters(parse(Model, job["model"], "model"), job["training"]["sequence_length"])
    return {name: spec.shape for name, spec in parameters.items()}


def _check_array(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float32:
        raise Fails(f"{name}: found {array.dtype} {array.shape}, expected float32 {shape}", "write it whole")
    if not np.isfinite(array).all():
        raise Fails(f"{name}: found values that are not finite", "capture it before it is reused")


def check_weights(subject: FrameworkSubject) -> str:
    """Check that saved weights are whole and have the norms of the final weights that were reported."""
    job = _evidence_job(subject, SINGLE)
    with subject.scratch_folder() as folder:
        weights_folder = folder / "weights"
        weights_folder.mkdir()
        run = subject.run_job({**job, "save_weights_dir": str(weights_folder)}, folder)
        rows = {row[0]: row[3] for row in run.ranks[0].events_named("final_weights")[0]["parameters"]}
        for name, shape in _parameter_shapes(job).items():
            path = weights_folder / f"{name}.npy"
            if not path.exists():
                raise Fails(f"save() did not write {path.name}", "write every parameter whole, by its canonical name")
            array = np.load(path)
            _check_array(path.name, array, shape)
            norm, reported = float(np.square(array, dtype=np.float64).sum()), float(rows[name][0])
            if not abs(norm - reported) <= NORM_TOLERANCE * max(reported, 1e-12):
                fault = f"{path.name}: squared norm {norm:g}, reported {reported:g}"
                raise Fails(fault, "save what weights() returns")
    return f"{len(_parameter_shapes(job))} parameters, as reported after the last step"
