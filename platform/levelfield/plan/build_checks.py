"""Checks what an environment needs, before anything is downloaded: chip, driver, package index, compilers."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from levelfield import installer
from levelfield.catalog.lookup import Selection
from levelfield.catalog.registry import Registry
from levelfield.contracts.command import run_bounded
from levelfield.plan.request import UserRequest
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.requirements import (
    Build,
    BuildTool,
    EnvironmentPackages,
    LeastVersion,
    NamedIndex,
    Requirements,
    Use,
    version_numbers,
)
from levelfield.specs.selector import Selector, versioned_framework
from levelfield.specs.vendor import Chip

ANSWER_SECONDS = 30  # the time limit of a program that prints its version
IMPORT_SECONDS = 300  # the time limit of imports, which read gigabytes, perhaps from a file server
CHIP_REMEDY = "Name a version that runs on it, where `show frameworks` has one, or a Python of your own with --python"
DRIVER_REMEDY = "Update the driver, or name a version that runs with it, where `show frameworks` has one"
# Imports a module for each named build and prints why it cannot be. Of a build whose module has another name than its
# package, only the package is looked up. -E ignores the caller's variables, as a training does.
_IMPORT_PROGRAM = """
import importlib, json, sys
from importlib.metadata import PackageNotFoundError, version
def fault(name):
    module = name.replace("-", "_")
    try:
        importlib.import_module(module)
    except BaseException as error:
        try:
            if getattr(error, "name", None) == module and version(name):
                return None
        except PackageNotFoundError:
            pass
        return type(error).__name__ + ": " + " ".join(str(error).split())[:300]
