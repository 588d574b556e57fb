"""Reads YAML and JSON files that anyone may have written: bounded in depth, in values and in the size of numbers.

Words without quotes are read by `yaml_words`. A file beyond a bound is an error that names the file and the bound.
Nothing here crashes or fills the memory.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from levelfield.errors import DocumentError
from levelfield.node.regular_files import read_regular_text
from levelfield.specs.plain_json import plain_json
from levelfield.specs.yaml_words import DifferentValues, check, tag_of, whole_number

MOST_BYTES = 64 * 2**20  # of a file; the largest of the repository has 60 KB
MOST_LEVELS = 100  # of nested lists and mappings; the interpreter's own stack ends some hundreds deeper
MOST_VALUES = 1_000_000  # with every alias of YAML counted as what it stands for
MOST_DIGITS = 25  # of a whole number; 2**64 has 20
_SHOWN = 60  # characters of a line in a message
_OF_TAGS = (ValueError, LookupError, TypeError, AttributeError)  # of PyYAML for a value such as `!!bool maybe`


def read_mapping(path: Path) -> Any:
    """Return the raw content of a YAML or JSON file. Raises DocumentError when it cannot be read."""
    text = _text(path)
    try:
        if path.suffix == ".json":
            return _json(text)
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except DifferentValues as error:
        line = text.splitlines()[error.line - 1].strip()[:_SHOWN]
        raise DocumentError(f"{path}: line {error.line}, `{line}`: {error}") from None
    except (yaml.YAMLError, *_OF_TAGS) as error:
        kind = path.suffix.lstrip(".") or "YAML"
        raise DocumentError(f"{path}: not valid {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError(f"{path}: found lists and mappings nested too deep, expected few levels") from None


def _json(text: str) -> Any:
    try:
        return plain_json(text.encode())
    except ValueError:
        return json.loads(text, object_pairs_hook=_object_without_duplicates, parse_int=_whole_number)


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DocumentError(f"{path}: found {size:,} bytes, expected at most {MOST_BYTES:,}")
        return read_regular_text(path)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: not UTF-8 text: byte {error.start}") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that rejects duplicate keys. Other loaders silently use the last one."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node that has none in the file."""
        return tag_of(value) if kind is yaml.ScalarNode and implicit[0] else super().resolve(kind, value, implicit)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode):
            check(node)
        return super().construct_object(node, deep)


def _check_events(text: str) -> None:
    """Raises ValueError for a text that is nested too deep, or whose aliases stand for too many values.

    The parser's events come one by one; the loader's own recursion would end the process on a deep text.
    """
    count = _ValueCount()
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            count.open(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            count.close()
        elif isinstance(event, yaml.ScalarEvent):
            count.add(1, event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            count.add(count.sizes.get(str(event.anchor), 1))


class _ValueCount:
    """The values of a document so far. sizes: those of each anchored node. _open: of each open list or mapping."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._open: list[tuple[str | None, int]] = []

    def open(self, anchor: str | None) -> None:
        self._open.append((anchor, 1))
        if len(self._open) > MOST_LEVELS:
            raise ValueError(f"found more than {MOST_LEVELS} nested levels")

    def close(self) -> None:
        anchor, size = self._open.pop()
        self.add(size, anchor)

    def add(self, size: int, anchor: str | None = None) -> None:
        """Add a node of `size` values to the list or mapping that holds it."""
        if anchor is not None:
            self.sizes[anchor] = size
        if self._open:
            above, before = self._open.pop()
            size += before
            self._open.append((above, size))
        if size > MOST_VALUES:
            raise ValueError(f"found more than {MOST_VALUES:,} values, with what aliases stand for")


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"found a number of {len(text)} digits, expected at most {MOST_DIGITS}")
    return int(text)


def _yaml_whole_number(loader: Any, node: Any) -> int:
    if len(node.value) > MOST_DIGITS:
        message = f"found a number of {len(node.value)} digits, expected at most {MOST_DIGITS}"
        raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
    return whole_number(node.value)


def _mapping_without_duplicates(loader: Any, node: Any) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue  # `<<` adds defaults; YAML defines that keys beside it override them
        key = loader.construct_object(key_node, deep=True)
        message = None
        if not isinstance(key, Hashable):
            message = f"found a {type(key).__name__} as a key, expected a text"
        elif key in seen:
            message = f"found key '{key}' twice, expected it once"
        if message:
            raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"found key '{next(k for k in keys if keys.count(k) > 1)}' twice, expected it once")
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)
_Loader.add_constructor("tag:yaml.org,2002:int", _yaml_whole_number)
