"""The base of every document: frozen, closed and versioned, with a digest and with errors that name the fault."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from levelfield.errors import DocumentError
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.changed_types import changed_types

T = TypeVar("T", bound="Value")
# json_schema_extra of a field that came after digests of its document had been stored: they stay as they were.
LATER: dict[str, JsonValue] = {"later": True}


def since(revision: int) -> dict[str, JsonValue]:
    """Return the mark of a later field of a document whose revisions are counted, such as the result."""
    return {**LATER, "since": revision}


def revision_of(field: FieldInfo) -> int | None:
    """Return the revision that a later field came with, 0 before they were counted; None for one of the first."""
    mark = field.json_schema_extra
    if not (isinstance(mark, dict) and mark.get("later")):
        return None
    found = mark.get("since", 0)
    return found if isinstance(found, int) else 0


class Value(BaseModel):
    """A frozen value with no unknown keys."""

    # A validator is built on first use: a command reads few kinds of the documents, and imports all.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def fingerprint(self) -> str:
        """Return the sha256 of the canonical JSON. Equal values have equal digests in every file format.

        A field that is marked LATER counts only where it differs from its default.
        """
        text = json.dumps(_digested(self, self.model_dump(mode="json")), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the document as JSON text, with keys in the order of the schema and a final newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


class Document(Value):
    """A value that is stored in a file. `schema` names its kind and version."""

    KIND: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1

    @classmethod
    def schema_name(cls) -> str:
        return f"levelfield.{cls.KIND}/{cls.VERSION}"


def parse(cls: type[T], content: Any, origin: str) -> T:
    """Validate `content` as `cls`. Raises DocumentError with origin, key, found and expected."""
    if not isinstance(content, dict):
        raise DocumentError(f"{origin}: found {type(content).__name__}, expected a mapping of keys to values")
    content = dict(content)
    if issubclass(cls, Document):
        _check_schema(cls, content.pop("schema", None), origin)
    try:
        value = cls.model_validate(content)
    except ValidationError as error:
        raise DocumentError(_explain(error, origin, cls)) from None
    if changed := [f"{origin}: {_key(place)}: {said}" for place, said in changed_types(content, value)]:
        raise DocumentError("\n".join(sorted(changed)))
    return value


def dump(document: Document) -> str:
    """Return a document as JSON text with its schema first. `load` reads it back."""
    body = {"schema": document.schema_name(), **document.model_dump(mode="json")}
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def load(cls: type[T], path: Path) -> T:
    """Read a YAML or JSON document. Raises DocumentError when it is missing, unreadable or wrong."""
    return parse(cls, read_mapping(path), str(path))


def _digested(value: Any, dumped: Any) -> Any:
    """Return `dumped`, the content of `value`, without the later fields that have their defaults."""
    if isinstance(value, Value):
        fields = type(value).model_fields.items()
        names = {name for name, field in fields if revision_of(field) is not None and _is_default(value, name)}
        return {name: _digested(getattr(value, name), dumped[name]) for name in dumped if name not in names}
    if isinstance(value, dict) and isinstance(dumped, dict):
        return {name: _digested(each, old) for each, (name, old) in zip(value.values(), dumped.items(), strict=True)}
    if isinstance(value, (list, tuple)):
        return [_digested(each, old) for each, old in zip(value, dumped, strict=True)]
    return dumped


def _is_default(value: Value, name: str) -> bool:
    default = type(value).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(value, name) == default)


def _check_schema(cls: type[Document], found: Any, origin: str) -> None:
    expected = cls.schema_name()
    if found != expected:
        raise DocumentError(f"{origin}: key 'schema': found {found!r}, expected '{expected}'")


def _explain(error: ValidationError, origin: str, cls: type[Value]) -> str:
    details = error.errors(include_url=False)
    return "\n".join(f"{origin}: {_key(e['loc'])}: {_description(e, cls)}" for e in details)


def _key(location: tuple[int | str, ...]) -> str:
    return f"key '{'.'.join(str(part) for part in location)}'" if location else "document"


def _description(detail: Any, cls: type[Value]) -> str:
    if detail["type"] == "missing":
        return "missing; it is required"
    if detail["type"] == "extra_forbidden":
        known = sorted(_fields_at(cls, detail["loc"][:-1]))
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=3)
        offer = f"nearest: {', '.join(near)}; all: {', '.join(known)}" if near else f"known: {', '.join(known)}"
        return f"unknown key (found {_short(detail['input'])}); {offer if known else 'remove it or correct its name'}"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    return f"found {_short(detail['input'])}, expected: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _fields_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> Iterable[str]:
    """Return the keys of the value at a location inside `cls`; none where the location leads into no single type."""
    types: list[Any] = [cls]
    for part in location:
        inner = [t.model_fields[part].annotation for t in types if part in getattr(t, "model_fields", ())]
        types = [model for annotation in inner or types for model in models_of(annotation)]
    return types[0].model_fields if len(types) == 1 else ()


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the documents' types inside an annotation such as `dict[str, Peak] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_of(argument)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
