"""Reads YAML and JSON files that anyone may have written: bounded in depth, in values and in the size of numbers.

A file beyond a bound is an error that names the file and the bound. Nothing here crashes or fills the memory.

YAML's words without quotes are read by the core schema of 1.2: https://yaml.org/spec/1.2.2/#103-core-schema. So `1e3`
is a number, which it is not in 1.1, and a date is a text. `<<` merges mappings, as in 1.1. Many programs read YAML 1.1,
in which `017` is 15, `1:30` is 90 and `no` is false: such words are refused.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import from_json, to_json

from levelfield.errors import DocumentError
from levelfield.node.regular_files import read_regular

MAX_LEVELS = 100  # of nested lists and mappings; the interpreter's own stack ends some hundreds deeper
MAX_VALUES = 1_000_000  # with every alias of YAML counted as what it stands for
MAX_DIGITS = 25  # of a whole number; 2**64 has 20
_MAX_LINE_CHARACTERS = 60  # characters of a line in a message
_TAG_ERRORS = (ValueError, LookupError, TypeError, AttributeError)  # of PyYAML for a value such as `!!bool maybe`
MAX_PLAIN_LEVELS = 32  # of a JSON text that `plain_json` reads
_DEEP_INDENT = b"\n" + b" " * MAX_PLAIN_LEVELS
_DIGITS_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
_TAG = "tag:yaml.org,2002:"
_CORE_SCHEMA = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<bool>true|True|TRUE|false|False|FALSE)"
    r"|(?P<int>[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<merge><<)"
)
_BOOLEAN_WORDS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
# Numbers of 1.1 that are none in 1.2, or other ones: with a leading zero, base 2, base 60, or "_" between digits.
_AMBIGUOUS_NUMBER = re.compile(r"[-+]?(?:0[0-9bx]\S*|[.0-9][0-9a-fA-F.]*[_:]\S*)")
_MAX_NUMBER_CHARACTERS = 25  # characters of a number whose values are shown


def read_mapping(path: Path, kind: str) -> Any:
    """Return the raw content of a YAML or JSON file. Raises DocumentError when it cannot be read.

    kind: a key of MAX_BYTES_BY_KIND of node/file_sizes.py.
    """
    return parse_mapping(path, bounded_text(path, kind))


def parse_mapping(path: Path, text: str) -> Any:
    """Return the raw content of a file with this text. Raises DocumentError when it is not valid."""
    try:
        if path.suffix == ".json":
            try:
                return plain_json(text.encode())
            except ValueError:
                return json.loads(text, object_pairs_hook=unique_keys, parse_int=bounded_integer)
        _check_events(text)
        return yaml.load(text, Loader=_Loader)
    except AmbiguousWordError as error:
        line = text.splitlines()[error.line - 1].strip()[:_MAX_LINE_CHARACTERS]
        raise DocumentError(f"{path}: line {error.line}, `{line}`: {error}") from None
    except (yaml.YAMLError, *_TAG_ERRORS) as error:
        kind = path.suffix.lstrip(".") or "YAML"
        raise DocumentError(f"{path}: not valid {kind}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise DocumentError(f"{path}: found lists and mappings nested too deep, expected few levels") from None


def bounded_bytes(path: Path, kind: str) -> bytes:
    """Return the content of a file. Raises DocumentError when it cannot be read, or is too large for its kind."""
    try:
        return read_regular(path, kind)
    except OSError as error:
        reason = f"{error.strerror}" if error.errno == errno.EFBIG else f"cannot be read: {error.strerror}"
        raise DocumentError(f"{path}: {reason}") from None


def bounded_text(path: Path, kind: str) -> str:
    """Return the text of a file. Raises DocumentError as `bounded_bytes`, and for other bytes than UTF-8."""
    try:
        return bounded_bytes(path, kind).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: not UTF-8 text: byte {error.start}") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader that rejects duplicate keys. Other loaders silently use the last one."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node that has none in the file."""
        return _tag_of(value) if kind is yaml.ScalarNode and implicit[0] else super().resolve(kind, value, implicit)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Raises AmbiguousWordError for an unquoted word with another value in YAML 1.1."""
        if isinstance(node, yaml.ScalarNode) and not node.style and (message := _version_difference(node.value)):
            raise AmbiguousWordError(node.start_mark.line + 1, f"found {message}")
        return super().construct_object(node, deep)


def _check_events(text: str) -> None:
    """Raises ValueError for a text that is nested too deep, or whose aliases stand for too many values.

    The parser's events come one by one; the loader's own recursion would end the process on a deep text.
    """
    sizes: dict[str | None, int] = {}  # by anchor: how many values its node has
    counts, anchors = [0], list[str | None]()  # values and anchor, of the document and of each open list or mapping
    for event in yaml.parse(text, Loader=_Loader):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            counts.append(1)
            anchors.append(anchor)
            if len(anchors) > MAX_LEVELS:
                raise ValueError(f"found more than {MAX_LEVELS} nested levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = anchors.pop(), counts.pop()
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(anchor, 1)
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor is not None:
            sizes[anchor] = size
        counts[-1] += size
        if counts[-1] > MAX_VALUES:
            raise ValueError(f"found more than {MAX_VALUES:,} values, with what aliases stand for")


def bounded_integer(text: str) -> int:
    """Return the whole number that a JSON text states. Raises ValueError for one with too many digits."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"found a number of {len(text)} digits, expected at most {MAX_DIGITS}")
    return int(text)


