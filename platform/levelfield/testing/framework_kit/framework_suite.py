"""The suite for a framework: every check, in the order of an author's work, and the record of what was tested."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from levelfield.catalog.framework_versions import runs_path
from levelfield.specs.base import dump
from levelfield.specs.recorded_runs import LayoutRuns, basis_of
from levelfield.testing.findings import CheckFinding, found
from levelfield.testing.framework_kit import (
    ending_checks,
    evidence_checks,
    layout_checks,
    manifest_checks,
    planted_jobs,
)
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject


@dataclass(frozen=True)
class FrameworkCheck:
    """One check. run returns a sentence when all is good, or raises NotOk. slow: left out by --fast."""

    name: str
    run: Callable[[FrameworkSubject], str]
    slow: bool = False


CHECKS = (
    FrameworkCheck("schema", manifest_checks.schema),
    FrameworkCheck("sources", manifest_checks.sources),
    FrameworkCheck("reaches", manifest_checks.reaches),
    FrameworkCheck("launch", manifest_checks.launch),
    FrameworkCheck("events", evidence_checks.events),
    FrameworkCheck("one-process", lambda subject: layout_checks.training(subject, only_one_process=True)),
    FrameworkCheck("large-weights", layout_checks.large_weights),
    FrameworkCheck("large-tensors", layout_checks.large_tensors),
    FrameworkCheck("repeats", layout_checks.repeats),
    FrameworkCheck("dropout", layout_checks.dropout),
    FrameworkCheck("choices", layout_checks.choices),
    FrameworkCheck("capture", evidence_checks.capture),
    FrameworkCheck("weights", evidence_checks.weights),
    FrameworkCheck("refusals", ending_checks.refusals),
    FrameworkCheck("nan", ending_checks.nan),
    FrameworkCheck("killed", ending_checks.killed, slow=True),
    FrameworkCheck("faults", planted_jobs.faults, slow=True),
    FrameworkCheck("training", layout_checks.training, slow=True),
)


def check_framework(subject: FrameworkSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong manifest is the last. fast: without the slow checks."""
    for item in CHECKS:
        if (item.slow and fast) or (item.name == "one-process" and not fast):
            continue
        subject.say(f"check {item.name}")
        finding = find(subject, item)
        yield finding
        if item.name == "schema" and not finding.is_good:
            return


def find(subject: FrameworkSubject, item: FrameworkCheck) -> CheckFinding:
    """Return the finding of one check."""
    return found(item.name, lambda: item.run(subject))


def write_tested(subject: FrameworkSubject) -> Path | None:
    """Write tested.json, or the file of a further version, from the trainings of the suite, and return its path.

    None where it trained nothing.
    """
    runs = subject.kept.get("runs")
    if not runs:
        return None
    tested = LayoutRuns(
        framework=subject.name,
        version=subject.manifest.version,
        device_kind=subject.kind,
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        machine=f"{platform.system()} {platform.machine()}, {_processor(subject)}",
        basis=basis_of(subject.kept["sets"].values()),
        runs=runs,
    )
    path = runs_path(subject.manifest, subject.folder)
    path.write_text(dump(tested), encoding="utf-8")
    return path


def _processor(subject: FrameworkSubject) -> str:
    devices = subject.registry.machine.devices(subject.vendor.name)
    return devices[0].description if devices else "unknown"
