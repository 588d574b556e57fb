"""Withheld values of a publisher: the public commitments, and the reveal that the publisher keeps.

A commitment binds run, field and value. It is a sha256 over a domain name and the canonical JSON of the three with a
salt of 32 random bytes. Without the salt nobody can test a guessed value.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.base import Document, Value

Withheld = Literal["mfu", "peak", "throughput", "energy", "memory"]
DOMAIN = "levelfield.withheld-cell/1"
SALT_BYTES = 32


def commitment(run_id: str, field: str, salt: str, value: Any) -> str:
    """Return the digest of one cell. Raises ValueError for a value that JSON cannot hold, such as NaN."""
    cell = {"run_id": run_id, "field": field, "salt": salt, "value": value}
    text = json.dumps(cell, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(f"{DOMAIN}\0{text}".encode()).hexdigest()


class Commitment(Value):
    run_id: str
    field: Withheld
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")


class Commitments(Document):
    """commitments.json, which is public: exactly one cell for each field of each run."""

    KIND: ClassVar[str] = "commitments"

    runs: tuple[str, ...] = Field(min_length=1)
    fields: tuple[Withheld, ...] = Field(min_length=1)
    cells: tuple[Commitment, ...]

    @model_validator(mode="after")
    def _whole(self) -> Commitments:
        expected = [(run, field) for run in self.runs for field in self.fields]
        found = [(cell.run_id, cell.field) for cell in self.cells]
        _refuse("missing", set(expected) - set(found))
        _refuse("not one of these runs and fields", set(found) - set(expected))
        _refuse("found twice", {cell for cell in found if found.count(cell) > 1})
        return self


class RevealedCell(Value):
    """A withheld value and its salt, in hexadecimal digits."""

    run_id: str
    field: Withheld
    salt: str = Field(pattern="^[0-9a-f]{64}$")
    value: Any

    @model_validator(mode="after")
    def _is_json(self) -> RevealedCell:
        self.digest()
        return self

    def digest(self) -> str:
        return commitment(self.run_id, self.field, self.salt, self.value)


class Reveal(Document):
    """reveal.json: private until the publisher gives it to others, all its cells or some."""

    KIND: ClassVar[str] = "reveal"

    cells: tuple[RevealedCell, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _once(self) -> Reveal:
        found = [(cell.run_id, cell.field) for cell in self.cells]
        _refuse("found twice", {cell for cell in found if found.count(cell) > 1})
        return self


def _refuse(what: str, cells: set[tuple[str, Withheld]]) -> None:
    if cells:
        named = ", ".join(f"{field} of {run}" for run, field in sorted(cells))
        raise ValueError(f"cells: {what}: {named}")
