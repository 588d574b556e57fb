"""Command lines drawn from the parsers' own options, and variables of the environment. Nothing is trained."""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import fuzzing
import guard
import pytest
from fuzzing import ROOT, commands, outcome, seeds
from guard import Guard, guarded
from levelfield.cli import show_command
from levelfield.specs.paths import RunPaths

CASES = ("gpt2_small:torch", "gpt2_small", "llama3_8b:torch:H100:1:8", "tiny:fake:fake:1:1")
NOT_DRAWN = {"--help", "--version"}
VALUES = (
    "", "0", "1", "-1", "3", "1e9", "9" * 40, "nan", "x", "a,b", "gpt2_small", "gpt2_small:torch",
    "llama3_8b:torch:H100:1:8",
    "gpt2_small:torch:cpu:1:2:DP2", "DP2TP2", "torch", "nvidia", "H100", "smoke", "full", "fp8", "latest", "/dev/null",
    "/",
    ".", "no/such", "../x.yaml", "--", "été", "a:b:c:d:e:f:g", "{}", "[]", "\u200b", "%", "*", "~", "{", "}", "{0}",
    "(", "\x1b[31m", "\udcff", "a" * 10_000, "/dev/zero",
)  # fmt: skip
WORDS = sorted(commands())
FITTING = {
    "CASE": CASES,
    "STRING": CASES,
    "RUN": ("latest", "tiny"),
    "FRAMEWORK": ("torch", "jax"),
    "NAME": ("torch", "cpu"),
}


def value_of(action: argparse.Action, draw: random.Random) -> str:
    """A value that the option takes, or any other."""
    if draw.random() < 0.4:
        return draw.choice(VALUES)
    if action.choices:
        return str(draw.choice(sorted(action.choices)))
    if action.type is int:
        return draw.choice(("0", "1", "2", "7", "-1"))
    name = action.metavar if isinstance(action.metavar, str) else ""
    return draw.choice(next((values for word, values in FITTING.items() if word in name), VALUES))


def line_of(words: tuple[str, ...], draw: random.Random) -> list[str]:
    """A command line: what the command needs, mostly, some of what else it takes, and now and then a word too many."""
    line, options = list(words), []
    for action in commands()[words]._actions:
        if action.option_strings:
            needed = action.required and draw.random() < 0.9
            options += [action] if not set(action.option_strings) & NOT_DRAWN and not needed else []
            line += option(action, draw) if needed else []
        elif action.nargs not in ("?", "*") or draw.random() < 0.5:
            line += [value_of(action, draw) for _ in range(draw.choice((1, 1, 2)) if action.nargs in ("*", "+") else 1)]
    for action in draw.sample(options, min(len(options), draw.randint(0, 4))):
        line += option(action, draw)
    return [*line, *([draw.choice(VALUES)] if draw.random() < 0.1 else [])]


def option(action: argparse.Action, draw: random.Random) -> list[str]:
    takes = action.nargs != 0 if draw.random() < 0.95 else action.nargs == 0
    return [draw.choice(list(action.option_strings)), *([value_of(action, draw)] if takes else [])]


