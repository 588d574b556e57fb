"""What anyone may put in the place of a file: a damaged, wrong, huge or endless one, or something that is no file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from fuzzing import damaged, damaged_bytes

LINE = 30_000_000  # bytes of a long line
Write = Callable[[Path, bytes, random.Random], object]  # path, the content of a good file, the draw


def _parsed(source: bytes) -> Any:
    """The content of a document; of JSON lines the first; of any other text a mapping with it."""
    text = source.decode(errors="replace")
    for read in (json.loads, lambda text: json.loads(text.partition("\n")[0]), yaml.safe_load):
        try:
            content = read(text)
        except (ValueError, yaml.YAMLError):
            continue
        if isinstance(content, (dict, list)):
            return content
    return {"a": text}


def _document(path: Path, content: Any) -> None:
    is_yaml = path.suffix in (".yaml", ".yml")
    text = yaml.dump(content, Dumper=yaml.CSafeDumper, allow_unicode=True) if is_yaml else json.dumps(content)
    path.write_text(text)


def _changed(change: Callable[[Any, random.Random], Any]) -> Write:
    return lambda path, source, draw: _document(path, change(_parsed(source), draw))


def _raw(change: Callable[[bytes, random.Random], bytes]) -> Write:
    return lambda path, source, draw: path.write_bytes(change(source, draw))


def _placed(place: Callable[[Path], object]) -> Write:
    return lambda path, source, draw: place(path)


def _wrong_texts(content: Any, draw: random.Random) -> Any:
    """The document with another text in the place of each."""
    text = draw.choice(
        ("{", "}", "{}", "{0}", "{python.x}", "{rank!r}", "{rank:d}", "%s", "\u202e", "a\nb", "\x1b[31m")
    )
    if isinstance(content, dict):
        return {key: _wrong_texts(value, draw) for key, value in content.items()}
    if isinstance(content, list):
        return [_wrong_texts(value, draw) for value in content]
    return text if isinstance(content, str) and draw.random() < 0.3 else content


def _wrong_types(content: Any, draw: random.Random) -> Any:
    """The document with a value of another type in some places."""
    if draw.random() < 0.1:
        return draw.choice((None, True, -1, 10**30, 0.5, float("nan"), float("-inf"), "x", [], {}, [[1]], {"a": {}}))
    if isinstance(content, dict):
        return {key: _wrong_types(value, draw) for key, value in content.items()}
    return [_wrong_types(value, draw) for value in content] if isinstance(content, list) else content


def _long_value(content: Any, draw: random.Random) -> Any:
    """The document with one text of 900 kB, or a long list."""
    value = draw.choice(("a" * 900_000, "(a|b)" * 180_000, list(range(100_000)), [{"x": 1}] * 20_000, "9" * 900_000))
    if isinstance(content, dict) and content:
        key = draw.choice(sorted(content, key=str))
        is_deeper = isinstance(content[key], dict) and draw.random() < 0.7
        return {**content, key: _long_value(content[key], draw) if is_deeper else value}
    return value


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def _closed(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)


def _looped(path: Path) -> None:
    path.symlink_to(path.name)


HOSTILE: dict[str, Write] = {
    "damaged values": _changed(damaged),
    "damaged bytes": _raw(damaged_bytes),
    "cut": _raw(lambda source, draw: source[: draw.randrange(len(source) + 1)]),
    "empty": _raw(lambda source, draw: b""),
    "random bytes": _raw(lambda source, draw: draw.randbytes(draw.choice((10, 5_000, 300_000)))),
    "zeros": _raw(lambda source, draw: b"\0" * draw.choice((1, 4096, 2_000_000))),
    "wrong texts": _changed(_wrong_texts),
    "wrong types": _changed(_wrong_types),
    "a long value": _changed(_long_value),
    "many keys": lambda path, source, draw: path.write_bytes(_add_keys(path, source, draw.choice((300_000, 60_000)))),
    "a long line": _raw(lambda source, draw: draw.choice((b"a", b"1", b"[", b"{", b'"', b"- ")) * LINE),
    "a long field": _raw(lambda source, draw: b"step,loss\n1," + b"2" * draw.choice((140_000, 2_000_000)) + b"\n"),
    "many lines": _raw(lambda source, draw: _many((source.splitlines(keepends=True) or [b"x\n"])[-1])),
    "nested": _raw(lambda source, draw: draw.choice((b"[" * 50_000, b'{"a":' * 50_000, b"- " * 50_000))),
    "doubled": _raw(lambda source, draw: source + source),
    "UTF-16": _raw(lambda source, draw: source.decode(errors="replace").encode("utf-16")),
    "a mark and ends of lines": _raw(lambda source, draw: b"\xef\xbb\xbf" + source.replace(b"\n", b"\r\n")),
    "surrogates": _raw(lambda source, draw: draw.choice((b'"\\ud800": "\\udfff",', b"\xed\xa0\x80: 1\n")) + source),
    "not a number": _raw(lambda source, draw: b'{"a": NaN, "step": Infinity, "loss": -Infinity, "schema": 1e999}'),
    "aliases": _raw(lambda source, draw: b"a: &a [1,1]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(12))),
    "a page": _raw(lambda source, draw: b"<!doctype html><html><body>404 <a href='x'>none</a></body></html>\n" * 99),
    "an endless device": _placed(lambda path: path.symlink_to("/dev/zero")),
    "an empty device": _placed(lambda path: path.symlink_to("/dev/null")),
    "the memory of the process": _placed(lambda path: path.symlink_to("/proc/self/mem")),
    "a pipe": _placed(os.mkfifo),
    "a folder": _placed(Path.mkdir),
    "a link to nothing": _placed(lambda path: path.symlink_to("nothing")),
    "a link to itself": _placed(_looped),
    "nothing": _placed(lambda path: None),
    "a terabyte": _placed(_sparse),
    "no right to read": _placed(_closed),
}  # fmt: skip


def _many(line: bytes) -> bytes:
    """A line many times: a real file of half a gigabyte may take its time."""
    return line * min(60_000, LINE // len(line))


def _add_keys(path: Path, source: bytes, count: int) -> bytes:
    """The document with so many further keys."""
    if path.suffix in (".yaml", ".yml"):
        return source + b"\n" + b"".join(b"k%d: 1\n" % number for number in range(count))
    keys = b",".join(b'"k%d":1' % number for number in range(count))
    return (source.rstrip()[:-1] + b"," if source.rstrip().endswith(b"}") else b"{") + keys + b"}"


def place(kind: str, path: Path, source: bytes, draw: random.Random) -> None:
    """Put the input where the good file was or would be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    HOSTILE[kind](path, source, draw)
