"""Pinned requirements of a framework on one kind of device, for its default version and for further ones."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import Field, model_validator

from levelfield.specs.base import LATER, Value
from levelfield.specs.build_needs import Build, LeastVersion, NamedIndex, Stages, refuse_loose

PythonVersion = tuple[int, int]

BESIDE = "cuda[0-9]+"  # of a version such as 0.19.8+cuda12

_CLAUSE = re.compile(r"(>=|<)(\d+)\.(\d+)|(==)(\d+)\.(\d+)\.\*")


def takes_python(wanted: str, version: PythonVersion) -> bool:
    """Return whether `version` fits clauses like ">=3.10,<3.12" or "==3.10.*". Raises ValueError for other forms."""
    fits = [_fits(clause.strip(), version) for clause in wanted.split(",")]  # a list: every wrong clause raises
    return all(fits)


def _fits(clause: str, version: PythonVersion) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"python: found '{clause}', expected clauses like '>=3.10', '<3.12' or '==3.10.*'")
    sign, major, minor = (part for part in match.groups() if part is not None)
    bound = int(major), int(minor)
    return {">=": version >= bound, "<": version < bound, "==": version == bound}[sign]


class Requirements(Value):
    """Pinned pip requirements for one device kind. `verified` names where they ran.

    python: the versions that they exist for. The platform's own Python is used if it fits, else another one of the
    machine. optional: further packages that pip installs as usual. builds: packages that are built against `packages`,
    in this order. driver, compute_capability, index: what `packages` need beside.
    """

    packages: tuple[str, ...] = Field(min_length=1)
    optional: tuple[str, ...] = ()
    python: str = ">=3.10"
    builds: tuple[Build, ...] = Field(default=(), json_schema_extra=LATER)
    driver: LeastVersion | None = Field(default=None, json_schema_extra=LATER)
    compute_capability: LeastVersion | None = Field(default=None, json_schema_extra=LATER)
    index: NamedIndex | None = Field(default=None, json_schema_extra=LATER)
    verified: str

    @model_validator(mode="after")
    def _pinned(self) -> Requirements:
        refuse_loose("packages", self.packages)
        if strange := [p for p in self.optional if not re.fullmatch(r"[A-Za-z0-9][ -~]*", p)]:
            raise ValueError(f"packages: found {strange[0]!r}, expected a name and a version in one line")
        takes_python(self.python, (3, 0))  # raises ValueError for clauses of an unknown form
        return self

    @model_validator(mode="after")
    def _index_has_packages(self) -> Requirements:
        names = {re.split(r"[\[=;]", package)[0] for package in self.packages}
        if self.index and (strange := [name for name in self.index.packages if name not in names]):
            raise ValueError(f"index.packages: found {', '.join(strange)}, which packages does not have")
        return self

    def stages(self, uses: Collection[str] = ()) -> Stages:
        """Return the packages of a run with these choices, in the order in which they are installed."""
        chosen = tuple(build for build in self.builds if build.wanted == "always" or build.wanted in uses)
        beside = (package for build in chosen for package in build.beside)
        return Stages(
            first=tuple(dict.fromkeys((*self.packages, *beside))),
            builds=chosen,
            left_out=tuple(build for build in self.builds if build not in chosen),
            driver=self.driver,
            compute_capability=self.compute_capability,
            index=self.index,
        )


class FurtherVersion(Value):
    """Another version of the framework beside the default one: its requirements, by device kind."""

    requirements: dict[str, Requirements] = Field(min_length=1)


def require_pin(packages: tuple[str, ...], version: str, key: str) -> None:
    """Raises ValueError where no package is pinned to the version, so that another one would be installed.

    A version such as 0.19.8+cuda12 is the framework's 0.19.8 beside other packages; so 0.19.8 is pinned.
    """
    public, _, beside = version.partition("+")
    pinned = [version, public] if re.fullmatch(BESIDE, beside) else [version]
    if not any(re.search(rf"=={re.escape(each)}(\+|$)", package) for package in packages for each in pinned):
        raise ValueError(f"{key}: found {', '.join(packages)}, expected a package pinned with =={version}")
