"""Checks what an environment needs, before anything is downloaded: chip, driver, package index, compilers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield import installer
from levelfield.contracts.command import completed
from levelfield.specs.requirements import Build, BuildTool, LeastVersion, NamedIndex, Requirements, Stages, numbers
from levelfield.specs.vendor import Chip

PATIENCE_SECONDS = 30
OTHER_CHIP = "Name a version that runs on it, where `show frameworks` has one, or a Python of your own with --python"
OTHER_DRIVER = "Update the driver, or name a version that runs with it, where `show frameworks` has one"
_RELEASE = re.compile(r"release (\d+(?:\.\d+)*)")


class Unmet(NamedTuple):
    """What was found, the need that it does not meet, and what to do."""

    found: str
    need: LeastVersion
    remedy: str


def missing(stages: Stages, driver: str | None, is_fetched: bool, chip: Chip | None = None) -> Iterator[str]:
    """Return a sentence for each thing that the packages need and this machine lacks.

    driver: the version of the devices' driver; None: there are no devices here. chip: the run's; None: it is not known.
    is_fetched: nothing is downloaded or built any more, so neither index nor compilers are needed.
    """
    for found, need, remedy in unmet(stages, driver, chip):
        yield f"found {found}, expected {need.least} or newer: {need.reason}. {remedy}"
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


def unmet(needs: Requirements | Stages, driver: str | None, chip: Chip | None) -> Iterator[Unmet]:
    """Return the needs that the chip or the driver does not meet. One whose version is not known counts as met."""
    capability = chip.compute_capability if chip else None
    if chip and capability and needs.compute_capability and is_enough(needs.compute_capability, capability) is False:
        found = f"{chip.name} of compute capability {capability}"
        yield Unmet(found, needs.compute_capability, OTHER_CHIP)
    if driver is not None and needs.driver and is_enough(needs.driver, driver) is False:
        yield Unmet(f"driver {driver}", needs.driver, OTHER_DRIVER)


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
