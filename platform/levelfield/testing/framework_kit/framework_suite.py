"""The suite for a framework: every check, in the order of an author's work, and the record of what was tested."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from levelfield.catalog.code_basis import runs_path
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump
from levelfield.specs.recorded_runs import LayoutRuns
from levelfield.testing.findings import Check, CheckFinding, found
from levelfield.testing.framework_kit import evidence_checks, fault_checks, layout_checks, manifest_checks
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject

CHECKS: tuple[Check[FrameworkSubject], ...] = (
    Check("schema", manifest_checks.schema),
    Check("sources", manifest_checks.sources),
    Check("reaches", manifest_checks.reaches),
    Check("launch", manifest_checks.launch),
    Check("events", evidence_checks.events),
    Check("one-process", lambda subject: layout_checks.training(subject, only_one_process=True)),
    Check("large-weights", layout_checks.large_weights),
    Check("parts", layout_checks.parts),
    Check("large-tensors", layout_checks.large_tensors),
    Check("repeats", layout_checks.repeats),
    Check("dropout", layout_checks.dropout),
    Check("choices", layout_checks.choices),
    Check("capture", evidence_checks.capture),
    Check("weights", evidence_checks.weights),
    Check("refusals", fault_checks.refusals),
    Check("nan", fault_checks.nan),
    Check("killed", fault_checks.killed, slow=True),
    Check("faults", fault_checks.faults, slow=True),
    Check("training", layout_checks.training, slow=True),
)


def chosen(fast: bool) -> tuple[Check[FrameworkSubject], ...]:
    """Return the checks. fast: without the slow ones, and the trainings in one process in the place of all."""
    return tuple(item for item in CHECKS if not (item.slow if fast else item.name == "one-process"))


def check_framework(subject: FrameworkSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Return the findings one by one. A wrong manifest is the last."""
    for item in chosen(fast):
        subject.say(f"check {item.name}")
        yield (finding := find(subject, item))
        if item.name == "schema" and not finding.is_good:
            return


def find(subject: FrameworkSubject, item: Check[FrameworkSubject]) -> CheckFinding:
    """Return the finding of one check."""
    return found(item.name, lambda: item.run(subject))


def write_tested(subject: FrameworkSubject) -> Path | None:
    """Write tested.json, or the file of a further version, from the trainings of the suite, and return its path.

    None where it trained nothing.
    """
    runs = subject.kept.get("runs")
    if not runs:
        return None
    devices = subject.registry.machine.devices(subject.vendor.name)
    tested = LayoutRuns(
        framework=subject.name,
        version=subject.manifest.version,
        device_kind=subject.kind,
        machine=f"{platform.system()} {platform.machine()}, {devices[0].description if devices else 'unknown'}",
        runs=runs,
    )
    path = runs_path(subject.manifest, subject.folder)
    write_atomically(path, dump(tested))
    return path
