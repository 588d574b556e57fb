"""Pinned requirements of a framework on one kind of device, for its default version and for further ones."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from levelfield.specs.base import Value

PythonVersion = tuple[int, int]

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
    machine.
    """

    packages: tuple[str, ...] = Field(min_length=1)
    optional: tuple[str, ...] = ()
    python: str = ">=3.10"
    verified: str

    @model_validator(mode="after")
    def _pinned(self) -> Requirements:
        if strange := [p for p in (*self.packages, *self.optional) if not re.fullmatch(r"[A-Za-z0-9][ -~]*", p)]:
            raise ValueError(f"packages: found {strange[0]!r}, expected a name and a version in one line")
        loose = [p for p in self.packages if "==" not in p]
        if loose:
            raise ValueError(f"packages: found {', '.join(loose)}, expected every version pinned with '=='")
        takes_python(self.python, (3, 0))  # raises ValueError for clauses of an unknown form
        return self


class FurtherVersion(Value):
    """Another version of the framework beside the default one: its requirements, by device kind."""

    requirements: dict[str, Requirements] = Field(min_length=1)


def require_pin(packages: tuple[str, ...], version: str, key: str) -> None:
    """Raises ValueError where no package is pinned to the version, so that another one would be installed."""
    if not any(re.search(rf"=={re.escape(version)}(\+|$)", package) for package in packages):
        raise ValueError(f"{key}: found {', '.join(packages)}, expected a package pinned with =={version}")
