"""Takes private words out of texts that go into a store: paths of the machine, its name, and names of its users.

A text keeps its meaning: `(path)/train.py` for a path, `(host)` and `(user)` for names. A variable whose value holds a
path becomes a digest of it, so that a change still shows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_json

from levelfield.specs.variables import masked

# Of every system; what lies there says nothing about a person or a company.
_PUBLIC = ("/usr/", "/proc/", "/sys/", "/dev/", "/lib/", "/lib64/", "/etc/", "/bin/", "/sbin/")
_PATH = re.compile(r"(?:\bfile://|(?<![\w./~-]))(?:(?:/[\w.@+%=-]+){2,}/?|~/[\w.@+%=/-]+)")
_USER = re.compile(r"/(?:home|Users)/([\w.-]+)")
_SHORTEST = 3  # a host named `vm` tells nothing, and its letters are part of other words
_NOBODY = {"root", "user", "users", "localhost", "shared", "public"}


class PrivateTexts:
    """Replaces private words. hosts: names of the machine. known: public words that a name may be equal to.

    texts: the run's own documents, in which users' folders are found.
    """

    def __init__(self, hosts: Iterable[str], known: Iterable[str], texts: Iterable[str] = ()) -> None:
        kept = _NOBODY | {word.lower() for word in known}
        users = {name for text in texts for name in _USER.findall(text)}
        self._words = {
            name: word
            for word, names in (("(user)", users), ("(host)", hosts))
            for name in names
            if len(name) >= _SHORTEST and name.lower() not in kept
        }
        names = "|".join(map(re.escape, sorted(self._words, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])") if names else None

    def text(self, text: str) -> str:
        """Return the text without private words."""
        if "/" in text:
            text = _PATH.sub(_without_folder, text)
        return self._names.sub(lambda match: self._words[match[0]], text) if self._names else text

    def value(self, value: JsonValue) -> Any:
        """Return a JSON value with all its texts as `text` gives them. Keys stay."""
        written = to_json(value).decode()
        has_none = (
            "\\" not in written and not _PATH.search(written) and not (self._names and self._names.search(written))
        )
        return value if has_none else self._replaced(value)

    def _replaced(self, value: JsonValue) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self._replaced(each) for key, each in value.items()}
        return [self._replaced(each) for each in value] if isinstance(value, list) else value

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables with masked secrets, and a digest in place of a value that holds a private word."""
        found = {name: (text, self.text(text)) for name, text in masked(variables).items()}
        return {name: kept if kept == text else _digest(text) for name, (text, kept) in found.items()}


def _without_folder(match: re.Match[str]) -> str:
    """Return `(path)`, with the file's name where it has a suffix and lies deeper than a user's folder."""
    path = match[0]
    if path.startswith(_PUBLIC):
        return path
    name = path.rstrip("/").rpartition("/")[2]
    is_deep = (path.count("/") > 2 or path.startswith("~")) and re.search(r"[^.]\.\w{1,5}$", name)
    return f"(path)/{name}" if is_deep else "(path)"


def _digest(text: str) -> str:
    return f"(private, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"
