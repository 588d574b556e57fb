"""Placeholders for what names people, machines and places: for files that leave the machine.

Equal texts get equal placeholders within one bundle, so a reader still sees what belongs together. No list of forms is
complete: read a bundle before you publish it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from levelfield.rundir.event_lines import mapping, sequence
from levelfield.rundir.seal import UUID_PATTERN, VARIABLE_KEYS
from levelfield.specs.variables import MASK, SECRET_VALUE, is_influential_or_maker, is_secret, mask_secrets

LEFT_OUT_VALUE = "(left out)"
PATH_PREFIX = "/redacted"  # every placeholder for a path begins so
# Folders that every machine has; what is below them names nobody.
_COMMON_FOLDERS = "redacted|usr|bin|sbin|lib|lib64|etc|proc|sys|dev"
_SEGMENT = r"[^\s/\"'`<>|;,()\[\]{}=:*?\\&$#!^]+"
_PATH = re.compile(rf"(?<![\w./~-])/(?!(?:{_COMMON_FOLDERS})(?:/|\b)){_SEGMENT}(?:/{_SEGMENT})+/?")
_PRIVATE_KEY = re.compile(r"-{5}BEGIN [A-Z ]*PRIVATE KEY-{5}.*?(?:-{5}END [A-Z ]*PRIVATE KEY-{5}|\Z)", re.DOTALL)
_ASSIGNMENT = re.compile(r"\b([A-Za-z_]\w*)=(?:\"[^\"\n]{4,}\"|'[^'\n]{4,}'|[^\s\"']{4,})")
HOME_OWNER = re.compile(r"/(?:home|Users)/([^\s/\"'`:;,\\]+)")
_PUBLIC_NAMES = ("root", "localhost", "")
_HOST_KEYS = ("name", "hostname", "address", "first_node")
_PUBLIC_HOSTS = re.compile(r"node[0-9]*|127\..*|::1|\{.*\}|")  # a node's number, this machine, a template
_MIN_NAME_CHARACTERS = 3  # characters; a shorter name is part of too many words


def find_hosts(value: Any, key: str = "") -> set[str]:
    """Return the names and addresses of machines in a JSON value: of its nodes, and of the hosts of its launch."""
    if isinstance(value, list):
        return {host for item in value for host in find_hosts(item, key)}
    if not isinstance(value, dict):
        return set()
    nested_hosts = {host for name, item in value.items() for host in find_hosts(item, name)}
    if key != "hosts" and not ("node_rank" in value and value.keys() & {"name", "hostname"}):
        return nested_hosts
    records = [value, *map(mapping, mapping(value.get("interfaces")).values())]  # their addresses name the machine too
    texts = [text for record in records for text in (*map(record.get, _HOST_KEYS), *sequence(record.get("addresses")))]
    return nested_hosts | {text for text in texts if isinstance(text, str) and not _PUBLIC_HOSTS.fullmatch(text)}


class Placeholders:
    """The replacements of one bundle. roots: the placeholder of each known folder. hosts, users: names.

    words: of the runs; a name that is one of them, such as a user `torch`, is not replaced.
    unredacted_count: how many such names there are.
    counts: how often each placeholder was set, by kind and placeholder.
    """

    def __init__(self, roots: Mapping[str, str], hosts: Iterable[str], users: Iterable[str], words: Iterable[str]):
        self.counts: Counter[tuple[str, str]] = Counter()
        self._numbers: dict[tuple[str, str], str] = {}
        self._roots = {place.rstrip("/"): f"{PATH_PREFIX}/{name}" for place, name in roots.items() if len(place) > 1}
        unreplaced = {*_PUBLIC_NAMES, *words}
        self.unredacted_count = len((unreplaced - {*_PUBLIC_NAMES}) & {*hosts, *users})
        self._hosts, self._users = {*hosts} - unreplaced, {*users} - unreplaced
        names = sorted(
            (n for n in self._hosts | self._users if len(n) >= _MIN_NAME_CHARACTERS), key=lambda n: (-len(n), n)
        )
        self._name_pattern = _alternatives(names, r"(?<![A-Za-z0-9_])(?:{})(?![A-Za-z0-9_])")
        places = sorted(self._roots, key=lambda place: (-len(place), place))
        self._root_pattern = _alternatives(places, r"(?:{})(?![\w.-])")

    def redact_text(self, text: str) -> str:
        """Return the text with placeholders."""
        steps: tuple[tuple[re.Pattern[str] | None, Callable[[re.Match[str]], str]], ...] = (
            (_PRIVATE_KEY, lambda match: self._count("secret", MASK)),
            (SECRET_VALUE, lambda match: self._count("secret", MASK)),
            (self._root_pattern, lambda match: self._count("folder", self._roots[match[0]])),
            (_PATH, lambda match: self._numbered_placeholder("path", match[0])),
            (UUID_PATTERN, lambda match: self._numbered_placeholder("device", match[0])),
            (self._name_pattern, lambda match: self._numbered_placeholder(self._kind(match[0]), match[0])),
        )
        for pattern, replacement in steps:
            text = pattern.sub(replacement, text) if pattern else text
        return text

    def redact_log(self, text: str) -> str:
        """Return the text of a log, in which the value of `NAME=value` may be a secret too."""
        return self.redact_text(_ASSIGNMENT.sub(self._redact_assignment, text))

    def redact_value(self, value: Any, key: str = "") -> Any:
        """Return a JSON value with placeholders in its texts. key: of the value; some hold environment variables."""
        if isinstance(value, str):
            return self._redact_whole_text(value)
        if isinstance(value, list):
            return [self.redact_value(item) for item in value]
        if not isinstance(value, dict):
            return value
        if key in VARIABLE_KEYS and all(isinstance(text, str) for text in value.values()):
            value = self._redact_variables(value, key == "inherited")
        return {self.redact_text(name): self.redact_value(item, name) for name, item in value.items()}

    def _redact_variables(self, variables: dict[str, str], is_inherited: bool) -> dict[str, str]:
        """Return the variables without secrets; inherited ones also without values that no training reads."""
        masked_variables = mask_secrets(variables)
        if count := sum(masked_variables[name] != text for name, text in variables.items()):
            self.counts["secret", MASK] += count
        foreign = {
            name
            for name, text in masked_variables.items()
            if is_inherited and text != MASK and not is_influential_or_maker(name)
        }
        return {
            name: self._count("variable", LEFT_OUT_VALUE) if name in foreign else masked_variables[name]
            for name in masked_variables
        }

    def _redact_whole_text(self, text: str) -> str:
        """Return a text that may be one name as a whole, however short, or one path, with blanks in it."""
        if text in self._hosts | self._users:
            return self._numbered_placeholder(self._kind(text), text)
        is_path = re.fullmatch(rf"/(?!(?:{_COMMON_FOLDERS})(?:/|\b))[^:\n/]+(?:/[^:\n/]+)+/?", text)
        if is_path and not (self._root_pattern and self._root_pattern.match(text)):
            return self._numbered_placeholder("path", text)
        return self.redact_text(text)

    def _redact_assignment(self, match: re.Match[str]) -> str:
        return f"{match[1]}={self._count('secret', MASK)}" if is_secret(match[1], "") else match[0]

    def _kind(self, name: str) -> str:
        return "host" if name in self._hosts else "user"

    def _numbered_placeholder(self, kind: str, text: str) -> str:
        """Return the placeholder of a text: of the first path `/redacted/path-1`, of the first host `host-1`."""
        if (kind, text) not in self._numbers:
            number = 1 + sum(other == kind for other, _ in self._numbers)
            self._numbers[kind, text] = f"{PATH_PREFIX}/path-{number}" if kind == "path" else f"{kind}-{number}"
        return self._count(kind, self._numbers[kind, text])

    def _count(self, kind: str, placeholder: str) -> str:
        self.counts[kind, placeholder] += 1
        return placeholder


def json_words(value: Any) -> set[str]:
    """Return every key and every text of a JSON value."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return {word for item in value for word in json_words(item)}
    if isinstance(value, dict):
        return {*value, *(word for item in value.values() for word in json_words(item))}
    return set()


def redact_json(content: bytes, redact_value: Callable[[Any], Any]) -> bytes | None:
    """Return a JSON text with placeholders, or the same bytes where nothing was replaced; None for what is no JSON."""
    try:
        value = json.loads(content)
        replaced = redact_value(value)
    except (ValueError, RecursionError):
        return None
    if replaced == value:
        return content
    is_one_line = b"\n" not in content.rstrip(b"\n")
    text = json.dumps(replaced, ensure_ascii=is_one_line, indent=None if is_one_line else 2)
    return text.encode() + content[len(content.rstrip(b"\n")) :]


def _alternatives(words: list[str], form: str) -> re.Pattern[str] | None:
    return re.compile(form.format("|".join(map(re.escape, words)))) if words else None
