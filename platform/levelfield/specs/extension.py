"""A case that extends another: only the keys that differ."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from levelfield.specs.base import LATER, Document, parse
from levelfield.specs.case import Case, Scale, Work, merged


class Extension(Document):
    """configs/cases/<name>.yaml with `extends`. changes: the keys of the other case's full work that differ.

    The tokenizer, smoke block and tuning of the other case stay, except for the keys that this document changes. Its
    `parameters` do not.
    """

    KIND: ClassVar[str] = "case"

    name: str
    title: str
    source: str
    extends: str
    tokenizer: str | None = None
    changes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    smoke: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tuning: dict[Scale, dict[str, Any]] = Field(default_factory=dict)
    parameters: int | None = Field(default=None, ge=1, json_schema_extra=LATER)

    @model_validator(mode="after")
    def _changes_are_of_the_work(self) -> Extension:
        unknown = set(self.changes) - set(Work.model_fields)
        if unknown:
            raise ValueError(f"changes: unknown key {sorted(unknown)}; known: {sorted(Work.model_fields)}")
        if self.extends == self.name:
            raise ValueError(f"extends: found the case's own name '{self.name}', expected another case")
        return self

    def applied(self, base: Case, origin: str) -> Case:
        """Return the whole case. Raises DocumentError with `origin` and the key when the changes give no valid case."""
        own: dict[str, Any] = {"name": self.name, "title": self.title, "source": self.source}
        own["parameters"] = self.parameters
        own |= {"tokenizer": self.tokenizer} if self.tokenizer else {}
        content = merged(base.model_dump(), {**self.changes, "smoke": self.smoke, "tuning": self.tuning, **own})
        return parse(Case, {"schema": Case.schema_name(), **content}, f"{origin}: changes to {base.name}")
