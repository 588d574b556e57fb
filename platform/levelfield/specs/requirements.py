"""Pinned requirements of a framework on one kind of device, and what they need beyond pip's own index.

That is a driver, a chip, a named index, and builds against other packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from levelfield.specs.base import LATER, Value

PythonVersion = tuple[int, int]
_CUDA_LOCAL_VERSION = "cuda[0-9]+"  # the part after + of a version such as 0.19.8+cuda12
_CLAUSE = re.compile(r"(>=|<)(\d+)\.(\d+)|(==)(\d+)\.(\d+)\.\*")
# A choice of a run that needs further packages. `always`: every run needs them.
Use = Literal["always", "fp8", "flash_attn"]
_REQUIREMENT = re.compile(r"[A-Za-z0-9][ -~]*")
_RELATIVE_PATH = r"^[A-Za-z0-9][A-Za-z0-9_.*/-]*$"


def require_exact_versions(key: str, packages: tuple[str, ...]) -> None:
    """Raises ValueError for a requirement that is not a single line or has no exact version."""
    if malformed := [p for p in packages if not _REQUIREMENT.fullmatch(p)]:
        raise ValueError(f"{key}: found {malformed[0]!r}, expected a name and a version in one line")
    if unpinned := [p for p in packages if "==" not in p]:
        raise ValueError(f"{key}: found {', '.join(unpinned)}, expected every version pinned with '=='")


class LeastVersion(Value):
    """The oldest driver, or the oldest kind of chip, that the packages run with, and why."""

    least: str = Field(pattern=r"^\d+(\.\d+)*$")
    reason: str = Field(min_length=3)


class NamedIndex(Value):
    """A package index beside pip's own, for packages that pip's own does not have."""

    # The variable by which the user names it. Its address stands in no file of this project.
    setting: str = Field(pattern=r"^LEVELFIELD_[A-Z0-9_]+$")
    packages: tuple[str, ...] = Field(min_length=1)
    reason: str = Field(min_length=3)


class BuildTool(Value):
    """A program of this machine that a build starts."""

    program: str = Field(pattern=r"^[a-z][a-z0-9+-]*$")
    home: str | None = None  # the variable that names a folder with bin/ and include/ for it
    usual: str | None = None  # the folder where it is without that variable
    # The number that its `--version` gives behind the word `release`.
    release: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    header: str | None = Field(default=None, pattern=_RELATIVE_PATH)  # a file below include/
    source: str = Field(min_length=3)  # how to get it


class BuildStep(Value):
    """One run of pip without build isolation: packages are built against those that are installed already."""

    packages: tuple[str, ...] = Field(min_length=1)
    # Variables of the build; each names a folder below the environment's packages.
    home: dict[str, str] = Field(default_factory=dict)
    # A pattern of folders below the environment's packages in which compilers look for headers.
    headers: str | None = Field(default=None, pattern=_RELATIVE_PATH)


class Build(BuildStep):
    """Packages that are built against the framework's own, and what that needs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    wanted: Use  # the choice of a run that needs them
    # Packages that do the same. A Python that the user names may have any one of them, and lack `packages`.
    instead: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what the build itself needs in the environment; it is installed before
    tools: tuple[BuildTool, ...] = ()  # what it needs on the machine
    without: str = Field(min_length=3, max_length=200)  # what a run without them uses, for the plan

    @model_validator(mode="after")
    def _versions_are_exact(self) -> Build:
        require_exact_versions(f"builds.{self.name}.packages", self.packages)
        require_exact_versions(f"builds.{self.name}.beside", self.beside)
        return self

    @property
    def step(self) -> BuildStep:
        """What a plan has of the build."""
        return BuildStep(packages=self.packages, home=self.home, headers=self.headers)


@dataclass(frozen=True)
class EnvironmentPackages:
    """The packages of one environment."""

    pip_packages: tuple[str, ...] = ()  # what pip installs as usual
    builds: tuple[Build, ...] = ()  # what is then built against those
    left_out: tuple[Build, ...] = ()  # builds that this run does not need
    # The oldest driver and chip that the packages run with, and an index beside pip's own.
    driver: LeastVersion | None = None
    compute_capability: LeastVersion | None = None
    index: NamedIndex | None = None

    @property
    def build_steps(self) -> tuple[BuildStep, ...]:
        return tuple(build.step for build in self.builds)


