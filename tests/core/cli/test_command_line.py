"""Commands by their words: each is one module, which nothing else names; help that teaches; the names that they had."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import levelfield.cli
import pytest
from levelfield.cli.command_line import HELP_GROUPS, Command, declared_commands, overview, parse_command_line
from levelfield.cli.main import main
from plans import PLUGINS, ROOT

DECLARED = declared_commands()
SCRATCH = '''\
"""`greet` (bring your own): print a greeting
`greet twice`: print it two times
"""

from levelfield.cli.command_line import Command


def _greet(options):
    print(options.name)
    return 0


def _twice(options):
    return _greet(options) + _greet(options)


def _name(parser):
    parser.add_argument("name")


COMMANDS = {"greet": Command("Greet.", _name, _greet), "greet twice": Command("Greet twice.", _name, _twice)}
'''


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command line with --help prints."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        parse_command_line([*arguments, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


# -- a command is one module


def test_a_command_is_added_by_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scratch_command.py").write_text(SCRATCH)
    monkeypatch.setattr(levelfield.cli, "__path__", [*levelfield.cli.__path__, str(tmp_path)])
    text = help_of(capsys)
    group = text.partition("\nbring your own:\n")[2].partition("\n\n")[0].splitlines()
    assert ["greet", "print", "a", "greeting"] in [line.split() for line in group]
    assert main(["greet", "you"]) == 0 and capsys.readouterr().out == "you\n"
    assert main(["greet", "twice", "you"]) == 0 and capsys.readouterr().out == "you\nyou\n"
    below = [line.split() for line in help_of(capsys, "greet").splitlines()]
    assert ["greet", "twice", "print", "it", "two", "times"] in below
    assert main(["greets"]) == 2 and "`greet`?" in capsys.readouterr().err
    sys.modules.pop("levelfield.cli.scratch_command")


def test_what_a_module_declares_is_what_it_has() -> None:
    for module in {declaration.module_name for declaration in DECLARED.values()}:
        declared = {" ".join(words) for words, declaration in DECLARED.items() if declaration.module_name == module}
        commands = importlib.import_module(f"levelfield.cli.{module}").COMMANDS
        assert set(commands) == declared, module
        assert all(isinstance(command, Command) and command.description for command in commands.values())


def test_every_first_word_but_run_has_its_readers() -> None:
    firsts = {
        words[0]: command.help_group for words, command in DECLARED.items() if len(words) == 1 and words != ("run",)
    }
    assert set(firsts.values()) == set(HELP_GROUPS)
    assert {words[0] for words in DECLARED} == {*firsts, "run"}
    further = {
        words: command.help_group for words, command in DECLARED.items() if len(words) > 1 and command.help_group
    }
    assert set(further) == {("compare", "duel"), ("plan", "sweep"), ("report", "explain")}
    assert all(group == firsts[words[0]] for words, group in further.items())


def test_a_call_imports_the_module_of_its_command_alone() -> None:
    code = (
        "import sys; from levelfield.cli.command_line import parse_command_line\n"
        "try: parse_command_line(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.endswith('_command') and 'levelfield.cli.' in name))\n"
    )
    for words, loaded in (
        (["--help"], ""),
        (["nightly", "--help"], "levelfield.cli.nightly_command"),
        (["store", "info"], "levelfield.cli.store_command"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=ROOT / "platform"
        )
        assert done.stdout.splitlines()[-1] == loaded, words


HELP_OF_ALL = """
import contextlib, io, sys
from levelfield.cli.main import main
for words in ((), *map(str.split, sys.argv[1:])):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    if found := {"numpy", "pydantic", "yaml", "psutil", "jinja2", "sqlalchemy"} & set(sys.modules):
        sys.exit(f"{words}: {found}")
with contextlib.redirect_stdout(io.StringIO()):
    main(["show"])
of_runs = {f"levelfield.{name}" for name in ("specs.plan", "specs.record", "specs.result", "catalog.lookup")}
if found := [name for name in sys.modules if name.startswith("levelfield.run.launchers.") or name in of_runs]:
    sys.exit(f"help and show import {found}")
