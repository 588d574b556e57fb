"""The templates of docs/nightly: valid by their makers' schemas and tools, and with options that exist."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from levelfield.cli.command_line import parse_command_line
from plans import ROOT

FOLDER = ROOT / "docs" / "nightly"
SCHEMAS = {
    "github-actions.yml": "vendor.github-workflows",
    "github-reusable.yml": "vendor.github-workflows",
    "gitlab-ci.yml": "vendor.gitlab-ci",
}
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))  # the project's own checks
UNITS = ("levelfield-nightly.service", "levelfield-nightly.timer")
TABLES = ("crontab", "scrontab")
CRON = re.compile(r"(?:(?:\*|\d+)(?:[-/,]\d+)*\s+){5}\S.*")


def schema_check(path: Path, schema: str) -> int:
    """Return the exit code of check-jsonschema."""
    program = importlib.import_module("check_jsonschema").main  # it has no types
    return CliRunner().invoke(program, ["--builtin-schema", schema, str(path)]).exit_code


@pytest.mark.parametrize("path", [*OWN, *(FOLDER / name for name in SCHEMAS)], ids=lambda path: path.name)
def test_a_ci_template_is_valid_by_its_makers_schema_and_a_broken_one_is_not(path: Path, tmp_path: Path) -> None:
    schema = SCHEMAS.get(path.name, "vendor.github-workflows")
    assert schema_check(path, schema) == 0
    broken = tmp_path / path.name
    text = path.read_text()
    broken.write_text(text.replace("runs-on:", "runs_on:").replace("script:", "skript:"))
    assert schema_check(broken, schema) == 1


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


@pytest.mark.parametrize("name", [UNITS[0], *TABLES])
def test_the_options_of_a_template_exist(name: str) -> None:
    (line,) = re.findall(r"run_benchmarks\.py (nightly [^\n;>]*)", (FOLDER / name).read_text())
    options = parse_command_line(shlex.split(line))
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


TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|\$?[A-Za-z_][\w.]*(?:\(\))?|&&|\|\||!(?!=)")
OPERATORS = {"&&": " and ", "||": " or ", "!": " not "}
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
PRESENT = ("site", "night.md", "night.xml", "nightly.md", "nightly.xml")  # files of the night before
REUSABLE, GITLAB = "github-reusable.yml", "gitlab-ci.yml"
Names = Mapping[str, object]


def value_of(expression: str, names: Names) -> Any:
    """Evaluate an expression of GitHub's or GitLab's, of names, texts, `==`, `!=`, `&&`, `||` and `!`."""

    def python(token: re.Match[str]) -> str:
        text = token[0]
        return OPERATORS.get(text) or (text if text[0] in "\"'" else f"names.get({text!r}, '')")

    return eval(TOKEN.sub(python, expression.strip()), {"names": names})


def filled(text: object, names: Names) -> str:
    return EXPRESSION.sub(lambda match: str(value_of(match[1], names)), str(text))


@dataclass
class Job:
    """A job of a CI system, on a machine whose files of the night before are still there."""

    machine: Machine
    checkouts: list[dict[str, str]] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)

    @property
    def place(self) -> Path:
        return self.machine.folder / "place"

    def run(self, name: str, names: Names, fails: str = "") -> bool:
        """Run the job of a template. fails: what fails in it. Return whether it is green."""
        self.place.mkdir(exist_ok=True)
        for file in PRESENT:
            (self.place / file).write_text("of the night before")
        content = yaml.safe_load((FOLDER / name).read_text())
        if name == GITLAB:
            return self._gitlab(content["levelfield-nightly"], names, fails)
        return self._github(next(iter(content["jobs"].values())), names, fails)

    def _shell(self, script: str, variables: Mapping[str, str], fails: str) -> bool:
        code = "2" if fails == "the night" else "0"
        return self.machine.shell(script, self.place, "-e", **variables, STUB_CODE=code).returncode == 0

    def _upload(self, paths: Iterable[str]) -> None:
        self.uploaded = [path for path in paths if (self.place / path).exists()]

    def _github(self, job: Mapping[str, Any], names: Names, fails: str) -> bool:
        is_green = True
        variables = {name: filled(text, names) for name, text in job["env"].items()}
        variables |= {"GITHUB_RUN_ID": str(names["run_id"]), "GITHUB_STEP_SUMMARY": str(self.place / "summary")}
        for step in job["steps"]:
            condition = EXPRESSION.sub(r"\1", str(step.get("if", "success()")))
            if not value_of(condition, {**names, "always()": True, "success()": is_green}):
                continue
            if not is_green and "always()" not in condition:
                continue
            if "run" in step:
                is_green &= self._shell(filled(step["run"], names), variables, fails)
            elif step["uses"].startswith("actions/checkout@"):
                self.checkouts.append({key: filled(text, names) for key, text in step["with"].items()})
                is_green &= fails != "the checkout"
            elif step["uses"].startswith("actions/upload-artifact@"):
                self._upload(step["with"]["path"].split())
        return is_green

    def _gitlab(self, job: Mapping[str, Any], names: Names, fails: str) -> bool:
        rule = next(rule for rule in job["rules"] if value_of(rule["if"], names))
        variables = {name: str(names[text]) for name, text in rule.get("variables", {}).items()}
        variables |= {"CI_PROJECT_DIR": str(self.place), "CI_PIPELINE_ID": str(names["run_id"])}
        scripts = [*job["hooks"]["pre_get_sources_script"], *(job["script"] if fails != "the checkout" else ["false"])]
        is_green = all(self._shell(script, variables, fails) for script in scripts)
        self._upload([*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]])
        return is_green


def names_of(name: str, event: str, branch: str, run_id: int = 1, caller: str = "us/levelfield") -> Names:
    """What a CI system knows of a pipeline. A pull request of GitHub has the name of its merge as the ref."""
    is_request = event in ("pull_request", "merge_request_event")
    if name == GITLAB:
        which = "$CI_MERGE_REQUEST_SOURCE_BRANCH_NAME" if is_request else "$CI_COMMIT_BRANCH"
        return {"run_id": run_id, "$CI_PIPELINE_SOURCE": event, "$CI_DEFAULT_BRANCH": "main", which: branch}
    names: dict[str, object] = {
        "run_id": run_id, "github.event_name": event, "github.repository": caller,
        "inputs.repository": "us/levelfield", "inputs.suite": "nightly", "inputs.budget": "3h",
        "inputs.bisect_budget": "30m", "inputs.data": "/data",
    }  # fmt: skip
    if event != "schedule":  # whose event names no repository
        names["github.event.repository.default_branch"] = "main"
    return names | (
        {"github.ref_name": "12/merge", "github.head_ref": branch} if is_request else {"github.ref_name": branch}
    )


@pytest.mark.parametrize(
    ("name", "event", "branch", "expected"),
    [
        ("github-actions.yml", "schedule", "main", None),
        ("github-actions.yml", "workflow_dispatch", "main", None),
        ("github-actions.yml", "workflow_dispatch", "me/fast", "me-fast"),
        (REUSABLE, "schedule", "main", None),
        (REUSABLE, "push", "main", None),
        (REUSABLE, "push", "me/fast", "me-fast"),
        (REUSABLE, "pull_request", "me/fast", "me-fast"),
        (REUSABLE, "workflow_dispatch", "v1.0", "v1.0"),
        (GITLAB, "schedule", "main", None),
        (GITLAB, "schedule", "me/fast", "me-fast"),
        (GITLAB, "merge_request_event", "me/fast", "me-fast"),
    ],
)
def test_a_night_of_a_ci_system_has_its_branch_and_a_name_of_its_own(
    name: str, event: str, branch: str, expected: str | None, tmp_path: Path
) -> None:
    job = Job(Machine(tmp_path / "machine"))
    for run_id in (7, 8, 8):  # two pushes of a day, and the second one again after it was killed
        assert job.run(name, names_of(name, event, branch, run_id))
    options = [parse_command_line(arguments[1:]) for arguments in job.machine.started]
    assert {(o.suite, o.budget, o.branch, o.page_url) for o in options} == {("nightly", 3 * 3600.0, expected, None)}
    first, second, again = (o.night for o in options)
    assert first < second == again


@pytest.mark.parametrize("fails", ["the checkout", "the night"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_night_that_fails_early_uploads_no_file_of_the_night_before(name: str, fails: str, tmp_path: Path) -> None:
    job, event = Job(Machine(tmp_path / "machine")), "push" if name == REUSABLE else "schedule"
    assert not job.run(name, names_of(name, event, "main"), fails)
    assert len(job.machine.started) == (fails == "the night") and job.uploaded == []


@pytest.mark.parametrize(("caller", "places"), [("us/levelfield", [None]), ("them/kernels", [None, "caller"])])
def test_the_reusable_workflow_checks_levelfield_out_whoever_calls(
    caller: str, places: list[str | None], tmp_path: Path
) -> None:
    job = Job(Machine(tmp_path / "machine"))
    assert job.run(REUSABLE, names_of(REUSABLE, "push", "main", caller=caller))
    assert [checkout.get("path") for checkout in job.checkouts] == places
    assert [checkout.get("repository") for checkout in job.checkouts] == ["us/levelfield", None][: len(places)]
    assert not any("ref" in checkout for checkout in job.checkouts), "of a pull request its own"