def version_numbers(version: str) -> tuple[int, ...] | None:
    """Return the numbers of a version such as 550.54.15; None for another text."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+(\.\d+)*", version) else None


def takes_python(clauses: str, version: PythonVersion) -> bool:
    """Return whether `version` fits clauses like ">=3.10,<3.12" or "==3.10.*". Raises ValueError for other forms."""
    fits = [_fits(clause.strip(), version) for clause in clauses.split(",")]  # a list: every wrong clause raises
    return all(fits)


def _fits(clause: str, version: PythonVersion) -> bool:
    """Return whether the version fits one clause. Raises ValueError for another form."""
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"python: found '{clause}', expected clauses like '>=3.10', '<3.12' or '==3.10.*'")
    sign, major, minor = (part for part in match.groups() if part is not None)
    bound = int(major), int(minor)
    return {">=": version >= bound, "<": version < bound, "==": version == bound}[sign]


class Requirements(Value):
    """Pinned pip requirements for one device kind."""

    packages: tuple[str, ...] = Field(min_length=1)
    # Further packages: plan/environment.py adds those that a run needs for fp8 or flash_attn, by their names.
    optional: tuple[str, ...] = ()
    # The versions of Python that `packages` exist for. The platform's own is used if it fits, else another one of the
    # machine.
    python: str = ">=3.10"
    # Packages that are built against `packages`, in this order.
    builds: tuple[Build, ...] = Field(default=(), json_schema_extra=LATER)
    # The oldest driver and chip that `packages` run with, and an index beside pip's own.
    driver: LeastVersion | None = Field(default=None, json_schema_extra=LATER)
    compute_capability: LeastVersion | None = Field(default=None, json_schema_extra=LATER)
    index: NamedIndex | None = Field(default=None, json_schema_extra=LATER)
    verified: str  # where and when the packages ran

    @model_validator(mode="after")
    def _versions_are_exact(self) -> Requirements:
        require_exact_versions("packages", self.packages)
        if malformed := [p for p in self.optional if not _REQUIREMENT.fullmatch(p)]:
            raise ValueError(f"optional: found {malformed[0]!r}, expected a name and a version in one line")
        takes_python(self.python, (3, 0))  # raises ValueError for clauses of an unknown form
        return self

    @model_validator(mode="after")
    def _index_has_packages(self) -> Requirements:
        names = {re.split(r"[\[=;]", package)[0] for package in self.packages}
        if self.index and (absent := [name for name in self.index.packages if name not in names]):
            raise ValueError(f"index.packages: found {', '.join(absent)}, which packages does not have")
        return self

    def environment_packages(self, uses: Collection[str] = ()) -> EnvironmentPackages:
        """Return the packages of a run with these choices, in the order in which they are installed.

        The `optional` ones are not among them.
        """
        builds = tuple(build for build in self.builds if build.wanted == "always" or build.wanted in uses)
        beside = (package for build in builds for package in build.beside)
        return EnvironmentPackages(
            pip_packages=tuple(dict.fromkeys((*self.packages, *beside))),
            builds=builds,
            left_out=tuple(build for build in self.builds if build not in builds),
            driver=self.driver,
            compute_capability=self.compute_capability,
            index=self.index,
        )


class FurtherVersion(Value):
    """Another version of the framework beside the default one: its requirements, by device kind."""

    requirements: dict[str, Requirements] = Field(min_length=1)


def require_pin(packages: tuple[str, ...], version: str, key: str) -> None:
    """Raises ValueError where no package is pinned to the version, so that another one would be installed.

    A version such as 0.19.8+cuda12 is the framework's 0.19.8 with packages of CUDA 12, so a pin of 0.19.8 suffices.
    """
    public, _, local = version.partition("+")
    accepted_pins = [version, public] if re.fullmatch(_CUDA_LOCAL_VERSION, local) else [version]
    if not any(re.search(rf"=={re.escape(pin)}(\+|$)", package) for package in packages for pin in accepted_pins):
        raise ValueError(f"{key}: found {', '.join(packages)}, expected a package pinned with =={version}")
