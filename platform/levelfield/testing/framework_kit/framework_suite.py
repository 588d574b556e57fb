"""The checks of a framework, in the order of an author's work; those that train nothing; and the file tested.json."""

from __future__ import annotations

import ast
import platform
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from levelfield.catalog import lookup
from levelfield.catalog.code_basis import recorded_runs_path
from levelfield.errors import UsageError
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump
from levelfield.specs.implementation import ANY_ACCELERATOR
from levelfield.specs.recorded_runs import LayoutRuns
from levelfield.specs.selector import Selector
from levelfield.testing.findings import Check, CheckFinding, Fails, Missing, run_check
from levelfield.testing.framework_kit import evidence_checks, fault_checks, layout_checks
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.plan_checks import make_plan


def check_schema(subject: FrameworkSubject) -> str:
    """Check the manifest against its schema, and that it offers something on the device kind under test."""
    manifest = subject.manifest
    if not manifest.offered_precisions(subject.kind):
        kinds = ", ".join(manifest.precisions)
        raise Fails(f"precisions: nothing for device kind '{subject.kind}'; it has {kinds}", "give another --device")
    without_parallelism = set(manifest.precisions) - set(manifest.parallelism)
    if without_parallelism:
        raise Fails(f"parallelism: nothing for {', '.join(sorted(without_parallelism))}", "write [] for one process")
    return f"{manifest.framework} {manifest.version}: {', '.join(manifest.precisions)}"


def check_sources(subject: FrameworkSubject) -> str:
    """Check that no file shadows a package, and that scripts import only the worker from the platform."""
    paths = sorted(subject.folder.rglob("*.py"))
    if (subject.folder / "__init__.py").exists():
        raise Fails("found __init__.py: scripts run by path, and the folder is no package", "remove it")
    packages = (package for requirements in subject.manifest.requirements.values() for package in requirements.packages)
    modules = {re.split(r"[^A-Za-z0-9._-]", package)[0].lower().replace("-", "_") for package in packages}
    reserved = {subject.name, "levelfield"} | set(sys.stdlib_module_names) | modules
    shadows = sorted(path.name for path in paths if path.stem in reserved)
    if shadows:
        raise Fails(f"found {', '.join(shadows)}: it would be imported in place of a package", "rename it")
    for path in paths:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        except (SyntaxError, ValueError) as error:
            raise Fails(f"{path.name}: no Python of this version: {error}", "correct it") from None
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                if name.split(".")[0] == "levelfield" and name.split(".")[:2] != ["levelfield", "worker"]:
                    what = f"{path.name} imports {name}, which a training's machine lacks"
                    raise Fails(what, "use levelfield.worker")
    return f"{len(paths)} file(s); of the platform they import the worker only"


def check_device_access(subject: FrameworkSubject) -> str:
    """Check that each offered kind of device is reached on each of its vendors, and report differences."""
    manifest, reached = subject.manifest, []
    for name in sorted(subject.registry.vendors):
        vendor = subject.registry.vendor_file(name)
        if vendor.device_kind not in manifest.precisions:
            continue
        if lookup.framework_access(manifest, vendor) is None:
            hint = f"add `reaches.{vendor.device_kind}` to implementation.yaml"
            raise Missing(f"nothing says how {subject.name} reaches the devices of vendor {name}", hint)
        reached += [f"{name}, by its own words" if lookup.access_notices(manifest, vendor) else name]
    kinds = set(manifest.precisions) - {ANY_ACCELERATOR}
    vendors = {subject.registry.vendor_file(name).device_kind for name in subject.registry.vendors}
    if kinds - vendors:
        raise Fails(f"precisions: no vendor has devices of kind {', '.join(sorted(kinds - vendors))}", "correct it")
    return f"the devices of {'; '.join(reached) or 'no vendor'}"


def check_launch_plan(subject: FrameworkSubject) -> str:
    """Check that a run of a case is planned whole, with the manifest's argv and variables."""
    reason = "no case fits"
    for case in sorted(subject.registry.cases):
        selector = Selector(
            case=case, framework=subject.name, version=subject.version, target=subject.vendor.name, devices=1
        )
        try:
            plan = make_plan(lookup.find_selection(subject.registry, selector), selector, "smoke")
        except UsageError as error:
            reason = str(error)
            continue
        return f"{case} on {subject.vendor.name}: {' '.join(plan.implementation.argv)}"
    raise Fails(f"no plan for any case: {reason}", "read what the last case lacks")


CHECKS: tuple[Check[FrameworkSubject], ...] = (
    Check("schema", check_schema),
    Check("sources", check_sources),
    Check("reaches", check_device_access),
    Check("launch", check_launch_plan),
    Check("events", evidence_checks.check_events),
    Check("one-process", partial(layout_checks.check_training, only_one_process=True), only_fast=True),
    Check("large-weights", layout_checks.check_large_weights),
    Check("parts", layout_checks.check_parts),
    Check("large-tensors", layout_checks.check_large_tensors),
    Check("repeats", layout_checks.check_repeats),
    Check("dropout", layout_checks.check_dropout),
    Check("choices", layout_checks.check_expert_choices),
    Check("capture", evidence_checks.check_capture),
    Check("weights", evidence_checks.check_weights),
    Check("refusals", fault_checks.check_refusals),
    Check("nan", fault_checks.check_nan_loss),
    Check("killed", fault_checks.check_killed_rank, slow=True),
    Check("faults", fault_checks.check_planted_faults, slow=True),
    Check("training", layout_checks.check_training, slow=True),
)


def check_framework(subject: FrameworkSubject, fast: bool = False) -> Iterator[CheckFinding]:
    """Yield the findings; stop after an invalid manifest. fast: train in one process only, and skip the slow checks."""
    for check in (check for check in CHECKS if check.is_selected(fast)):
        subject.report_progress(f"check {check.name}")
        yield (finding := run_one_check(subject, check))
        if check.name == "schema" and not finding.is_good:
            return


def run_one_check(subject: FrameworkSubject, check: Check[FrameworkSubject]) -> CheckFinding:
    """Return the finding of one check."""
    return run_check(check.name, lambda: check.run(subject))


def write_tested(subject: FrameworkSubject) -> Path | None:
    """Write tested.json, or the file of a further version, from the trainings of the suite, and return its path.

    None where it trained nothing.
    """
    runs = subject.shared.get("runs")
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
    path = recorded_runs_path(subject.manifest, subject.folder)
    write_atomically(path, dump(tested))
    return path
