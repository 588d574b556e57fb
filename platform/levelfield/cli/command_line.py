"""The commands that there are, and the command line read as one of them.

A command is a module of this package, named `..._command.py`. Its docstring begins with a line for each command:

    `nightly gate`: compare a night with its levels

A line may name the readers, in brackets, under whom the first `--help` lists it: those of first words do. The
module's COMMANDS has what each does. These lines are read without importing a module, so `--help` is fast, and a call
imports one module.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import levelfield
import levelfield.cli
from levelfield.errors import UsageError
from levelfield.report.sheets import labelled

Words = tuple[str, ...]
PROGRAM = "run_benchmarks.py"
RUN: Words = ("run",)  # its word may be left out
READERS = ("compare chips", "every night", "machines and environments", "bring your own")
# Options that may also stand before and between the words of a command, with and without a value.
VALUED, FLAGS = ("--plugins", "--case-file", "--runs", "--chips"), ("--json", "--version")
_LINE = re.compile(r'(?:""")?`([a-z][a-z -]*)`(?: \(([a-z ]+)\))?: (.+?)(?:""")?')


@dataclass(frozen=True)
class Command:
    """What a command does. execute None: words that only lead to commands below them.

    description: above the options in --help, with examples. trains: lost output changes neither its results, which are
    in files, nor its exit code.
    """

    description: str
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    execute: Callable[[argparse.Namespace], int] | None = None
    trains: bool = False


class DeclaredCommand(NamedTuple):
    """A command by its declaring line."""

    words: Words
    readers: str | None  # of what the first help lists
    summary: str
    module: str


Commands = dict[Words, DeclaredCommand]


def declared_commands() -> Commands:
    """Return every command of the package by its words. No module is imported."""
    paths = (path for folder in levelfield.cli.__path__ for path in sorted(Path(folder).glob("*_command.py")))
    return {command.words: command for path in paths for command in _declared(path)}


def _declared(path: Path) -> Iterator[DeclaredCommand]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            match = _LINE.fullmatch(line.rstrip("\n"))
            if match is None:
                return
            yield DeclaredCommand(tuple(match[1].split()), match[2], match[3].rstrip("."), path.stem)


def parser_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed options, with the action as `command` and `trains`. Without a command's words it is the run.

    Raises UsageError for a command that is not there. Ends the process with 2 on other wrong usage, 0 after --help.
    """
    commands = declared_commands()
    words, before, rest = _split(arguments, commands)
    if not words and "--version" in (*before, *rest):  # by itself, also where packages are missing
        print(f"levelfield {levelfield.__version__}")
        raise SystemExit(0)
    if not words:
        if not arguments or rest[:1] in (["-h"], ["--help"]):
            print(overview(commands))
            raise SystemExit(0)
        if rest and not rest[0].startswith("-"):
            raise UsageError(_unknown(rest[0], commands))
        words = RUN
    command = Command("")
    if words in commands:
        module = importlib.import_module(f"levelfield.cli.{commands[words].module}")
        command = module.COMMANDS[" ".join(words)]
    below = _below(words, commands)
    if command.execute is None:
        if rest[:1] not in (["-h"], ["--help"]):
            raise UsageError(_not_below(words, rest, below))
        print(f"usage: {PROGRAM} {' '.join(words)} COMMAND [options]\n\n{command.description}\n{_lines(below)}")
        raise SystemExit(0)
    _refuse_blank(words, [*before, *rest])
    return _parser(words, command, below).parse_args([*before, *rest])


def _split(arguments: Sequence[str], commands: Commands) -> tuple[Words, list[str], list[str]]:
    """Return the words of the command, the longest that match, the shared options among them, and all that follows."""
    words: Words = ()
    before: list[str] = []
    rest = list(arguments)
    while rest:
        first, at = rest[0], len(words)
        if first in VALUED and len(rest) > 1:
            before += [rest.pop(0), rest.pop(0)]
        elif first in FLAGS or (first.startswith("--") and first.partition("=")[0] in VALUED and "=" in first):
            before.append(rest.pop(0))
        elif any(row[:at] == words and row[at : at + 1] == (first,) for row in commands):
            words = (*words, rest.pop(0))
        else:
            break
    return words, before, rest


def _refuse_blank(words: Words, arguments: Sequence[str]) -> None:
    """Raise UsageError for an empty argument. It is a part of every id, as a path it is the current folder, and it is
    most often a variable of the shell that is not set."""
    for before, argument in zip((" ".join(words) or PROGRAM, *arguments), arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument.strip() or (option.startswith("--") and equals and not value.strip()):
            raise UsageError(
                f"found an empty value after `{option.strip() or before}`, expected a name, a file or another value. "
                "If a variable of the shell should hold it, check that the variable is set"
            )


def _unknown(word: str, commands: Commands) -> str:
    if ":" in word:
        return f"found '{word}', expected a command; a case string follows --case: `{PROGRAM} --case {word}`"
    names = {words[-1]: " ".join(words) for words in commands} | {words[0]: words[0] for words in commands}
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean `{names[near[0]]}`?" if near else "`--help` lists the commands"
    return f"unknown command '{word}'; {hint}"


def _not_below(words: Words, rest: Sequence[str], below: Sequence[DeclaredCommand]) -> str:
    name, last = " ".join(words), [command.words[-1] for command in below]
    if not rest or rest[0].startswith("-"):
        return f"`{name}`: found {rest[0] if rest else 'nothing'} after it, expected one of {', '.join(last)}"
    near = difflib.get_close_matches(rest[0], last, n=1)
    hint = f"did you mean `{name} {near[0]}`?" if near else f"expected one of {', '.join(last)}"
    return f"unknown command '{name} {rest[0]}'; {hint}"


def _below(words: Words, commands: Commands) -> list[DeclaredCommand]:
    """Return the commands whose words begin with these and have one more; those of the words' own module first."""
    below = [command for command in commands.values() if command.words[:-1] == words]
    return sorted(below, key=lambda command: words in commands and command.module != commands[words].module)


def _lines(commands: Sequence[DeclaredCommand]) -> str:
    """Return commands with their summaries, in lines of at most 80 columns."""
    names = [" ".join(command.words) for command in commands]
    width = max(map(len, names)) + 4
    rows = zip(names, commands, strict=True)
    lines = [labelled(f"  {name}", command.summary, width) for name, command in rows]
    return "\n".join(["commands (each has --help):", *lines])


class _Parser(argparse.ArgumentParser):
    """A parser that names the nearest option to one that it does not have."""

    def error(self, message: str) -> NoReturn:
        _, colon, rest = message.partition("unrecognized arguments: ")
        if colon and rest.startswith("--"):
            option = rest.split()[0].partition("=")[0]
            near = difflib.get_close_matches(option, self._option_string_actions, n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        super().error(message)


def _parser(words: Words, command: Command, below: Sequence[DeclaredCommand]) -> argparse.ArgumentParser:
    name = PROGRAM if words == RUN else f"{PROGRAM} {' '.join(words)}"
    parser = _Parser(
        prog=name,
        description=command.description,
        epilog=f"more {_lines(below)}" if below else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command.execute, trains=command.trains)
    command.arguments(parser)
    group = parser.add_argument_group("common")
    add = partial(group.add_argument, action="append", default=[], type=Path)
    add("--plugins", metavar="DIR", help="a folder with more vendors, models and cases; may be repeated")
    add("--case-file", metavar="FILE", help="a case outside of these folders, NAME.yaml, for --case NAME:...")
    group.add_argument("--runs", type=Path, metavar="DIR", help="folder of the runs (default: runs/)")
    group.add_argument("--version", action="version", version=f"levelfield {levelfield.__version__}")
    return parser


_HEAD = f"""\
usage: {PROGRAM} --case CASE:FRAMEWORK[:...] [options]
       {PROGRAM} COMMAND [options]

Train the same GPT or Llama on any chip, by any framework, and judge the run.
"""
_TAIL = """\
a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
  gpt3_6.7B:torch            smoke scale where no accelerator is here
  llama3_8b:megatron:H100:1:8

options of a run (`run --help` shows all):
  --case STRING, --suite NAME   what to run; both may be repeated
  --dry-run                     show the plan with all commands, run nothing
  --layout DP4TP2PP1            the parallel layout, in place of the best one
  --repeat N                    run each case N times
  --runtime docker              in containers; --launcher: on other machines
  --scale smoke|full            the size of the case
for every command: --plugins DIR, --runs DIR, --version; most have --json

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted"""


def overview(commands: Commands) -> str:
    """Return the first help: the commands by their readers, in one screen."""
    first = sorted((command for command in commands.values() if command.readers), key=lambda command: command.words)
    lines = [_HEAD]
    for readers in dict.fromkeys([*READERS, *(str(command.readers) for command in first)]):
        rows = [labelled(f"  {' '.join(row.words)}", row.summary, 18) for row in first if row.readers == readers]
        lines += [f"{readers}:", *rows] if rows else []
    return "\n".join([*lines, "", _TAIL])
