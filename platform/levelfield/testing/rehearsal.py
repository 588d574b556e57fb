"""Whole runs of a tiny training with replayed tools of the vendor, and checks of their telemetry, words and leavings.

The training does not depend on the vendor, nor vendor.yaml on the training. So the run uses a copy of the vendor's
folder that names only this framework, and trains on the processor.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from levelfield.catalog.registry import Registry
from levelfield.contracts.readings import SAMPLED_FIELDS
from levelfield.errors import LevelfieldError
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import scheduler
from levelfield.run.runner import Listener
from levelfield.rundir.directory import read_plan
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import IMPLAUSIBLE, Result
from levelfield.specs.tuning import TuningChoice
from levelfield.testing.findings import Fails, Missing, NotApplicable
from levelfield.testing.sample_checks import read_undamaged_values
from levelfield.testing.subject import VendorSubject

DRILL_FOLDER = Path(__file__).with_name("drill")  # a folder of --plugins with a tiny training and its case
MAX_DEVICES = 2
ENVIRONMENT_ADVICE = "check `environment` of vendor.yaml: every training process gets it"

# By fault: the word for the run that it gives, and the class of failure; None: any.
FAULT_OUTCOMES = {"killed": ("failed", "killed"), "nan": ("invalid", None)}


@dataclass(frozen=True)
class Rehearsal:
    """A run that has ended."""

    result: Result
    paths: RunPaths
    leftovers: tuple[str, ...]  # processes that still run, and new files outside the run directory


def rehearse(subject: VendorSubject, fault: str) -> Rehearsal:
    """Return the run with a fault: `none`, `killed` or `nan`. It runs on the first call, and later ones share it.

    It takes the first devices of the recordings, or of a vendor without tools those of this machine. Raises Fails
    when there is no result, and NotApplicable without a device.
    """
    earlier_run = subject.shared.get(f"run {fault}")
    if isinstance(earlier_run, Rehearsal):
        return earlier_run
    try:
        devices = subject.recorded_devices()
    except NotApplicable:
        devices = list(subject.adapter().devices())
    if not devices:
        raise NotApplicable("found no device to run on, with or without recordings")
    count, folder = min(len(devices), MAX_DEVICES), _copy_vendor(subject)
    subject.stage.replay(subject.outputs)
    files_before = _existing_files(subject, folder)
    request = UserRequest("smoke", TuningChoice(environment={"DRILL_FAULT": fault}), python=sys.executable)
    entry_text = f"drill:drill:{folder.name}:1:{count}"
    try:
        registry = Registry([DRILL_FOLDER, folder.parent.parent, *subject.plugins])
        jobs = scheduler.plan_jobs(registry, [Entry(entry_text, request)], None)
        silent_listener = Listener(lambda sentence: None, lambda plan, step: None)
        (result,) = scheduler.run_jobs(jobs, subject.stage.runs, silent_listener, lambda plan: None)
    except LevelfieldError as error:
        raise Fails(f"the platform refused the run: {error}", "use `--dry-run` with this vendor") from None
    if result.status.failure == "interrupted":
        raise KeyboardInterrupt
    leftovers = [f"process {p.pid} ({p.info['name']})" for p in subject.stage.processes()]
    subject.stage.end_all()
    leftovers += [f"file {path}" for path in sorted(_existing_files(subject, folder) - files_before)]
    run = Rehearsal(result, RunPaths(subject.stage.runs / result.run_id), tuple(leftovers))
    subject.shared[f"run {fault}"] = run
    return run


def _copy_vendor(subject: VendorSubject) -> Path:
    """Copy the vendor's folder under another name, with the drill as its only framework."""
    folder = subject.stage.root / "plugins/vendors" / f"{subject.name}-drill"
    if folder.exists():
        return folder
    shutil.copytree(subject.folder, folder, ignore=shutil.ignore_patterns("tuning", "recorded", "__pycache__"))
    content = read_mapping(subject.file, "vendor")
    content |= {"name": folder.name, "frameworks": {"drill": {"device": "cpu", "backend": "gloo"}}}
    if "device_nodes" in (content.get("discovery") or {}):
        del content["discovery"]  # this machine has no such nodes: the monitor's records give the devices
    (folder / "vendor.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def _existing_files(subject: VendorSubject, copy: Path) -> set[str]:
    """Return all paths in the vendor's folder, its copy, the temporary folder and the current folder."""
    roots = (subject.folder, copy, subject.stage.temporary_folder, subject.stage.working_folder)
    return {str(path) for root in roots for path in root.rglob("*") if "__pycache__" not in path.parts}


def check_telemetry(subject: VendorSubject) -> str:
    """Check that a run is valid and that its telemetry holds the recorded values of its devices."""
    run = rehearse(subject, "none")
    status = run.result.status
    if status.word != "valid" and status.failure != IMPLAUSIBLE:  # a device that was recorded idle trains nothing
        words = f"{status.word}: {'; '.join(status.reasons)}; {status.evidence}"
        raise Fails(f"the run is {words}", ENVIRONMENT_ADVICE if status.evidence else "")
    lines = [json.loads(line) for line in run.paths.telemetry.read_text().splitlines()]
    if error := next((line["error"] for line in lines if "error" in line), None):
        raise Fails(f"sample() raised in the run: {error}", "return nulls with reasons instead")
    samples: list[dict[str, Any]] = [sample for line in lines for sample in line["samples"]]
    devices = set(read_plan(run.paths).hardware.device_indices or (0,))  # a host divided into shares is one device
    if {s["index"] for s in samples} != devices:
        raise Fails(f"samples of {sorted({s['index'] for s in samples})}, expected one of each device", "")
    values = {(s["index"], field): s[field] for s in samples for field in SAMPLED_FIELDS if s[field] is not None}
    with suppress(NotApplicable):  # a vendor without recordings
        recorded = read_undamaged_values(subject).values
        expected = {key: value for key, value in recorded.items() if key[0] in devices and key[1] in SAMPLED_FIELDS}
        if values != expected:
            key = next(key for key in {*values, *expected} if values.get(key) != expected.get(key))
            raise Fails(f"telemetry: device {key[0]}: {key[1]} is {values.get(key)}, recorded {expected.get(key)}", "")
        if not values:
            raise Missing("found no value in the telemetry", "compare vendor.yaml with the recording")
    peak = run.result.memory.device_used_peak.value
    used = [sample["memory_used_bytes"] for sample in samples]
    if peak is not None and peak not in used:
        raise Fails(f"the result's memory is {peak}, which is in no sample of the telemetry", "")
    return f"a valid run, {len(samples)} sample(s), {len(values)} value(s)"


def check_failures(subject: VendorSubject) -> str:
    """Check that a killed rank and a NaN loss give their own status with this vendor."""
    for fault, expected in FAULT_OUTCOMES.items():
        status = rehearse(subject, fault).result.status
        word = (status.word, status.failure)
        if word[0] != expected[0] or (expected[1] and word[1] != expected[1]):
            words = f"{word[0]} ({word[1]}): {'; '.join(status.reasons)}; {status.evidence}"
            advice = ENVIRONMENT_ADVICE if status.evidence else ""
            raise Fails(f"a run with fault '{fault}' is {words}, expected {expected[0]}", advice)
    return "a killed rank is failed (killed), a NaN invalid"


def check_cleanup(subject: VendorSubject) -> str:
    """Check that the runs leave no process, and no file outside the run directory."""
    leftovers = [item for fault in ("none", *FAULT_OUTCOMES) for item in rehearse(subject, fault).leftovers]
    if leftovers:
        raise Fails(
            f"left behind: {', '.join(leftovers[:3])}", "end the adapter's processes; write no file on the host"
        )
    return "found no process and no file after the runs"
