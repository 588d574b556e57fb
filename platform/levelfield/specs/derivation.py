"""Cases that are made of others: by a document that `extends` one, or by a name such as `gpt3_6.7B+steps20+batch64`.

A derived case, by its name, has some numbers of the training changed. It is a case of its own: its name, digest and
work differ, so that nothing compares it with the case that it came from.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from pydantic import Field, model_validator

from levelfield.errors import UsageError
from levelfield.specs.base import MAX_SIZE, MAX_STEPS, Document, Value, parse, parse_digits
from levelfield.specs.case import SCALES, Case, Scale, Work, merge_nested

_WORD_BY_FIELD = {"steps": "steps", "sequence_length": "seq", "global_batch": "batch", "seed": "seed"}
_FIELD_BY_WORD = {word: field for field, word in _WORD_BY_FIELD.items()}
_CHANGE = re.compile(r"(?P<word>[a-z]+)(?P<number>\d+)")


class Derivation(Value):
    """The changed numbers of the training, at both scales. None: as in the case."""

    steps: int | None = Field(default=None, ge=2, le=MAX_STEPS)
    sequence_length: int | None = Field(default=None, ge=2, le=MAX_SIZE)
    global_batch: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    seed: int | None = Field(default=None, ge=0, lt=2**63)

    @property
    def suffix(self) -> str:
        """Return the end of the derived case's name, in a fixed order; empty without a change."""
        return "".join(f"+{_WORD_BY_FIELD[name]}{value}" for name, value in self._changes().items())

    @property
    def description(self) -> str:
        """Return the changes as a text, by the names of their fields: `steps 20, seed 7`."""
        return ", ".join(f"{name} {value}" for name, value in self._changes().items())

    @property
    def keeps_the_batch(self) -> bool:
        """Return whether a step still has the same tokens, so that layouts made for the case stay possible."""
        return self.sequence_length is None and self.global_batch is None

    def apply_to(self, case: Case) -> Case:
        """Return the derived case. Raises DocumentError where the changes give no valid work."""
        works = {scale: self._changed_work(case.written_work(scale)) for scale in SCALES}
        smoke_model = case.written_work("smoke").model
        smoke_defaults = {
            name: getattr(smoke_model, name) for name in works["full"]["model"] if name not in works["smoke"]["model"]
        }
        works["smoke"]["model"] |= smoke_defaults  # a dump leaves them out, and then the full scale's would count
        content = {
            **case.model_dump(),
            **works["full"],
            "name": case.name + self.suffix,
            "title": f"{case.title}; derived: {self.description}",
            "smoke": works["smoke"],
            "parameters": None,  # learned positions are as many as the sequence has tokens
        }
        return parse(Case, {"schema": Case.schema_name(), **content}, f"{case.name}{self.suffix}")

    def _changes(self) -> dict[str, int]:
        return self.model_dump(exclude_none=True)

    def _changed_work(self, work: Work) -> dict[str, Any]:
        """Return the work with the changes. Window, evidence and acceptance follow a changed number of steps.

        A shorter run does not reach the fraction of the first loss that the whole run must reach: its loss must fall.
        """
        content = work.model_dump()
        content["training"] |= self._changes()
        if self.seed is not None:
            content["data"]["seed"] = self.seed
        if self.steps is None:
            return content
        first = min(work.window.first_step, max(2, self.steps // 2 + 1))
        content["window"] = {"first_step": first, "last_step": self.steps}
        content["evidence"] = {"gradient_steps": [s for s in work.evidence.gradient_steps if s < first]}
        content["acceptance"]["tail_steps"] = min(work.acceptance.tail_steps, max(1, self.steps // 4))
        if self.steps < work.training.steps:
            content["acceptance"]["final_loss_below_fraction"] = 1.0
        return content


def split_name(name: str) -> tuple[str, Derivation]:
    """Return the name of the case and the changes to it. Raises UsageError for an unknown change."""
    base, *parts = name.split("+")
    changes: dict[str, int] = {}
    for part in parts:
        match = _CHANGE.fullmatch(part)
        field = _FIELD_BY_WORD.get(match["word"]) if match else None
        if match is None or field is None or field in changes:
            words = ", ".join(f"+{word}N" for word in _FIELD_BY_WORD)
            raise UsageError(f"case '{name}': found '+{part}', expected each at most once: {words}")
        try:
            changes[field] = parse_digits(match["number"])
        except ValueError as error:
            raise UsageError(f"case '{base}+{match['word']}...': {error}") from None
    return base, parse(Derivation, changes, f"case '{name}'")


class Extension(Document):
    """configs/cases/<name>.yaml with `extends`.

    The tokenizer, smoke block and tuning of the other case stay, except for the keys that this document changes. Its
    `parameters` do not.
    """

    KIND: ClassVar[str] = "case"

    name: str
    title: str
    source: str
    extends: str
    tokenizer: str | None = None
    # The keys of the other case's full work that differ.
    changes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    smoke: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tuning: dict[Scale, dict[str, Any]] = Field(default_factory=dict)
    parameters: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _changes_are_of_the_work(self) -> Extension:
        unknown = set(self.changes) - set(Work.model_fields)
        if unknown:
            raise ValueError(f"changes: unknown key {sorted(unknown)}; known: {sorted(Work.model_fields)}")
        if self.extends == self.name:
            raise ValueError(f"extends: found the case's own name '{self.name}', expected another case")
        return self

    def apply_to(self, base: Case, origin: str) -> Case:
        """Return the whole case. Raises DocumentError with `origin` and the key when the changes give no valid case."""
        identity = self.model_dump(include={"name", "title", "source", "parameters"})
        identity |= {"tokenizer": self.tokenizer} if self.tokenizer else {}
        content = merge_nested(
            base.model_dump(), {**self.changes, "smoke": self.smoke, "tuning": self.tuning, **identity}
        )
        return parse(Case, {"schema": Case.schema_name(), **content}, f"{origin}: changes to {base.name}")
