"""The base of every document: frozen, closed and versioned, with a digest and with errors that name the fault."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from levelfield.errors import DocumentError
from levelfield.specs.bounded_reading import bounded_text, parse_mapping, read_mapping
from levelfield.specs.readable_json import json_text
from levelfield.specs.short_names import clipped

T = TypeVar("T", bound="Value")
D = TypeVar("D", bound="Document")
# json_schema_extra of a field that was added after digests of its document had been stored. A default of it is left
# out of the digest, so that the stored ones still hold.
LATER: dict[str, JsonValue] = {"later": True}
KeyPath = tuple[int | str, ...]
# What was expected, by pydantic's type of the error, in the words of the other messages.
_EXPECTED = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list, as in [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number, without a unit"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number, without a unit"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **{"string_type": "a text", "finite_number": "a finite number", "literal_error": "{expected}"},
    **{"greater_than": "more than {gt}", "greater_than_equal": "at least {ge}"},
    **{"less_than": "less than {lt}", "less_than_equal": "at most {le}"},
    **{"too_short": "at least {min_length} entries", "too_long": "at most {max_length} entries"},
    **{"string_too_short": "at least {min_length} characters", "string_too_long": "at most {max_length} characters"},
    **{"string_pattern_mismatch": "a text that matches {pattern}"},
}
MAX_FAULTS = 20  # faults of one document that are printed
_MAX_VALUE, _MAX_KEY, _MAX_REASON = 60, 200, 2000  # characters in a message
_KIND_TEXTS = {bool: "true or false", int: "a whole number", float: "a number"}

# Bounds of whole numbers, far above what exists. The platform takes steps, ranks, layers and experts one after another:
# a slip of the finger, or a document of somebody else, ends with the key's name instead of hours, or of all memory.
_MAX_DIGITS = 20  # of a number in a text; Python refuses to read one of 5,000
MAX_STEPS = 10_000_000
MAX_GRADIENT_STEPS = 10_000
MAX_LAYERS = 10_000
MAX_EXPERTS = 10_000  # of one layer
MAX_NODES = 100_000
MAX_DEVICES = 1_024  # of one node
MAX_RANKS = 2**20  # of one run
MAX_REPEATS = 1_000  # of one command
MAX_THREADS = 4_096  # of one process
MAX_SIZE = 10**12  # of a width, a vocabulary, a length or a batch: only computed with


def sha256_of(content: bytes) -> str:
    """Return the digest of some bytes, such as `sha256:9f86d0...`."""
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
        return json_digest(_digest_content(self, self.model_dump(mode="json")))

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
        schema_text = clipped(repr(schema), _MAX_VALUE)
        raise DocumentError(f"{origin}: key 'schema': found {schema_text}, expected '{cls.schema_name()}'")
    try:
        value = cls.model_validate(content)
    except ValidationError as error:
        faults = _causes(error.errors(include_url=False))
        first_faults = [(fault["loc"], fault_text(fault, cls)) for fault in faults[:MAX_FAULTS]]
        raise DocumentError(_fault_lines(origin, first_faults, len(faults))) from None
    if changed := sorted(type_changes(content, value), key=lambda change: _key_text(change[0])):
        raise DocumentError(_fault_lines(origin, changed, len(changed)))
    return value


def _fault_lines(origin: str, faults: Sequence[tuple[KeyPath, str]], count: int) -> str:
    """Return a line for each of the first faults, and how many there are beside them."""
    lines = [f"{origin}: {_key_text(key_path)}: {text}" for key_path, text in faults[:MAX_FAULTS]]
    return "\n".join([*lines, *([f"{origin}: and {count - len(lines):,} more"] if count > len(lines) else [])])


def _causes(faults: Sequence[Any]) -> list[Any]:
    """Return the faults without those that follow from others: a list whose items are wrong counts as too short."""
    wrong = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in wrong]


def dump(document: Document) -> str:
    """Return a document as JSON text with its schema first. `load` reads it back."""
    body = {"schema": document.schema_name(), **document.model_dump(mode="json")}
    return json_text(body) + "\n"


def load(cls: type[D], path: Path) -> D:
    """Read a YAML or JSON document. Raises DocumentError when it is missing, unreadable or wrong."""
    return parse(cls, read_mapping(path, cls.KIND), str(path))


def _digest_content(value: Any, dumped: Any) -> Any:
    """Return `dumped`, the content of `value`, without the later fields that have their defaults."""
    if isinstance(value, Value):
        later = {name: field for name, field in type(value).model_fields.items() if field.json_schema_extra == LATER}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in later.items()}
        unused = {name for name, default in defaults.items() if getattr(value, name) == default}
        return {name: _digest_content(getattr(value, name), dumped[name]) for name in dumped if name not in unused}
    if isinstance(value, dict) and isinstance(dumped, dict):
        return {
            name: _digest_content(part, dumped_part)
            for part, (name, dumped_part) in zip(value.values(), dumped.items(), strict=True)
        }
    if isinstance(value, (list, tuple)):
        return [_digest_content(part, dumped_part) for part, dumped_part in zip(value, dumped, strict=True)]
    return dumped


def _key_text(key_path: KeyPath) -> str:
    """Return the key as messages name it."""
    return f"key '{clipped('.'.join(map(str, key_path)), _MAX_KEY)}'" if key_path else "document"


def fault_text(fault: Any, cls: type[Value]) -> str:
    """Return what was found and expected. fault: an error of pydantic in a document of type `cls`."""
    if fault["type"] == "missing":
        return "missing; it is required"
    value = f"found {clipped(repr(fault['input']), _MAX_VALUE)}"
    if fault["type"] == "extra_forbidden":
        keys = sorted(_fields_at(cls, fault["loc"][:-1]))
        nearest = difflib.get_close_matches(str(fault["loc"][-1]), keys, n=3)
        hint = f"nearest: {', '.join(nearest)}; all: {', '.join(keys)}" if nearest else f"known: {', '.join(keys)}"
        return f"unknown key ({value}); {hint if keys else 'remove it or correct its name'}"
    if fault["type"] == "value_error":
        return clipped(str(fault["ctx"]["error"]), _MAX_REASON)
    if fault["type"] in _EXPECTED:
        expected = _EXPECTED[fault["type"]].format_map(fault.get("ctx", {}))
        return f"{value}, expected {expected}"
    return f"{value}, expected: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _fields_at(cls: type[BaseModel], key_path: KeyPath) -> Iterable[str]:
    """Return the keys of the value at a location inside `cls`; none where the location leads into no single type."""
    types: list[Any] = [cls]
    for part in key_path:
        inner = [t.model_fields[part].annotation for t in types if part in getattr(t, "model_fields", ())]
        types = [model for annotation in inner or types for model in models_of(annotation)]
    return types[0].model_fields if len(types) == 1 else ()


def unknown_key_texts(cls: type[Value], content: Mapping[str, Any], key_path: KeyPath = ()) -> Iterator[str]:
    """Yield each key of a part of a `cls` that it does not have, with the nearest ones that it has."""
    keys = _fields_at(cls, key_path)
    for name, value in content.items():
        location = (*key_path, name)
        if keys and name not in keys:
            fault = {"type": "extra_forbidden", "loc": location, "input": value}
            yield f"{clipped('.'.join(map(str, location)), _MAX_KEY)}: {fault_text(fault, cls)}"
        elif isinstance(value, dict):
            yield from unknown_key_texts(cls, value, location)


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the documents' types inside an annotation such as `dict[str, Peak] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_of(argument)


def type_changes(content: Any, value: Any, key_path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys whose value changed its type in validation, each with what was found and expected.

    content: the document before validation. value: after it. Types are texts, truth values and numbers: a whole number
    as a float, or 3.0 as a whole number, is no change.
    """
    if isinstance(content, dict):
        fields = vars(value) if isinstance(value, BaseModel) else value if isinstance(value, dict) else {}
        for name in content.keys() & fields.keys():
            yield from type_changes(content[name], fields[name], (*key_path, name))
    elif isinstance(content, (list, tuple)) and isinstance(value, (list, tuple)):
        if {*map(type, content), *map(type, value)} <= {float, int}:
            return  # no need to look at each loss of a long run
        for index, (part, validated) in enumerate(zip(content, value, strict=False)):
            yield from type_changes(part, validated, (*key_path, index))
    elif type(value) in _KIND_TEXTS and _kind(content) is not _kind(value):
        yield key_path, f"found {clipped(repr(content), _MAX_VALUE)}, expected {_KIND_TEXTS[type(value)]}"