@pytest.mark.parametrize("seed", seeds(len(WORDS)))
def test_a_drawn_command_line_ends_in_words(seed: int, run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command, also those that train, serve, install or measure: they find no programs and no network."""
    draw = random.Random(5000 + seed)
    monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
    monkeypatch.setenv("LEVELFIELD_STORE", str(run.root.parent.parent / "store.sqlite"))
    outcome(*line_of(WORDS[seed % len(WORDS)], draw))


@pytest.mark.parametrize("seed", seeds(15))
def test_a_drawn_dry_run_ends_in_words(seed: int) -> None:
    draw = random.Random(6000 + seed)
    outcome("--case", draw.choice((*VALUES, *CASES)), "--dry-run", "--no-store", *line_of((), draw))


# Those of this platform are taken from its code, so that a new one is drawn too.
SOURCES = [ROOT / "run_benchmarks.py", *(ROOT / "platform" / "levelfield").rglob("*.py")]
READ = set().union(*(re.findall(r"\b(?:LEVELFIELD|PIP)_[A-Z_]*[A-Z]\b", path.read_text()) for path in SOURCES))
VARIABLES = (
    *sorted(READ), "PIP_INDEX_URL", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV", "PIP_CONFIG_FILE",
    "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TMPDIR", "TZ", "LANG", "LC_ALL",
    "COLUMNS", "LINES", "TERM", "NO_COLOR", "PATH", "USER", "LOGNAME",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_JOB_ID", "WORLD_SIZE", "RANK", "MASTER_ADDR", "http_proxy",
)  # fmt: skip
# PYTHONINSPECT asks Python for a prompt behind the command, which shows every exit as a traceback.
OF_PYTHON = (
    "PYTHONPATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE",
    "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONUNBUFFERED",
    "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "PYTHONINTMAXSTRDIGITS", "PYTHONCOERCECLOCALE",
    "PYTHONHASHSEED", "PYTHONBREAKPOINT",
)  # fmt: skip
PYTHON_VALUES = (
    "0", "1", "2", "640", "error", "ignore", "ascii", "latin-1:strict", "utf-16", "x", "/dev/null", "été", ".",
)  # fmt: skip


@pytest.mark.parametrize("seed", seeds(15))
def test_drawn_variables_end_in_words(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7000 + seed)
    named = []
    for name in draw.sample(VARIABLES, draw.randint(1, 4)):
        value = draw.choice([*VALUES, str(tmp_path)])
        monkeypatch.setenv(name, value)
        named += [Path(value)] if value.startswith("/") else []
        named += (
            [Path("/tmp"), Path("/var/tmp"), Path("/usr/tmp")] if name == "TMPDIR" else []
        )  # where that is no folder
        named += [Path.home() / ".cache", Path.home() / ".local"] if name == "HOME" else []
    outcome("show", "cases", named=named)
    outcome("--case", "gpt2_small:torch", "--scale", "smoke", "--dry-run", named=named)


STARTS = 2  # each a process of its own


@pytest.mark.parametrize(
    "seed", [seed if seed < STARTS else pytest.param(seed, marks=pytest.mark.thorough) for seed in seeds(10)]
)
def test_a_start_with_drawn_variables_of_python_ends_in_words(seed: int, tmp_path: Path) -> None:
    """Python reads these before the first line of run_benchmarks.py, so each start is a process of its own."""
    draw = random.Random(8000 + seed)
    drawn = {name: draw.choice(PYTHON_VALUES) for name in draw.sample(OF_PYTHON, draw.randint(1, 4))}
    drawn |= {"LC_ALL": "C"} if draw.random() < 0.3 else {}
    words = draw.choice(
        (["show", "cases"], ["--case", "gpt2_small:torch", "--scale", "smoke", "--dry-run"], ["--help"])
    )
    argv = [sys.executable, guard.__file__, str(tmp_path), str(ROOT / "run_benchmarks.py"), *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"LEVELFIELD_NO_BOOTSTRAP": "1", **drawn}
    # on busy cores a start waits for longer than a drawn command takes
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    said = (done.stdout + done.stderr).decode(errors="replace").replace("\0", "")
    if "Fatal Python error" not in said:  # Python itself refuses the value
        assert done.returncode in fuzzing.CODES, f"exit code {done.returncode} with {drawn}:\n{said[-2000:]}"
        assert "Traceback" not in said and "writes elsewhere" not in said, f"{drawn}:\n{said[-2000:]}"


# ---- the tests of the tests


def test_a_fault_of_the_platform_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: dict[str, str] = {}
    monkeypatch.setattr(show_command, "listing", lambda *arguments: nothing["absent"])
    with pytest.raises(AssertionError, match=r"code 5\b"):
        outcome("show", "cases")


def test_a_command_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "WAIT_SECONDS", 1)
    monkeypatch.setattr(show_command, "listing", lambda *arguments: time.sleep(20))
    with pytest.raises(AssertionError, match=r"\b1 s\b"):
        outcome("show", "cases")


MODELS = ROOT / "models" / "torch"
WRITES: dict[str, Callable[[Path], object]] = {
    "a file": lambda here: (MODELS / "planted.json").write_text("{}"),
    "a file that is there": lambda here: (MODELS / "train.py").open("a"),
    "a descriptor": lambda here: os.open(MODELS / "planted", os.O_CREAT | os.O_RDWR),
    "a folder": lambda here: (MODELS / "planted").mkdir(),
    "a file moved there": lambda here: (here / "mine").rename(MODELS / "planted"),
    "a file removed": lambda here: (MODELS / "train.py").unlink(),
    "a link": lambda here: (MODELS / "planted").symlink_to(here),
    "a hard link": lambda here: (MODELS / "planted").hardlink_to(here / "mine"),
    "a copy": lambda here: shutil.copy(here / "mine", MODELS / "planted"),
    "a removed folder": lambda here: shutil.rmtree(MODELS),
    "a store": lambda here: sqlite3.connect(MODELS / "planted.sqlite"),
    "through a link": lambda here: (here / "linked" / "planted").write_text(""),
    "through a descriptor": lambda here: os.mkdir("planted", dir_fd=os.open(MODELS, os.O_RDONLY)),
    "in the temporary folder of others": lambda here: Path("/tmp/planted").write_text(""),
}


@pytest.mark.parametrize("kind", WRITES)
def test_a_write_elsewhere_is_refused_and_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the command swallows the error."""

    def execute(*given: object) -> int:
        Path("mine").write_text("")
        Path("linked").symlink_to(MODELS)
        with suppress(OSError):
            WRITES[kind](Path.cwd())
        return 0

    monkeypatch.setattr(show_command, "listing", execute)
    with pytest.raises(AssertionError, match="writes elsewhere"):
        outcome("show", "cases")
    assert (MODELS / "train.py").exists() and not list(MODELS.glob("planted*")) and not Path("/tmp/planted").exists()


def test_programs_and_networks_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: tuple[Callable[[], object], ...] = (
        lambda: subprocess.run([sys.executable, "-c", ""]),
        lambda: socket.create_server(("127.0.0.1", 0)),
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    )
    for act in acts:
        planted = partial(lambda act, options: act(), act)
        monkeypatch.setitem(show_command.COMMANDS, "show", replace(show_command.COMMANDS["show"], execute=planted))
        assert outcome("show", "cases")[0] == 2


def test_a_start_that_writes_elsewhere_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"from pathlib import Path\nPath({str(MODELS / 'planted')!r}).write_text('')\n")
    (tmp_path / "own").mkdir()
    argv = [sys.executable, guard.__file__, str(tmp_path / "own"), str(script)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert f"elsewhere: open {MODELS}/planted" in done.stderr
    assert not (MODELS / "planted").exists()


def test_a_place_that_is_named_is_refused_and_no_finding(tmp_path: Path) -> None:
    """A draw that names `/` would else write there, by root."""
    code, text = outcome("case", "new", "x", "--from", str(tmp_path / "none.json"), "--output", "/")
    assert code == 2, text
    with guarded(Guard([tmp_path], named=[Path("/")])) as held, pytest.raises(PermissionError):
        Path("/planted").write_text("")
    assert not held.found and not Path("/planted").exists()


def test_every_command_and_every_family_of_variables_is_drawn() -> None:
    assert {(), ("show",), ("environment", "make"), ("report", "pages")} <= set(WORDS) and len(WORDS) > 45
    assert {"LEVELFIELD_STORE", "LEVELFIELD_ROOT", "LEVELFIELD_WHEELS", "PIP_INDEX_URL", "PATH"} < set(VARIABLES)
