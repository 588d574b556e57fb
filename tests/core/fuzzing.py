"""Seeded damage to what users hand to the platform, and what must come of it: a sentence and an exit code of a user.

A run of a command fails the test with a traceback, exit code 5, more than ten seconds of a processor, a minute of
waiting, a very long output, or a write outside of the test's folder (guard.py). Each seed is one case; LEVELFIELD_FUZZ
multiplies their number, by 60 in `make thorough`.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from guard import Guard, guarded
from levelfield.cli import command_line
from levelfield.cli.main import main

ROOT = Path(__file__).parents[2]
SECONDS, WAIT_SECONDS = 10, 60  # of a processor, whatever else runs on it, and of the clock
MAX_CHARACTERS = 80_000  # of all that a command prints
MAX_MANIFEST = 600_000  # of a dry run that prints a manifest with the code in it
CODES = {0, 2, 3, 4}
TIMES = int(os.environ.get("LEVELFIELD_FUZZ", "1"))
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 10**9, 10**30, -0.5, 1e308, float("nan"), float("inf"), "", "x", "017", "1:30",
    "../..",
    "a" * 3000, "\u0000", "\u200b", "été", "{{", "%s", "/dev/zero", [], [None], {}, {"a": {"b": []}}, [[[[]]]],
)  # fmt: skip


def seeds(number: int) -> range:
    return range(number * TIMES)


@contextmanager
def in_time() -> Iterator[None]:
    def late(number: int, _: object) -> None:
        raise AssertionError(f"it took more than {SECONDS if number == signal.SIGPROF else WAIT_SECONDS} s")

    limits = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAIT_SECONDS)}
    before = {number: signal.signal(number, late) for number in limits}
    for timer, seconds in limits.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in limits.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


_folders: list[Path] = []  # where commands may write


@contextmanager
def run_in(folder: Path) -> Iterator[None]:
    """In the block a command may write in this folder."""
    _folders.append(folder.resolve())
    try:
        yield
    finally:
        _folders.pop()


def outcome(*arguments: str, named: Sequence[Path] = ()) -> tuple[int, str]:
    """The exit code of a command, and all that it printed. Fails where a user would have to report a fault.

    named: places that variables of the environment name.
    """
    output = io.StringIO()
    guard = Guard(_folders, [*named_places(arguments), *named], list(own_places(arguments)))
    with redirect_stdout(output), redirect_stderr(output), in_time(), guarded(guard):
        try:
            code = main(list(arguments))
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
    text = output.getvalue()
    assert code in CODES, f"exit code {code} of {list(arguments)}:\n{text[-2000:]}"
    assert "Traceback (most recent call last)" not in text, text[-2000:]
    most = MAX_MANIFEST if "kubernetes" in arguments else MAX_CHARACTERS
    assert len(text) <= most, f"{list(arguments)} prints {len(text):,} characters:\n{text[:2000]}"
    assert not guard.found, f"{list(arguments)} writes elsewhere: {guard.found}\n{text[-2000:]}"
    return code, text


def named_places(words: tuple[str, ...]) -> Iterator[Path]:
    """The paths that a command line names."""
    for word in words:
        value = word.partition("=")[2] if word.startswith("--") else word
        if value.startswith("/") and "\0" not in value:
            yield Path(value)


# What a command writes in the checkout, by a word of it: its help names these places.
OWN = {
    "references": "configs/references", "align": "configs/references", "case": "configs/cases", "vendor": "vendors",
    "framework": "models",
}  # fmt: skip


def own_places(words: tuple[str, ...]) -> Iterator[Path]:
    """The places outside of the user's folders that a command is for."""
    yield from (ROOT / "runs", ROOT / ".venvs", (ROOT / ".venvs").resolve())
    yield from (ROOT / place for word, place in OWN.items() if word in words[:2])


@cache
def commands() -> dict[tuple[str, ...], argparse.ArgumentParser]:
    """Every command with its parser, by its words; () is the run."""
    parsers: dict[tuple[str, ...], argparse.ArgumentParser] = {}
    for words, declared in command_line.declared_commands().items():
        module = importlib.import_module(f"levelfield.cli.{declared.module_name}")
        command = module.COMMANDS[" ".join(words)]
        if command.execute is not None:
            parsers[() if words == command_line.DEFAULT_COMMAND else words] = command_line._build_parser(
                words, command, ()
            )
    return parsers


def places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a document."""
    if place:
        yield place
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places(value, (*place, key))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from places(value, (*place, index))


def damaged(content: Any, draw: random.Random) -> Any:
    """The document with one to three values replaced, removed, doubled or renamed. It is changed in place."""
    for _ in range(draw.randint(1, 3)):
        paths = list(places(content))
        if not paths:
            return content
        *way, last = draw.choice(paths)
        holder = content
        for key in way:
            holder = holder[key]
        kind = draw.randrange(5)
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            holder[draw.choice(("", "x", "name", "schema", 7))] = holder[last]
        elif kind == 2 and isinstance(holder, list):
            holder.extend(holder[: draw.randint(1, 3)])
        else:
            holder[last] = draw.choice(VALUES)
    return content


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """The bytes cut, with some changed, a piece doubled or lines exchanged."""
    kind, where = draw.randrange(5), draw.randrange(len(content) + 1)
    if kind == 0:
        return content[:where]
    if kind == 1:
        changed = bytearray(content or b"\0")
        for _ in range(draw.randint(1, 20)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    if kind == 2:
        return content[:where] + content[max(0, where - 200) :]
    if kind == 3:
        lines = content.split(b"\n")
        draw.shuffle(lines)
        return b"\n".join(lines)
    return draw.choice((b"", b"\0" * 100, b"{}", b"[]", b"null", b'{"event":"step"}\n', b"\xff\xfe\n", b"[" * 5000))