def _kind(value: Any) -> type:
    """Return the type, where all numbers have one. Python's bool is an int, but true and false are no numbers here."""
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def parse_digits(digits: str) -> int:
    """Return the number that a text of digits states. Raises ValueError for one that is far above every bound."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"found a number of {len(digits):,} digits, expected at most {_MAX_DIGITS}")
    return int(digits)


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in order."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


# Each registry of a process reads the same files, so that a text is parsed once. No caller changes the content.
_cached_content = lru_cache(maxsize=1024)(parse_mapping)


@lru_cache(maxsize=1024)
def _cached_document(kind: type[D], path: Path, text: str) -> D:
    return parse(kind, _cached_content(path, text), str(path))


class DocumentCache:
    """The content and the documents of the files that were read so far."""

    def __init__(self) -> None:
        self._contents: dict[Path, Any] = {}
        self._documents: dict[tuple[type[Value], Path], Value] = {}

    def content(self, path: Path, kind: str) -> Any:
        """Return the raw content of a YAML or JSON file. Raises DocumentError when it cannot be read.

        kind: a key of MAX_BYTES_BY_KIND of node/file_sizes.py.
        """
        if path not in self._contents:
            self._contents[path] = _cached_content(path, bounded_text(path, kind))
        return self._contents[path]

    def document(self, kind: type[D], path: Path) -> D:
        """Return the document in this file. Raises DocumentError when it is missing, unreadable or wrong."""
        if (kind, path) not in self._documents:
            self._documents[kind, path] = _cached_document(kind, path, bounded_text(path, kind.KIND))
        return cast(D, self._documents[kind, path])
