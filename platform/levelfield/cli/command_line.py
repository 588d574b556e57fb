"""The list of all commands, and the parsing of a command line.

A command is a module of this package, named `..._command.py`. Its docstring begins with a line for each command:

    `nightly gate`: compare a night with its levels

A line may name, in brackets, the group under which the first `--help` lists the command; every command of one word
has one, but for `run`. The module's COMMANDS has what each does. These lines are read without importing a module, so
`--help` is fast, and a call imports one module.
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
from typing import Any, NamedTuple, NoReturn

import levelfield
import levelfield.cli
from levelfield.errors import UsageError, bounded_message
from levelfield.report.sheets import labelled_line

CommandWords = tuple[str, ...]  # ("nightly", "gate")
PROGRAM = "run_benchmarks.py"
DEFAULT_COMMAND: CommandWords = ("run",)  # its word may be left out
HELP_GROUPS = ("compare chips", "every night", "machines and environments", "bring your own")
# Options that may also stand before and between the words of a command, with and without a value.
SHARED_VALUE_OPTIONS, SHARED_FLAGS = ("--plugins", "--case-file", "--runs", "--chips"), ("--json", "--version")
_MAX_OPTION_CHARACTERS = 60  # of an unknown option, for which a near one is looked for
_DECLARATION = re.compile(r'(?:""")?`([a-z][a-z -]*)`(?: \(([a-z ]+)\))?: (.+?)(?:""")?')


@dataclass(frozen=True)
class Command:
    """What a command does."""

    description: str  # above the options in --help, with examples
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    execute: Callable[[argparse.Namespace], int] | None = None  # None: the words only lead to subcommands
    trains: bool = False  # lost output changes neither its results, which are in files, nor its exit code


class DeclaredCommand(NamedTuple):
    """A command as its line in a module's docstring declares it."""

    words: CommandWords
    help_group: str | None  # None: the first help does not list it
    summary: str
    module_name: str


DeclaredCommands = dict[CommandWords, DeclaredCommand]


def declared_commands() -> DeclaredCommands:
    """Return every command of the package by its words. No module is imported."""
    paths = (path for folder in levelfield.cli.__path__ for path in sorted(Path(folder).glob("*_command.py")))
    return {command.words: command for path in paths for command in _read_declarations(path)}


def _read_declarations(path: Path) -> Iterator[DeclaredCommand]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            match = _DECLARATION.fullmatch(line.rstrip("\n"))
            if match is None:
                return
            yield DeclaredCommand(tuple(match[1].split()), match[2], match[3].rstrip("."), path.stem)


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed options, with the action as `command`, and `trains`. Without words the command is `run`.

    Raises UsageError for an unknown command. Ends the process with 2 on other wrong usage, 0 after --help.
    """
    commands = declared_commands()
    words, shared_options, rest = _split_command_line(arguments, commands)
    if not words and "--version" in (*shared_options, *rest):  # by itself, also where packages are missing
        print(f"levelfield {levelfield.__version__}")
        raise SystemExit(0)
    if not words:
        if not arguments or rest[:1] in (["-h"], ["--help"]):
            print(overview(commands))
            raise SystemExit(0)
        if rest and not rest[0].startswith("-"):
            raise UsageError(_unknown_command_error(rest[0], commands))
        words = DEFAULT_COMMAND
    command = Command("")
    if words in commands:
        module = importlib.import_module(f"levelfield.cli.{commands[words].module_name}")
        command = module.COMMANDS[" ".join(words)]
    subcommands = _subcommands(words, commands)
    if command.execute is None:
        if rest[:1] not in (["-h"], ["--help"]):
            raise UsageError(_subcommand_error(words, rest, subcommands))
        usage = f"usage: {PROGRAM} {' '.join(words)} COMMAND [options]"
        print(f"{usage}\n\n{command.description}\n{_command_list(subcommands)}")
        raise SystemExit(0)
    _refuse_empty_values(words, [*shared_options, *rest])
    return _build_parser(words, command, subcommands).parse_args([*shared_options, *rest])


def _split_command_line(
    arguments: Sequence[str], commands: DeclaredCommands
) -> tuple[CommandWords, list[str], list[str]]:
    """Return the longest words that name a command, the shared options among them, and the rest of the arguments."""
    words: CommandWords = ()
    shared_options: list[str] = []
    rest = list(arguments)
    while rest:
        first, depth = rest[0], len(words)
        if first in SHARED_VALUE_OPTIONS and len(rest) > 1:
            shared_options += [rest.pop(0), rest.pop(0)]
        elif first in SHARED_FLAGS or (
            first.startswith("--") and first.partition("=")[0] in SHARED_VALUE_OPTIONS and "=" in first
        ):
            shared_options.append(rest.pop(0))
        elif any(candidate[:depth] == words and candidate[depth : depth + 1] == (first,) for candidate in commands):
            words = (*words, rest.pop(0))
        else:
            break
    return words, shared_options, rest


def _refuse_empty_values(words: CommandWords, arguments: Sequence[str]) -> None:
    """Raise UsageError for an empty argument: every id contains it, and as a path it is the current folder.

    It is most often a variable of the shell that is not set.
    """
    for previous, argument in zip((" ".join(words) or PROGRAM, *arguments), arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument.strip() or (option.startswith("--") and equals and not value.strip()):
            raise UsageError(
                f"found an empty value after `{option.strip() or previous}`, expected a name, a file or another value. "
                "If a variable of the shell should hold it, check that the variable is set"
            )


def _unknown_command_error(word: str, commands: DeclaredCommands) -> str:
    if ":" in word:
        return f"found '{word}', expected a command; a case string follows --case: `{PROGRAM} --case {word}`"
    names = {words[-1]: " ".join(words) for words in commands} | {words[0]: words[0] for words in commands}
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean `{names[near[0]]}`?" if near else "`--help` lists the commands"
    return f"unknown command '{word}'; {hint}"


def _subcommand_error(words: CommandWords, rest: Sequence[str], subcommands: Sequence[DeclaredCommand]) -> str:
    name, last_words = " ".join(words), [command.words[-1] for command in subcommands]
    if not rest or rest[0].startswith("-"):
        return f"`{name}`: found {rest[0] if rest else 'nothing'} after it, expected one of {', '.join(last_words)}"
    near = difflib.get_close_matches(rest[0], last_words, n=1)
    hint = f"did you mean `{name} {near[0]}`?" if near else f"expected one of {', '.join(last_words)}"
    return f"unknown command '{name} {rest[0]}'; {hint}"


def _subcommands(words: CommandWords, commands: DeclaredCommands) -> list[DeclaredCommand]:
    """Return the commands whose words are these and one more, first those of the same module."""
    subcommands = [command for command in commands.values() if command.words[:-1] == words]
    return sorted(
        subcommands, key=lambda command: words in commands and command.module_name != commands[words].module_name
    )


def _command_list(commands: Sequence[DeclaredCommand]) -> str:
    """Return commands with their summaries, in lines of at most 80 columns."""
    names = [" ".join(command.words) for command in commands]
    width = max(map(len, names)) + 4
    rows = zip(names, commands, strict=True)
    lines = [labelled_line(f"  {name}", command.summary, width) for name, command in rows]
    return "\n".join(["commands (each has --help):", *lines])


class _StoreOnce(argparse._StoreAction):
    """Stores a value, and refuses a second one that differs: argparse would take the last without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert isinstance(parser, _Parser)
        if option and self.dest in parser.stored_values and parser.stored_values[self.dest] != values:
            first_value = parser.stored_values[self.dest]
            raise argparse.ArgumentError(self, f"found {first_value} and {values}, expected one value")
        parser.stored_values[self.dest] = values
        super().__call__(parser, namespace, values, option)


class _Parser(argparse.ArgumentParser):
    """A parser that takes each value once, and whose error for an unknown option names the nearest option."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.stored_values: dict[str, Any] = {}  # by the option's destination
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        _, colon, rest = message.partition("unrecognized arguments: ")
        if colon and rest.startswith("--"):
            option = rest.split()[0].partition("=")[0][:_MAX_OPTION_CHARACTERS]
            near = difflib.get_close_matches(option, self._option_string_actions, n=1)
            message += f"; did you mean {near[0]}?" if near else ""
        super().error(bounded_message(message))


def _build_parser(
    words: CommandWords, command: Command, subcommands: Sequence[DeclaredCommand]
) -> argparse.ArgumentParser:
    name = PROGRAM if words == DEFAULT_COMMAND else f"{PROGRAM} {' '.join(words)}"
    parser = _Parser(
        prog=name,
        description=command.description,
        epilog=f"more {_command_list(subcommands)}" if subcommands else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command.execute, trains=command.trains)
    command.add_options(parser)
    group = parser.add_argument_group("common")
    add = partial(group.add_argument, action="append", default=[], type=Path)
    add("--plugins", metavar="DIR", help="a folder with more vendors, models and cases; may be repeated")
    add("--case-file", metavar="FILE", help="a case outside of these folders, NAME.yaml, for --case NAME:...")
    group.add_argument("--runs", type=Path, metavar="DIR", help="folder of the runs (default: runs/)")
    group.add_argument("--version", action="version", version=f"levelfield {levelfield.__version__}")
    return parser


_OVERVIEW_HEAD = f"""\
usage: {PROGRAM} --case CASE:FRAMEWORK[:...] [options]
       {PROGRAM} COMMAND [options]

Train the same GPT or Llama on any chip, by any framework, and judge the run.
"""
_OVERVIEW_TAIL = """\
a case string:
  case:framework[_version][:vendor-or-chip[:nodes[:devices[:repeats]]]]
  gpt3_6.7B:torch            smoke scale where no accelerator is here
  llama3_8b:megatron:H100:1:8

options of a run (`run --help` shows all):
  --case STRING, --suite NAME   what to run; both may be repeated
  --dry-run                     show the plan with all commands, run nothing
  --layout DP4TP2PP1            the parallel layout, in place of the best one
  --detach                      go on without this shell; then `run status`
  --runtime docker              in containers; --launcher: on other machines
  --scale smoke|full            the size of the case
for every command: --plugins DIR, --runs DIR, --version; most have --json

exit codes: 0 success, 2 wrong usage or configuration, 3 a run failed,
4 a check failed, 5 a fault of the platform, 130 interrupted"""


def overview(commands: DeclaredCommands) -> str:
    """Return the help of the program: the commands by group, in one screen."""
    listed = sorted((command for command in commands.values() if command.help_group), key=lambda command: command.words)
    lines = [_OVERVIEW_HEAD]
    for group in dict.fromkeys([*HELP_GROUPS, *(str(command.help_group) for command in listed)]):
        rows = [labelled_line(f"  {' '.join(row.words)}", row.summary, 18) for row in listed if row.help_group == group]
        lines += [f"{group}:", *rows] if rows else []
    return "\n".join([*lines, "", _OVERVIEW_TAIL])