"""


def test_the_help_of_no_command_imports_a_package() -> None:
    """pydantic and what is made by it take a quarter of a second, and a help needs 0.06."""
    names = [" ".join(words) for words in DECLARED]
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL, *names], capture_output=True, cwd=ROOT / "platform")
    assert (done.returncode, done.stderr) == (0, b"")


# -- help


@pytest.mark.parametrize("words", [(), *DECLARED], ids=" ".join)
def test_help_ends_well_and_fits_eighty_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, *words)
    assert text.startswith("usage: run_benchmarks.py") and [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", DECLARED, ids=" ".join)
def test_help_teaches_by_examples_of_the_same_command(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(capsys, *words).replace("\\\n      ", "")
    lines = [line.strip() for line in text.splitlines() if line.startswith("  run_benchmarks.py ")]
    others: dict[tuple[str, ...], str] = {("run",): "--"}
    starts = tuple(f"run_benchmarks.py {name}" for name in (words[0], others.get(words, words[0])))
    assert lines and all(line.startswith(starts) for line in lines)
    for line in lines:
        parse_command_line(shlex.split(re.split(r"\s{2,}", line)[0])[1:])


def test_the_first_help_is_one_screen_and_names_every_first_word() -> None:
    text = overview(DECLARED)
    assert len(text.splitlines()) <= 50 and all(f"\n{group}:\n" in text for group in HELP_GROUPS)
    assert all(re.search(rf"^  {words[0]} ", text, re.MULTILINE) for words in DECLARED if words[0] != "run")
    assert all(f"\n  {' '.join(words)} " in text for words, command in DECLARED.items() if command.help_group)
    for option in re.findall(r"--[a-z-]+(?= )", text):
        assert option == "--help" or parse_command_line(["--case", "x", *_with_value(option)])


def _with_value(option: str) -> list[str]:
    values = {"--scale": "smoke", "--runtime": "docker"}
    return [option] if option in ("--detach", "--dry-run", "--json", "--version") else [option, values.get(option, "x")]


def test_a_command_with_commands_below_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for words in DECLARED:
        text = help_of(capsys, *words[:-1]) if len(words) > 1 else help_of(capsys)
        assert f"  {' '.join(words)} " in text or words == ("run",), words


# -- the words of a command, and options before and after them


def test_shared_options_stand_before_between_and_after_the_words() -> None:
    shared = ["--plugins", "P", "--case-file", "F", "--runs=R"]
    for words, needed in ((["show"], ["tiny"]), (["compare"], ["A", "B"]), (["align", "references", "list"], [])):
        forms = ([*shared, *words, *needed], [*words, *needed, *shared], [words[0], *shared, *words[1:], *needed])
        for form in forms:
            options = parse_command_line(form)
            assert (options.plugins, options.case_file, options.runs) == ([Path("P")], [Path("F")], Path("R")), form


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "show", "cases"],
        ["--chips", "F", "show", "cases", "--json"],
        ["--runs", "R", "--json", "--case", "tiny:fake"],
        ["run", "--json", "--case", "tiny:fake"],
        ["align", "--json", "latest"],
    ],
    ids=" ".join,
)
def test_json_and_chips_stand_before_the_words_too(arguments: list[str]) -> None:
    options = parse_command_line(arguments)
    assert options.json and (options.chips == Path("F")) == ("--chips" in arguments)


def test_the_longest_words_win() -> None:
    def called(*arguments: str) -> str:
        command = parse_command_line(arguments).command
        return f"{command.__module__.removeprefix('levelfield.cli.')}.{command.__name__}"

    assert called("plan", "tiny") == "plan_command._plan" and called("plan", "sweep", "x") == "plan_command._sweep"
    assert (
        called("report", "latest") == "report_command._report"
        and called("report", "pages", "x") == "report_command._pages"
    )
    assert called("align", "references", "list") == "references_command._list_references"
    assert called("--case", "x") == called("run", "--case", "x") == "run_command.execute"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reprot", "latest"], "unknown command 'reprot'; did you mean `report`?"),
        (["gaet"], "unknown command 'gaet'; did you mean `nightly gate`?"),
        (["nightly", "gaet"], "unknown command 'nightly gaet'; did you mean `nightly gate`?"),
        (["environment", "image", "biuld"], "did you mean `environment image build`?"),
        (["zzzz"], "unknown command 'zzzz'; `--help` lists the commands"),
        (["tiny:fake"], "a case string follows --case: `run_benchmarks.py --case tiny:fake`"),
        (["nightly"], "`nightly`: found nothing after it, expected one of run, "),
        (["show", "case"], "did you mean `show cases`?"),
        (["show", "cases", "--diff"], "expected a case beside it: show CASE --diff"),
        (["show", "chips", "--devices", "0"], "expected a case beside it: show CASE --devices"),
        (["report", "latest", "--formt", "csv"], "unrecognized arguments: --formt csv; did you mean --format?"),
        (["--case", "tiny:fake", "--dryrun"], "unrecognized arguments: --dryrun; did you mean --dry-run?"),
        (["verify", "run.zip"], "unknown command 'verify'; did you mean `evidence verify`?"),
        (["data", "export", "tiny"], "unknown command 'data export'; expected one of prepare, check"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_word_gets_the_nearest_one(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([*arguments, "--plugins", str(PLUGINS)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and says in " ".join(err.split())