del sys.path[0]
print("\\n" + json.dumps({name: fault(name) for name in sys.argv[1:]}))
"""
_USE_REASONS: dict[Use, str] = {
    "always": "every run on these devices uses it",
    "fp8": "precision fp8 uses it",
    "flash_attn": "attention flash_attn uses it",
}
_RELEASE = re.compile(r"release (\d+(?:\.\d+)*)")


class UnmetNeed(NamedTuple):
    """The version of a chip or a driver, the need that it does not meet, and what to do."""

    version: str
    need: LeastVersion
    remedy: str


def missing_need_sentences(
    packages: EnvironmentPackages, driver: str | None, is_already_made: bool, chip: Chip | None = None
) -> Iterator[str]:
    """Return a sentence for each thing that the packages need and this machine lacks.

    driver: the version of the devices' driver; None: there are no devices here. chip: the run's; None: it is not known.
    is_already_made: nothing is downloaded or built any more, so neither index nor compilers are needed.
    """
    for version, need, remedy in unmet_needs(packages, driver, chip):
        yield f"found {version}, expected {need.least} or newer: {need.reason}. {remedy}"
    if is_already_made or installer.wheels_folder():
        return
    if packages.index and (problem := index_problem(packages.index)):
        yield problem
    for build in packages.builds:
        yield from filter(None, (tool_problem(tool, build) for tool in build.tools))


def meets_need(need: LeastVersion, version: str) -> bool | None:
    """Return whether a driver or a chip is new enough; None where `version` is a text that says why it is unknown."""
    numbers, minimum = version_numbers(version), version_numbers(need.least)
    return None if numbers is None or minimum is None else numbers >= minimum


def unmet_needs(
    needs: Requirements | EnvironmentPackages, driver: str | None, chip: Chip | None
) -> Iterator[UnmetNeed]:
    """Return the needs that the chip or the driver does not meet. One whose version is not known counts as met."""
    capability = chip.compute_capability if chip else None
    if chip and capability and needs.compute_capability and meets_need(needs.compute_capability, capability) is False:
        yield UnmetNeed(f"{chip.name} of compute capability {capability}", needs.compute_capability, CHIP_REMEDY)
    if driver is not None and needs.driver and meets_need(needs.driver, driver) is False:
        yield UnmetNeed(f"driver {driver}", needs.driver, DRIVER_REMEDY)


def index_problem(index: NamedIndex) -> str | None:
    """Return what a missing or unreadable setting of a named index lacks; None for an address."""
    address = os.environ.get(index.setting, "")
    if re.match(r"(https?|file)://\S+$", address):
        return None
    names, actual = ", ".join(index.packages), "an address that is no URL" if address else "none"
    return (
        f"found {actual} in {index.setting}, expected the URL of a package index that has {names}: {index.reason}. Set "
        f"{index.setting} to it, or name a Python that has {names} with --python"
    )


def import_problems(python: str, builds: Sequence[Build]) -> Iterator[str]:
    """Return a sentence for each build that this Python cannot import, to which the caller adds another way out.

    A Python that does not answer counts as one that can: the training says more about it.
    """
    faults = (
        _import_faults(python, tuple(name for build in builds for name in (build.name, *build.instead)))
        if builds
        else {}
    )
    for build in builds:
        fault = faults.get(build.name)
        if fault and all(faults.get(name) for name in build.instead):
            names = " and no ".join((build.name, *build.instead))
            yield (
                f"found no {names} that {python} can import ({fault}), expected one: {_USE_REASONS[build.wanted]}. "
                f"Install {' '.join(build.packages)} there"
            )


@functools.cache
def _import_faults(python: str, names: tuple[str, ...]) -> dict[str, str | None]:
    """Return why the modules of these builds cannot be imported. All entries of a suite share the answer."""
    try:
        completed = run_bounded([python, "-E", "-c", _IMPORT_PROGRAM, *names], IMPORT_SECONDS)
        return dict(json.loads(completed.stdout.splitlines()[-1]))
    except (OSError, ValueError, TypeError, IndexError, subprocess.SubprocessError):
        return {}


def tool_problem(tool: BuildTool, build: Build) -> str | None:
    """Return why a program cannot build these packages; None where it can."""
    release = f" {tool.release}" if tool.release else ""
    expected = f"expected {tool.program}{release}, which builds {build.name}: {tool.source}"
    program = find_program(tool)
    if program is None:
        return f"found no {tool.program} ({', '.join(_searched_places(tool))}), {expected}"
    header = program.parent.parent / "include" / tool.header if tool.header else program
    if not header.is_file():
        return f"found {program} without the header {header}, {expected}"
    if tool.release and not f"{(actual := _release_of(program))}.".startswith(f"{tool.release}."):
        return f"found {program} of release {actual}, {expected}"
    return None


def find_program(tool: BuildTool) -> Path | None:
    """Return the program where builds look for it: in the folder of its variable, on PATH, in its usual folder.

    The usual folder also has it where the one on PATH has no headers beside it, as a script has none.
    """
    if home := os.environ.get(tool.home or ""):
        program = Path(home) / "bin" / tool.program
        return program if os.access(program, os.X_OK) else None
    usual_path = Path(tool.usual or "") / "bin" / tool.program
    usual_program = usual_path.resolve() if tool.usual and os.access(usual_path, os.X_OK) else None
    if on_path := shutil.which(tool.program):
        program = Path(on_path).resolve()
        return (
            program if (program.parent.parent / "include" / (tool.header or "")).exists() else usual_program or program
        )
    return usual_program


def _searched_places(tool: BuildTool) -> list[str]:
    if tool.home and (home := os.environ.get(tool.home)):
        return [f"in {tool.home}={home}"]
    return ["on PATH", *([f"in {tool.usual}"] if tool.usual else [])]


def _release_of(program: Path) -> str:
    """Return the release that a program prints, or `unknown`."""
    try:
        output = run_bounded([str(program), "--version"], ANSWER_SECONDS).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    match = _RELEASE.search(output)
    return match[1] if match else "unknown"


def select_runnable_version(
    registry: Registry, selector: Selector, selection: Selection, request: UserRequest, is_from_suite: bool
) -> tuple[Selector, Selection, str | None, tuple[str, ...]]:
    """Return the selector and its selection with a version that the chip and the driver can run, and what is known.

    The third value is the driver's version; None where the packages need no certain one, or nobody knows the driver:
    for devices that are assumed or on other machines, and for packages that the platform does not install. The fourth
    holds sentences: why it is another version than the default, or that the driver was not checked. A version that the
    user named stays, and so does that of a suite's rows on hardware that is not here: they say what was published
    elsewhere, by other versions.
    """
    manifest, kind = selection.implementation, selection.vendor.device_kind
    requirements = manifest.requirements.get(kind)
    is_here = selection.devices and not request.assumed_hardware
    is_elsewhere = is_from_suite and not (is_here or request.launch)
    if requirements is None or is_elsewhere or _is_brought_by_user(selection, request):
        return selector, selection, None, ()
    driver = registry.machine.driver(selection.vendor.name) if requirements.driver and is_here else None
    faults = [
        f"found {actual}, and it needs {need.least} or newer ({need.reason})"
        for actual, need, _ in unmet_needs(requirements, driver, selection.chip)
    ]
    if not faults:
        return selector, selection, driver, _unchecked_driver_notice(manifest, requirements.driver, driver)
    version = _first_runnable_version(manifest, kind, driver, selection.chip)
    if selector.version is not None or version is None:
        return selector, selection, driver, ()
    other_manifest, _ = registry.implementation(selector.framework, version)
    selector = selector.model_copy(update={"version": version})
    chosen = versioned_framework(manifest.framework, version)
    reason = f"{chosen} in place of {manifest.framework} {manifest.version}: {'; '.join(faults)}"
    return selector, replace(selection, implementation=other_manifest), driver, (reason,)


def _is_brought_by_user(selection: Selection, request: UserRequest) -> bool:
    """Return whether the user's Python or the image brings the packages."""
    if request.runtime != "docker":
        return request.runtime == "inside" or request.python is not None
    image = selection.vendor.images.get(selection.implementation.framework) or selection.vendor.images.get("base")
    return request.base_has_framework or (request.base_image is None and image is not None and image.has_framework)


def _first_runnable_version(manifest: ImplementationFile, kind: str, driver: str | None, chip: Chip) -> str | None:
    """Return the first further version whose packages run on this chip with this driver."""
    for version, further in manifest.versions.items():
        requirements = further.requirements.get(kind)
        if requirements is not None and not any(unmet_needs(requirements, driver, chip)):
            return version
    return None


def _unchecked_driver_notice(
    manifest: ImplementationFile, need: LeastVersion | None, driver: str | None
) -> tuple[str, ...]:
    if need is None or driver is None or meets_need(need, driver) is not None:
        return ()
    return (
        f"{manifest.label} needs driver {need.least} or newer ({need.reason}); this machine's was not checked: "
        f"{driver}",
    )
