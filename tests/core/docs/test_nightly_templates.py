"""The templates of docs/nightly: valid by their makers' schemas and tools, and with options that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
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
