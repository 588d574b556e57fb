"""Checks of a framework's folder that train nothing: the manifest, how devices are reached, what is imported."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from levelfield.catalog.lookup import access_notices, access_of, find
from levelfield.errors import UsageError
from levelfield.specs.implementation import ANY_ACCELERATOR
from levelfield.specs.selector import Selector
from levelfield.testing.findings import Fails, Missing
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject
from levelfield.testing.plan_checks import planned


def schema(subject: FrameworkSubject) -> str:
    """Check the manifest against its schema, and that it offers something on the kind of the check."""
    manifest = subject.manifest
    if not manifest.offered_precisions(subject.kind):
        known = ", ".join(manifest.precisions)
        raise Fails(f"precisions: nothing for device kind '{subject.kind}'; it has {known}", "give another --device")
    silent = set(manifest.precisions) - set(manifest.parallelism)
    if silent:
        raise Fails(f"parallelism: nothing for {', '.join(sorted(silent))}", "write [] for one process")
    return f"{manifest.framework} {manifest.version}: {', '.join(manifest.precisions)}"


def sources(subject: FrameworkSubject) -> str:
    """Check that no file shadows a package, and that scripts import only the worker from the platform."""
    paths = sorted(subject.folder.rglob("*.py"))
    if (subject.folder / "__init__.py").exists():
        raise Fails("found __init__.py: scripts run by path, and the folder is no package", "remove it")
    taken = {subject.name, "levelfield"} | set(sys.stdlib_module_names) | _distributions(subject)
    shadows = sorted(path.name for path in paths if path.stem in taken)
    if shadows:
        raise Fails(f"found {', '.join(shadows)}: it would be imported in place of a package", "rename it")
    for path in paths:
        _check_imports(path)
    return f"{len(paths)} file(s); of the platform they import the worker only"


def _distributions(subject: FrameworkSubject) -> set[str]:
    """Return the names of the required packages, as a module would spell them."""
    packages = (package for needs in subject.manifest.requirements.values() for package in needs.packages)
    return {re.split(r"[^A-Za-z0-9._-]", package)[0].lower().replace("-", "_") for package in packages}


def _check_imports(path: Path) -> None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (SyntaxError, ValueError) as error:
        raise Fails(f"{path.name}: no Python of this version: {error}", "correct it") from None
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            if name.split(".")[0] == "levelfield" and name.split(".")[:2] != ["levelfield", "worker"]:
                raise Fails(f"{path.name} imports {name}, which a training's machine lacks", "use levelfield.worker")


def reaches(subject: FrameworkSubject) -> str:
    """Check that each offered kind of device is reached on each of its vendors, and report differences."""
    manifest, said = subject.manifest, []
    for name in sorted(subject.registry.vendors):
        vendor = subject.registry.vendor_file(name)
        if vendor.device_kind not in manifest.precisions:
            continue
        if access_of(manifest, vendor) is None:
            add = f"add `reaches.{vendor.device_kind}` to implementation.yaml"
            raise Missing(f"nothing says how {subject.name} reaches the devices of vendor {name}", add)
        said += [f"{name}, by its own words" if access_notices(manifest, vendor) else name]
    kinds = set(manifest.precisions) - {ANY_ACCELERATOR}
    vendors = {subject.registry.vendor_file(name).device_kind for name in subject.registry.vendors}
    if kinds - vendors:
        raise Fails(f"precisions: no vendor has devices of kind {', '.join(sorted(kinds - vendors))}", "correct it")
    return f"the devices of {'; '.join(said) or 'no vendor'}"


def launch(subject: FrameworkSubject) -> str:
    """Check that a run of a case is planned whole, with the manifest's argv and variables."""
    why = "no case fits"
    for case in sorted(subject.registry.cases):
        selector = Selector(
            case=case, framework=subject.name, version=subject.version, target=subject.vendor.name, devices=1
        )
        try:
            plan = planned(find(subject.registry, selector), selector, "smoke")
        except UsageError as error:
            why = str(error)
            continue
        return f"{case} on {subject.vendor.name}: {' '.join(plan.implementation.argv)}"
    raise Fails(f"no plan for any case: {why}", "read what the last case lacks")