def _yaml_whole_number(loader: Any, node: Any) -> int:
    if len(node.value) > MAX_DIGITS:
        message = f"found a number of {len(node.value)} digits, expected at most {MAX_DIGITS}"
        raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
    return _whole_number(node.value)


def _mapping_without_duplicates(loader: Any, node: Any) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _TAG + "merge":
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


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object. Raises ValueError for a key that is there twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated_key = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"found key '{repeated_key[:_MAX_LINE_CHARACTERS]}' twice, expected it once")
    return content


_Loader.add_constructor(_TAG + "map", _mapping_without_duplicates)
_Loader.add_constructor(_TAG + "int", _yaml_whole_number)


def plain_json(content: bytes) -> Any:
    """Return the value of a JSON text that clearly holds nothing refused, in half the time of json's.

    That is a text without keys that are there twice, NaN, infinities, deep nesting, endless digits and escapes by
    number. The value is written again, with a blank for each level. Each key has one colon in both texts, and so has
    each colon of a string, for no escape can write one. So a key that is there twice leaves fewer colons in the new
    text. Raises ValueError for any other text.
    """
    if b"\\u" in content or _LONG_NUMBER in content.translate(_DIGITS_TO_ZEROS):
        raise ValueError
    value = from_json(content, allow_inf_nan=False)
    rewritten = to_json(value, indent=1, inf_nan_mode="constants")  # a number such as 1e999 was read as an infinity
    if rewritten.count(b":") != content.count(b":") or _DEEP_INDENT in rewritten or b"Infinity" in rewritten:
        raise ValueError
    return value


class AmbiguousWordError(ValueError):
    """A word that has two values. line: its line in the file, from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _tag_of(word: str) -> str:
    """Return the tag of an unquoted word by YAML 1.2. What is nothing else is a text."""
    match = _CORE_SCHEMA.fullmatch(word)
    return _TAG + str(match.lastgroup if match else "str")


def _whole_number(word: str) -> int:
    """Return the value of a word with the tag of a whole number. Raises ValueError for another word."""
    return int(word, 0) if word[:2] in ("0o", "0x") else int(word.replace("_", "x"))


class WordDumper(yaml.SafeDumper):
    """Writes texts with quotes where a version of YAML reads another value without them."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node without quotes. The dumper writes them where it is not the value's own."""
        tag_of_1_1 = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is not yaml.ScalarNode or not implicit[0] or tag_of_1_1 != _TAG + "str":
            return tag_of_1_1
        return _TAG + "bool" if value in _BOOLEAN_WORDS else _tag_of(value)


def _version_difference(word: str) -> str | None:
    """Return what an unquoted word is in both versions of YAML, and what to write; None where it is the same."""
    value_in_1_1: Any
    value_in_1_2: Any
    if word in _BOOLEAN_WORDS:
        value_in_1_1, value_in_1_2 = _BOOLEAN_WORDS[word], word
    elif not _AMBIGUOUS_NUMBER.fullmatch(word):
        return None
    elif len(word) > _MAX_NUMBER_CHARACTERS:
        begin = word[:_MAX_NUMBER_CHARACTERS]
        return f"{begin}..., which is not the same in YAML 1.1 and 1.2; write it with quotes for a text"
    else:
        readers: dict[str, Callable[[str], Any]] = {_TAG + "int": _whole_number, _TAG + "float": float}
        value_in_1_1, value_in_1_2 = yaml.safe_load(word), readers.get(_tag_of(word), str)(word)
    if (type(value_in_1_1), value_in_1_1) == (type(value_in_1_2), value_in_1_2):
        return None
    texts = ["a text" if isinstance(value, str) else str(value).lower() for value in (value_in_1_1, value_in_1_2)]
    unambiguous = ", ".join(text for text in texts if text != "a text")
    return f"{word}, which is {texts[0]} in YAML 1.1 and {texts[1]} in YAML 1.2; write {unambiguous} or '{word}'"
