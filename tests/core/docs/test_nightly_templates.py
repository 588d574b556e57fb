"""The templates of docs/nightly: valid by their makers' schemas and tools, and with options that exist."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from levelfield.cli.command_line import parser_of
from plans import ROOT

FOLDER = ROOT / "docs" / "nightly"
SCHEMAS = {
    "github-actions.yml": "vendor.github-workflows",
    "github-reusable.yml": "vendor.github-workflows",
    "gitlab-ci.yml": "vendor.gitlab-ci",
}
OWN = ROOT / ".github" / "workflows" / "ci.yml"  # the project's own checks
GIVEN = {'"$SUITE"': "nightly", '"$BUDGET"': "3h", '"$BISECT_BUDGET"': "30m", '"$PAGE_URL"': "https://x"}  # by a caller
UNITS = ("levelfield-nightly.service", "levelfield-nightly.timer")
TABLES = ("crontab", "scrontab")
CRON = re.compile(r"(?:(?:\*|\d+)(?:[-/,]\d+)*\s+){5}\S.*")


def schema_check(path: Path, schema: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("path", [OWN, *(FOLDER / name for name in SCHEMAS)], ids=lambda path: path.name)
def test_a_ci_template_is_valid_by_its_makers_schema_and_a_broken_one_is_not(path: Path, tmp_path: Path) -> None:
    schema = SCHEMAS.get(path.name, "vendor.github-workflows")
    assert schema_check(path, schema).returncode == 0
    broken = tmp_path / path.name
    text = path.read_text()
    broken.write_text(text.replace("runs-on:", "runs_on:").replace("script:", "skript:"))
    assert schema_check(broken, schema).returncode == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_the_units_are_valid_by_systemd_and_a_broken_one_is_not(tmp_path: Path) -> None:
    def check(folder: Path) -> subprocess.CompletedProcess[str]:
        argv = ["systemd-analyze", "verify", *(str(folder / name) for name in UNITS)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    for name in UNITS:
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text)
    assert (check(tmp_path).returncode, check(tmp_path).stderr) == (0, "")
    timer = tmp_path / UNITS[1]
    timer.write_text(timer.read_text().replace("01:00:00", "25:00:00"))
    assert "calendar" in check(tmp_path).stderr


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_cron_has_five_fields_and_a_command(name: str) -> None:
    lines = [line for line in (FOLDER / name).read_text().splitlines() if not line.startswith("#")]
    entries = [line for line in lines if not re.match(r"[A-Z_]+=", line)]
    assert entries and all(CRON.fullmatch(line) for line in entries)
    assert not CRON.fullmatch("0 1 * * cd /srv")


@pytest.mark.parametrize("name", [*SCHEMAS, UNITS[0], *TABLES])
def test_the_options_of_a_template_exist(name: str) -> None:
    text = re.sub(r"\s*\n\s+--", " --", (FOLDER / name).read_text())
    for name, value in GIVEN.items():
        text = text.replace(name, value)
    (line,) = re.findall(r"run_benchmarks\.py (nightly [^\n;>]*)", text)
    options = parser_of(shlex.split(line))
    assert (options.suite, options.budget) == ("nightly", 3 * 3600.0)


STUB = """\
#!{python}
import json, os, sys
with open({file!r}, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
sys.exit(int(os.environ.get("STUB_CODE", "0")))
"""


@dataclass
class Machine:
    """A machine on which a template runs: its shell is real, and its Python notes the program's arguments."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        stub = self.folder / "bin" / "python3"
        stub.write_text(STUB.format(python=sys.executable, file=str(self.folder / "started")))
        stub.chmod(0o755)

    def shell(self, text: str, place: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **variables}
        argv = ["bash", *flags, "-c", text]
        return subprocess.run(argv, cwd=place, env={**os.environ, **own}, capture_output=True, text=True, timeout=60)

    @property
    def started(self) -> list[list[str]]:
        """The arguments of each start of run_benchmarks.py."""
        file = self.folder / "started"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def local_template(name: str, folder: Path) -> tuple[str, str, Path]:
    """Return a template of one machine as a line of a shell, its checkout and its folder of runs, all in `folder`."""
    text = (FOLDER / name).read_text()
    text = text.replace("/srv/", f"{folder}/").replace("/shared/levelfield/", f"{folder}/")
    variables = re.findall(r"\b(LEVELFIELD_RUNS)=(\S+)", text)
    if name == UNITS[0]:
        lines = re.findall(r"^ExecStart(?:Pre)?=(.+)$", text, re.MULTILINE)
        commands = [f"{line[1:]} || true" if line.startswith("-") else line for line in lines]
        line = " && ".join(f"{{ {command}; }}" for command in commands).replace("/usr/bin/", "")
        (checkout,) = re.findall(r"^WorkingDirectory=(.+)$", text, re.MULTILINE)
    else:
        line = next(line for line in text.splitlines() if re.match(r"\d", line)).split(maxsplit=5)[5]
        (checkout,) = re.findall(r"cd (\S+)", line)
    return f"export LEVELFIELD_RUNS={variables[0][1]}; {line}", checkout, Path(variables[0][1])


@contextmanager
def running_night(runs: Path) -> Iterator[None]:
    """Hold the lock of the suite, as a night does."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / ".nightly_nightly.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("name", [UNITS[0], *TABLES])
def test_a_second_start_pulls_nothing_under_a_running_night(name: str, tmp_path: Path) -> None:
    origin, machine = tmp_path / "origin", Machine(tmp_path / "machine")
    origin.mkdir()
    git(origin, "init", "-q")
    git(origin, "commit", "-q", "--allow-empty", "-m", "first")
    line, checkout, runs = local_template(name, tmp_path / "place")
    git(tmp_path, "clone", "-q", str(origin), checkout)
    runs.parent.mkdir(exist_ok=True)
    first = git(Path(checkout), "rev-parse", "HEAD")
    git(origin, "commit", "-q", "--allow-empty", "-m", "second")
    with running_night(runs):
        machine.shell(f"cd {checkout}; {line}", tmp_path)
        assert git(Path(checkout), "rev-parse", "HEAD") == first and len(machine.started) == 1, "it is refused itself"
    done = machine.shell(f"cd {checkout}; {line}", tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), "the mail of a good night"
    assert git(Path(checkout), "rev-parse", "HEAD") == git(origin, "rev-parse", "HEAD") != first
    assert len(machine.started) == 2
    shutil.rmtree(origin)
    machine.shell(f"cd {checkout}; {line}", tmp_path)
    assert len(machine.started) == 3, "a night without a pull goes on with the code that is there"
