"""Each command that a text of the platform or a golden file prints is read by the command line's own parser."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import ROOT, commands
from levelfield.cli.command_line import PROGRAM, declared_commands, parse_command_line

PLATFORM, GOLDEN = ROOT / "platform/levelfield", ROOT / "tests/core/golden"
_QUOTED = re.compile(r"`([^`]+)`")
_LINE = re.compile(rf"{re.escape(PROGRAM)} ((?:[^\n]*\\\n)*[^\n]*)")
# What a text names in capitals, or takes from a value.
_STANDS_FOR = re.compile(r"\b[A-Z]+(?:_[A-Z]+)*\b|\[[^]]*\]|\.\.\.|\{\{.*?\}\}|\$\{.*?\}")
_OPTION_ALONE = re.compile(r"([a-z][a-z -]*?) (--[a-z-]+)")  # the name of an option, and no command
_NO_COMMANDS = ("case string", "evidence ${record.evidence}")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the strings of a module that are no docstrings, with 1 for each value that is put in; of others, all."""
    if path.suffix != ".py":
        yield path.read_text(encoding="utf-8")
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docstrings | parts):
            yield node.value


def printed_commands() -> list[tuple[str, str]]:
    """Return where each command stands that has more than its own words, and the command without the program."""
    names = {" ".join(words) for words in declared_commands()}
    printed = set()
    for folder, suffixes in ((PLATFORM, {".py", ".yaml", ".j2", ".js"}), (GOLDEN, {".txt", ".md"})):
        for path in (path for path in sorted(folder.rglob("*")) if path.suffix in suffixes):
            for text in texts_of(path):
                quoted = [" ".join(command.split()) for command in _QUOTED.findall(text)]
                lines = [line.replace("\\\n", " ") for line in _LINE.findall(text)] if folder == GOLDEN else []
                for command in (*quoted, *lines):
                    bare = command.removeprefix("python ").removeprefix(PROGRAM).strip()
                    words = bare.split()
                    begins = any(" ".join(words[:n]) in names for n in (1, 2)) or bare.startswith("--case")
                    if begins and bare not in names and bare not in _NO_COMMANDS:
                        printed.add((str(path.relative_to(ROOT)), bare))
    return sorted(printed)


def fault_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return why the command line refuses a printed command; empty where it reads it."""
    if option := _OPTION_ALONE.fullmatch(command):
        parser = commands()[() if option[1] == "run" else tuple(option[1].split())]
        return "" if option[2] in parser._option_string_actions else f"no option {option[2]}"
    try:
        parse_command_line(shlex.split(_STANDS_FOR.sub("1", command)))
    except SystemExit as end:
        return capsys.readouterr().err if end.code else ""
    return ""


def test_every_printed_command_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """All in one test: the modules are parsed here, and not by each process that collects tests."""
    printed = printed_commands()
    assert len(printed) > 50
    assert not {place: fault for place, command in printed if (fault := fault_of(command, capsys))}


@pytest.mark.parametrize("command", ["report pages --nonsense out", "show --nonsense", "nightly accept SERIES --why 1"])
def test_a_command_that_does_not_exist_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fault_of(command, capsys)
