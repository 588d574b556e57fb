"""The base of every document: frozen, closed and versioned, with a digest and with errors that name the fault."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from levelfield.errors import DocumentError
from levelfield.specs.bounded_reading import bounded_text, mapping_of, read_mapping
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import clipped

T = TypeVar("T", bound="Value")
# json_schema_extra of a field that came after digests of its document had been stored: they stay as they were.
LATER: dict[str, JsonValue] = {"later": True}
Place = tuple[int | str, ...]
# What pydantic's kind of a fault expected, in the words of the other messages; of a limit the number follows.
_EXPECTED = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list, as in [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number, without a unit"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number, without a unit"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **{"string_type": "a text", "finite_number": "a finite number", "literal_error": "{expected}"},
    **{"greater_than": "more than {gt}", "greater_than_equal": "at least {ge}"},
    **{"less_than": "less than {lt}", "less_than_equal": "at most {le}"},
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}

# Bounds of whole numbers, far above what exists. The platform takes steps, ranks, layers and experts one after another:
# a slip of the finger, or a document of somebody else, ends with the key's name instead of hours, or of all memory.
_MOST_DIGITS = 20  # of a number in a text; Python refuses to read one of 5,000
MOST_STEPS = 10_000_000
MOST_GRADIENT_STEPS = 10_000
MOST_LAYERS = 10_000
MOST_EXPERTS = 10_000  # of one layer
MOST_NODES = 100_000
MOST_DEVICES = 1_024  # of one node
MOST_RANKS = 2**20  # of one run
MOST_REPEATS = 1_000  # of one command
MOST_THREADS = 4_096  # of one process
MOST_SIZE = 10**12  # of a width, a vocabulary, a length or a batch: only computed with


def sha256_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def json_digest(content: Any) -> str:
    """Return the sha256 of a JSON value in its canonical form."""
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


class Value(BaseModel):
    """A frozen value with no unknown keys."""

    # A validator is built on first use: a command reads few kinds of the documents, and imports all.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def fingerprint(self) -> str:
        """Return the sha256 of the canonical JSON. Equal values have equal digests in every file format.

        A field that is marked LATER counts only where it differs from its default.
        """
        return json_digest(_digested(self, self.model_dump(mode="json")))

    def to_json(self) -> str:
        """Return the document as JSON text, with keys in the order of the schema and a final newline."""
        return json_text(self.model_dump(mode="json")) + "\n"


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
    if issubclass(cls, Document) and (schema := content.pop("schema", None)) != cls.schema_name():
        raise DocumentError(f"{origin}: key 'schema': found {schema!r}, expected '{cls.schema_name()}'")
    try:
        value = cls.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        lines = (f"{origin}: {_key(fault['loc'])}: {description(fault, cls)}" for fault in faults)
        raise DocumentError("\n".join(lines)) from None
    if changed := [f"{origin}: {_key(place)}: {fault}" for place, fault in changed_types(content, value)]:
        raise DocumentError("\n".join(sorted(changed)))
    return value


def dump(document: Document) -> str:
    """Return a document as JSON text with its schema first. `load` reads it back."""
    body = {"schema": document.schema_name(), **document.model_dump(mode="json")}
    return json_text(body) + "\n"


def load(cls: type[T], path: Path) -> T:
    """Read a YAML or JSON document. Raises DocumentError when it is missing, unreadable or wrong."""
    return parse(cls, read_mapping(path), str(path))


def _digested(value: Any, dumped: Any) -> Any:
    """Return `dumped`, the content of `value`, without the later fields that have their defaults."""
    if isinstance(value, Value):
        later = {name: field for name, field in type(value).model_fields.items() if field.json_schema_extra == LATER}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in later.items()}
        unused = {name for name, default in defaults.items() if getattr(value, name) == default}
        return {name: _digested(getattr(value, name), dumped[name]) for name in dumped if name not in unused}
    if isinstance(value, dict) and isinstance(dumped, dict):
        return {name: _digested(part, old) for part, (name, old) in zip(value.values(), dumped.items(), strict=True)}
    if isinstance(value, (list, tuple)):
        return [_digested(part, old) for part, old in zip(value, dumped, strict=True)]
    return dumped


def _key(location: Place) -> str:
    return f"key '{'.'.join(str(part) for part in location)}'" if location else "document"


def description(detail: Any, cls: type[Value]) -> str:
    """Return what was found and expected, by a fault of pydantic in a document of type `cls`."""
    if detail["type"] == "missing":
        return "missing; it is required"
    value = f"found {clipped(repr(detail['input']), 60)}"
    if detail["type"] == "extra_forbidden":
        keys = sorted(_fields_at(cls, detail["loc"][:-1]))
        near = difflib.get_close_matches(str(detail["loc"][-1]), keys, n=3)
        offer = f"nearest: {', '.join(near)}; all: {', '.join(keys)}" if near else f"known: {', '.join(keys)}"
        return f"unknown key ({value}); {offer if keys else 'remove it or correct its name'}"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] in _EXPECTED:
        expected = _EXPECTED[detail["type"]].format_map(detail.get("ctx", {}))
        return f"{value}, expected {expected}"
    return f"{value}, expected: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _fields_at(cls: type[BaseModel], location: Place) -> Iterable[str]:
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


def changed_types(content: Any, value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Return where `content` has a text, or true or false, and `value`, its validated form, has a number, or reverse.

    Each comes with what was found and expected. A whole number as a float, or 3.0 as a whole number, is no change.
    """
    if isinstance(content, dict):
        fields = vars(value) if isinstance(value, BaseModel) else value if isinstance(value, dict) else {}
        for name in content.keys() & fields.keys():
            yield from changed_types(content[name], fields[name], (*place, name))
    elif isinstance(content, (list, tuple)) and isinstance(value, (list, tuple)):
        if {*map(type, content), *map(type, value)} <= {float, int}:
            return  # no need to look at each loss of a long run
        for index, (part, validated) in enumerate(zip(content, value, strict=False)):
            yield from changed_types(part, validated, (*place, index))
    elif type(value) in _KINDS and _kind(content) is not _kind(value):
        yield place, f"found {content!r}, expected {_KINDS[type(value)]}"


def _kind(value: Any) -> type:
    """Return the type, with one for all numbers. True and false are numbers to isinstance."""
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def number_of(digits: str) -> int:
    """Return the number that a text of digits is. Raises ValueError for one that is far above every bound."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"found a number of {len(digits):,} digits, expected at most {_MOST_DIGITS}")
    return int(digits)


def twice_in(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in order."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


# Each registry of a process reads the same files: what has the same text is parsed once. Nobody changes a content.
_content = lru_cache(maxsize=1024)(mapping_of)


@lru_cache(maxsize=1024)
def _document(kind: type[T], path: Path, text: str) -> T:
    return parse(kind, _content(path, text), str(path))


class DocumentCache:
    """The content and the documents of the files that were read so far."""

    def __init__(self) -> None:
        self._contents: dict[Path, Any] = {}
        self._documents: dict[tuple[type[Value], Path], Value] = {}

    def content(self, path: Path) -> Any:
        """Return the raw content of a YAML or JSON file. Raises DocumentError when it cannot be read."""
        if path not in self._contents:
            self._contents[path] = _content(path, bounded_text(path))
        return self._contents[path]

    def document(self, kind: type[T], path: Path) -> T:
        """Return the document in this file. Raises DocumentError when it is missing, unreadable or wrong."""
        if (kind, path) not in self._documents:
            self._documents[kind, path] = _document(kind, path, bounded_text(path))
        return cast(T, self._documents[kind, path])
