"""Checks what an environment needs, before anything is downloaded: chip, driver, package index, compilers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from levelfield import installer
from levelfield.contracts.command import completed
from levelfield.specs.build_needs import Build, BuildTool, LeastVersion, NamedIndex, Stages, numbers
from levelfield.specs.vendor import Chip

PATIENCE_SECONDS = 30
_RELEASE = re.compile(r"release (\d+(?:\.\d+)*)")


def missing(stages: Stages, driver: str | None, is_fetched: bool, chip: Chip | None = None) -> Iterator[str]:
    """Return a sentence for each thing that the packages need and this machine lacks.

    driver: the version of the devices' driver; None: there are no devices here. chip: the run's; None: it is not known.
    is_fetched: nothing is downloaded or built any more, so neither index nor compilers are needed.
    """
    if stages.compute_capability and chip and (without_code := has_no_code(stages.compute_capability, chip)):
        yield without_code
    if stages.driver and driver is not None and (old := too_old(stages.driver, driver)):
        yield old
    if is_fetched or installer.wheels_folder():
        return
    if stages.index and (without := unset(stages.index)):
        yield without
    for build in stages.builds:
        yield from (why for tool in build.tools if (why := lacks(tool, build)))


def is_enough(need: LeastVersion, version: str) -> bool | None:
    """Return whether a driver or a chip is new enough. None: its version is not known, as `version` says."""
    found, least = numbers(version), numbers(need.least)
    return None if found is None or least is None else found >= least


def has_no_code(need: LeastVersion, chip: Chip) -> str | None:
    """Return why the packages do not run on this chip; None where they do, or its compute capability is not known."""
    if chip.compute_capability is None or is_enough(need, chip.compute_capability) is not False:
        return None
    return (
        f"found {chip.name} of compute capability {chip.compute_capability}, expected {need.least} or newer: "
        f"{need.reason}. Name a version that runs on it, where `show frameworks` has one, or a Python of your own with "
        "--python"
    )


def too_old(need: LeastVersion, driver: str) -> str | None:
    """Return why the packages do not run with this driver; None where they do, or its version is not known."""
    if is_enough(need, driver) is not False:
        return None
    return (
        f"found driver {driver}, expected {need.least} or newer: {need.reason}. Update the driver, or name a version "
        "that runs with it, where `show frameworks` has one"
    )


def unset(index: NamedIndex) -> str | None:
    """Return what a missing or unreadable setting of a named index lacks; None for an address."""
    given = os.environ.get(index.setting, "")
    if re.match(r"(https?|file)://\S+$", given):
        return None
    found = "an address that is no URL" if given else "none"
    names = ", ".join(index.packages)
    return (
        f"found {found} in {index.setting}, expected the URL of a package index that has {names}: {index.reason}. Set "
        f"{index.setting} to it, or name a Python that has {names} with --python"
    )


def lacks(tool: BuildTool, build: Build) -> str | None:
    """Return why a program cannot build these packages; None where it can."""
    release = f" {tool.release}" if tool.release else ""
    expected = f"expected {tool.program}{release}, which builds {build.name}: {tool.source}"
    program = place_of(tool)
    if program is None:
        return f"found no {tool.program} ({', '.join(_searched(tool))}), {expected}"
    header = program.parent.parent / "include" / tool.header if tool.header else program
    if not header.is_file():
        return f"found {program} without the header {header}, {expected}"
    if tool.release and not _is_release(found := _release_of(program), tool.release):
        return f"found {program} of release {found}, {expected}"
    return None


def place_of(tool: BuildTool) -> Path | None:
    """Return the program where builds look for it: in the folder of its variable, on PATH, in its usual folder."""
    if home := os.environ.get(tool.home or ""):
        named = Path(home) / "bin" / tool.program
        return named if os.access(named, os.X_OK) else None
    if on_path := shutil.which(tool.program):
        return _behind_a_script(Path(on_path).resolve(), tool)
    return _usual(tool)


def _behind_a_script(program: Path, tool: BuildTool) -> Path:
    """Return the program of the usual folder where the one on PATH has no headers beside it, as a script has none."""
    beside = program.parent.parent / "include" / (tool.header or "")
    return program if beside.exists() else _usual(tool) or program


def _usual(tool: BuildTool) -> Path | None:
    named = Path(tool.usual or "") / "bin" / tool.program
    return named.resolve() if tool.usual and os.access(named, os.X_OK) else None


def _searched(tool: BuildTool) -> list[str]:
    if tool.home and (home := os.environ.get(tool.home)):
        return [f"in {tool.home}={home}"]
    return ["on PATH", *([f"in {tool.usual}"] if tool.usual else [])]


def _release_of(program: Path) -> str:
    try:
        said = completed([str(program), "--version"], PATIENCE_SECONDS).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    match = _RELEASE.search(said)
    return match[1] if match else "unknown"


def _is_release(found: str, wanted: str) -> bool:
    return found == wanted or found.startswith(f"{wanted}.")
