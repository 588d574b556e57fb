"""Values of YAML's unquoted words: by YAML 1.2, and refused where YAML 1.1 has another number, or true or false.

Many programs read YAML 1.1, in which `017` is 15, `1:30` is 90 and `no` is false. The rules here are the core schema of
1.2: https://yaml.org/spec/1.2.2/#103-core-schema. So `1e3` is a number, which it is not in 1.1, and a date is a text.
`<<` merges mappings, as in 1.1.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_CORE = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<bool>true|True|TRUE|false|False|FALSE)"
    r"|(?P<int>[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
    r"|(?P<merge><<)"
)
_WORDS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}
# Numbers of 1.1 that are none in 1.2, or other ones: with a leading zero, base 2, base 60, or "_" between digits.
_SUSPECT = re.compile(r"[-+]?(?:0[0-9bx]\S*|[.0-9][0-9a-fA-F.]*[_:]\S*)")
_MOST = 25  # characters of a number whose values are shown


class DifferentValues(ValueError):
    """A word that has two values. line: its line in the file, from 1."""

    def __init__(self, line: int, said: str) -> None:
        super().__init__(said)
        self.line = line


def tag_of(word: str) -> str:
    """Return the tag of an unquoted word by YAML 1.2. What is nothing else is a text."""
    match = _CORE.fullmatch(word)
    return _TAG + str(match.lastgroup if match else "str")


def whole_number(word: str) -> int:
    """Return the value of a word with the tag of a whole number. Raises ValueError for another word."""
    return int(word, 0) if word[:2] in ("0o", "0x") else int(word.replace("_", "x"))


def check(node: yaml.ScalarNode) -> None:
    """Raises DifferentValues for an unquoted word that is another number, or true or false, in YAML 1.1."""
    if not node.style and (said := _difference(node.value)):
        raise DifferentValues(node.start_mark.line + 1, f"found {said}")


class WordDumper(yaml.SafeDumper):
    """Writes texts with quotes where a version of YAML reads another value without them."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node without quotes. The dumper writes them where it is not the value's own."""
        old = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is not yaml.ScalarNode or not implicit[0] or old != _TAG + "str":
            return old
        return _TAG + "bool" if value in _WORDS else tag_of(value)


def _difference(word: str) -> str | None:
    if word in _WORDS:
        return _said(word, _WORDS[word], word)
    if not _SUSPECT.fullmatch(word):
        return None
    if len(word) > _MOST:
        return f"{word[:_MOST]}..., which is not the same in YAML 1.1 and 1.2; write it with quotes for a text"
    old, new = yaml.safe_load(word), whole_number(word) if tag_of(word) == _TAG + "int" else _decimal(word)
    return None if (type(old), old) == (type(new), new) else _said(word, old, new)


def _decimal(word: str) -> float | str:
    return float(word) if tag_of(word) == _TAG + "float" else word


def _said(word: str, old: Any, new: Any) -> str:
    shown = ["a text" if isinstance(value, str) else str(value).lower() for value in (old, new)]
    write = ", ".join(value for value in shown if value != "a text")
    return f"{word}, which is {shown[0]} in YAML 1.1 and {shown[1]} in YAML 1.2; write {write} or '{word}'"
