"""What packages need beyond pip's own index: a driver, a chip, a named index, and builds against other packages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Value

# A choice of a run that needs further packages. `always`: every run does.
Use = Literal["always", "fp8", "flash_attn"]

_REQUIREMENT = re.compile(r"[A-Za-z0-9][ -~]*")
_BELOW = r"^[A-Za-z0-9][A-Za-z0-9_.*/-]*$"  # a place below an environment's packages


def refuse_loose(key: str, packages: tuple[str, ...]) -> None:
    """Raises ValueError for a requirement that is no single line, or has no exact version."""
    if strange := [p for p in packages if not _REQUIREMENT.fullmatch(p)]:
        raise ValueError(f"{key}: found {strange[0]!r}, expected a name and a version in one line")
    if loose := [p for p in packages if "==" not in p]:
        raise ValueError(f"{key}: found {', '.join(loose)}, expected every version pinned with '=='")


class LeastVersion(Value):
    """The oldest driver, or the oldest kind of chip, that the packages run with, and why."""

    least: str = Field(pattern=r"^\d+(\.\d+)*$")
    reason: str = Field(min_length=3)


class NamedIndex(Value):
    """A package index beside pip's own, for packages that pip's own does not have.

    setting: the variable by which the user names it. Its address stands in no file of this project.
    """

    setting: str = Field(pattern=r"^LEVELFIELD_[A-Z0-9_]+$")
    packages: tuple[str, ...] = Field(min_length=1)
    reason: str = Field(min_length=3)


class BuildTool(Value):
    """A program of this machine that a build starts.

    home: the variable that names a folder with bin/ and include/ for it; usual: the folder where it is without that
    variable. release: the number that its `--version` gives behind the word `release`. header: a file below include/.
    source: how to get it.
    """

    program: str = Field(pattern=r"^[a-z][a-z0-9+-]*$")
    home: str | None = None
    usual: str | None = None
    release: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    header: str | None = Field(default=None, pattern=_BELOW)
    source: str = Field(min_length=3)


class BuildStep(Value):
    """One run of pip without its isolation, so that packages are built against those that are installed before.

    home: variables of the build; each names a folder below the environment's packages. headers: folders there, as a
    pattern, in which compilers look for headers.
    """

    packages: tuple[str, ...] = Field(min_length=1)
    home: dict[str, str] = Field(default_factory=dict)
    headers: str | None = Field(default=None, pattern=_BELOW)


class Build(BuildStep):
    """Packages that are built against the framework's own, and what that needs.

    wanted: the choice of a run that needs them. beside: what the build itself needs in the environment; it is
    installed before. tools: what it needs on the machine. without: what a run has in their place, for the plan.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    wanted: Use
    beside: tuple[str, ...] = ()
    tools: tuple[BuildTool, ...] = ()
    without: str = Field(min_length=3, max_length=200)

    @model_validator(mode="after")
    def _pinned(self) -> Build:
        refuse_loose(f"builds.{self.name}.packages", self.packages)
        refuse_loose(f"builds.{self.name}.beside", self.beside)
        return self

    @property
    def step(self) -> BuildStep:
        return BuildStep(packages=self.packages, home=self.home, headers=self.headers)


@dataclass(frozen=True)
class Stages:
    """The packages of one environment. first: what pip installs as usual. builds: what is then built against it.

    driver, compute_capability, index: what they need beside. left_out: builds that this run does not need.
    """

    first: tuple[str, ...] = ()
    builds: tuple[Build, ...] = ()
    left_out: tuple[Build, ...] = ()
    driver: LeastVersion | None = None
    compute_capability: LeastVersion | None = None
    index: NamedIndex | None = None

    @property
    def steps(self) -> tuple[BuildStep, ...]:
        return tuple(build.step for build in self.builds)


def numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version such as 550.54.15; None for another text."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else None
