"""A whole run of a tiny training with replayed tools of the vendor: plan, processes, telemetry, result.

The training does not depend on the vendor, nor vendor.yaml on the training. So the run uses a copy of the vendor's
folder that names only this framework, and trains on the processor.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from levelfield.catalog.registry import Registry
from levelfield.contracts.vendor import Device
from levelfield.errors import LevelfieldError
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import scheduler
from levelfield.run.runner import Listener
from levelfield.rundir.directory import read_plan
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result
from levelfield.specs.tuning import TuningChoice
from levelfield.testing.findings import Fails, NotApplicable
from levelfield.testing.subject import VendorSubject

DRILL = Path(__file__).with_name("drill")
MOST_DEVICES = 2


@dataclass(frozen=True)
class Rehearsal:
    """A run that has ended. left: processes that still run, and new files outside the run directory."""

    result: Result
    paths: RunPaths
    left: tuple[str, ...]

    def devices(self) -> tuple[int, ...]:
        """Return the indices of the plan's devices; of a host that is divided into shares, its one device."""
        return read_plan(self.paths).hardware.device_indices or (0,)

    def samples(self) -> list[dict[str, Any]]:
        """Return every sample of the telemetry. Raises Fails for a line with an error of the adapter."""
        lines = [json.loads(line) for line in self.paths.telemetry.read_text().splitlines()]
        if error := next((line["error"] for line in lines if "error" in line), None):
            raise Fails(f"sample() raised in the run: {error}", "return nulls with reasons instead")
        return [sample for line in lines for sample in line["samples"]]


def rehearse(subject: VendorSubject, fault: str) -> Rehearsal:
    """Run once for each fault: `none`, `killed` or `nan`. Raises Fails when there is no result."""
    kept = subject.kept.get(f"run {fault}")
    if not isinstance(kept, Rehearsal):
        kept = subject.kept[f"run {fault}"] = _rehearse(subject, fault)
    return kept


def devices_of(subject: VendorSubject) -> list[Device]:
    """Return the devices of the rehearsal: the first two of the recordings, or of a vendor without tools."""
    try:
        found = subject.devices()
    except NotApplicable:
        found = list(subject.adapter().devices())
    if not found:
        raise NotApplicable("found no device to run on, with or without recordings")
    return found[:MOST_DEVICES]


def _rehearse(subject: VendorSubject, fault: str) -> Rehearsal:
    count, folder = len(devices_of(subject)), _copy(subject)
    subject.stage.replay(subject.outputs)
    before = _files(subject, folder)
    request = UserRequest("smoke", TuningChoice(environment={"DRILL_FAULT": fault}), python=sys.executable)
    text = f"drill:drill:{folder.name}:1:{count}"
    try:
        registry = Registry([DRILL, folder.parent.parent, *subject.plugins])
        work = scheduler.jobs(registry, [Entry(text, request)], None)
        silent = Listener(lambda said: None, lambda plan, step: None)
        (result,) = scheduler.run_all(work, subject.stage.runs, silent, lambda plan: None)
    except LevelfieldError as error:
        raise Fails(f"the platform refused the run: {error}", "use `--dry-run` with this vendor") from None
    if result.status.failure == "interrupted":
        raise KeyboardInterrupt
    left = [f"process {p.pid} ({p.name()})" for p in subject.stage.processes()]
    subject.stage.end_all()
    left += [f"file {path}" for path in sorted(_files(subject, folder) - before)]
    return Rehearsal(result, RunPaths(subject.stage.runs / result.run_id), tuple(left))


def _copy(subject: VendorSubject) -> Path:
    """Copy the vendor's folder under another name, with the drill as its only framework."""
    folder = subject.stage.root / "plugins/vendors" / f"{subject.name}-drill"
    if folder.exists():
        return folder
    shutil.copytree(subject.folder, folder, ignore=shutil.ignore_patterns("tuning", "recorded", "__pycache__"))
    content = read_mapping(subject.file)
    content |= {"name": folder.name, "frameworks": {"drill": {"device": "cpu", "backend": "gloo"}}}
    if "device_nodes" in (content.get("discovery") or {}):
        del content["discovery"]  # this machine has no such nodes: the monitor's records give the devices
    (folder / "vendor.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def _files(subject: VendorSubject, copy: Path) -> set[str]:
    """Return all paths in the vendor's folder, its copy, the temporary folder and the current folder."""
    roots = (subject.folder, copy, subject.stage.temporary, subject.stage.here)
    return {str(path) for root in roots for path in root.rglob("*") if "__pycache__" not in path.parts}
