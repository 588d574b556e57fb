"""Command lines drawn from the parsers' own options, and variables of the environment. Nothing is trained."""

from __future__ import annotations

import random
import time
from pathlib import Path

import fuzzing
import pytest
from fuzzing import outcome, seeds
from levelfield.cli import show_command

VALUES = (
    "", "0", "1", "-1", "3", "1e9", "9" * 40, "nan", "x", "a,b", "gpt2_small", "gpt2_small:torch",
    "llama3_8b:torch:H100:1:8",
    "gpt2_small:torch:cpu:1:2:DP2", "DP2TP2", "torch", "nvidia", "H100", "smoke", "full", "fp8", "latest", "/dev/null",
    "/",
    ".", "no/such", "../x.yaml", "--", "été", "a:b:c:d:e:f:g", "{}", "[]", "\u200b", "%", "*", "~",
)  # fmt: skip
# Reading commands. What makes environments, serves pages, sends or waits is left out.
COMMANDS = (
    ("show",), ("plan",), ("report",), ("compare",), ("align", "curves"), ("align",), ("nightly", "gate"),
    ("nightly", "history"), ("nightly", "levels"), ("align", "references", "list"), ("store", "info"),
    ("store", "check"), ("evidence", "collect"), ("evidence", "verify"), ("evidence", "bundle"),
    ("case", "check"), ("evidence", "audit"),
)  # fmt: skip
LEFT_OUT = {
    "--rehearse",
    "--compile",
    "--help",
    "-h",
    "--output",
    "--serve",
    "--version",
    "--new",
    "--replace",
}


def options_of(command: tuple[str, ...]) -> list[str]:
    """The options that a command's help names."""
    code, text = outcome(*command, "--help")
    assert code == 0, text
    words = {word.strip("[],.;:()") for word in text.replace("=", " ").split()}
    return sorted(word for word in words if word.startswith("--") and len(word) > 2 and word not in LEFT_OUT)


@pytest.mark.parametrize("seed", seeds(120))
def test_a_drawn_command_line_ends_in_words(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5000 + seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "store.sqlite"))
    command = draw.choice(COMMANDS)
    line = [*command, *draw.sample(VALUES, draw.randint(0, 2))]
    for option in draw.sample(known := options_of(command), min(len(known), draw.randint(0, 3))):
        line += [option, *([draw.choice(VALUES)] if draw.random() < 0.7 else [])]
    outcome(*line)


@pytest.mark.parametrize("seed", seeds(60))
def test_a_drawn_dry_run_ends_in_words(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(6000 + seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    known = [option for option in options_of(("run",)) if option not in {"--case", "--dry-run", "--store"}]
    line = ["--case", draw.choice(VALUES), "--dry-run", "--no-store"]
    for option in draw.sample(known, draw.randint(0, 4)):
        line += [option, *([draw.choice(VALUES)] if draw.random() < 0.7 else [])]
    outcome(*line)


VARIABLES = (
    "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "COLUMNS", "LINES", "TERM",
    "NO_COLOR", "PATH",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LEVELFIELD_STORE", "LEVELFIELD_RUNS", "LEVELFIELD_CHIPS",
    "USER", "LOGNAME",
    "SLURM_JOB_ID", "WORLD_SIZE", "RANK", "MASTER_ADDR", "http_proxy",
)  # fmt: skip


@pytest.mark.parametrize("seed", seeds(40))
def test_drawn_variables_end_in_words(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7000 + seed)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in draw.sample(VARIABLES, draw.randint(1, 4)):
        value = draw.choice([value for value in VALUES if value.strip("\u200b")] + [str(tmp_path)])
        monkeypatch.setenv(name, value)
    outcome("show", "cases")
    outcome("--case", "gpt2_small:torch", "--scale", "smoke", "--dry-run")


# ---- the tests of the tests


@pytest.mark.parametrize("command", COMMANDS)
def test_every_drawn_command_is_one(command: tuple[str, ...]) -> None:
    """A command that moved would only be refused by its name."""
    assert options_of(command)


def test_a_fault_of_the_platform_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_command, "listing", lambda *given: {}["absent"])
    with pytest.raises(AssertionError, match="exit code 5 of"):
        outcome("show", "cases")


def test_a_command_that_hangs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "SECONDS", 1)
    monkeypatch.setattr(show_command, "listing", lambda *given: time.sleep(20))
    with pytest.raises(AssertionError, match="more than 1 s"):
        outcome("show", "cases")
