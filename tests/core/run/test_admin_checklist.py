"""The checklist docs/data/admin_checklist.txt: its lines are what is rendered, and no option lacks one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from levelfield.checkout import checkout
from levelfield.cli.main import main

SECTION = (checkout() / "docs/data/admin_checklist.txt").read_text(encoding="utf-8")
SITES = re.findall(r"(    schema: .*?)\n\n", SECTION, re.DOTALL)
ROWS = [[cell.strip() for cell in line.split(" | ")] for line in SECTION.splitlines() if line.startswith("| ")][1:]


def rendered(site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the files that a dry run with this site's file prints, by name."""
    file = tmp_path / "site.yaml"
    file.write_text("\n".join(line[4:] for line in site.splitlines()))
    command = ("--case", "llama3_8b:torch:H100:4:8", "--runs", "/shared/levelfield/runs", "--dry-run", "--json")
    assert main([*command, "--site", str(file)]) == 0, capsys.readouterr().err
    (content,) = json.loads(capsys.readouterr().out)
    files: dict[str, str] = content["request"]["submissions"][0]["files"]
    return files


def named(column: int) -> list[str]:
    return [text for row in ROWS for text in re.findall(r"`([^`]+)`", row[column])]


def test_the_section_has_two_sites_and_a_table() -> None:
    assert len(SITES) == 2 and len(ROWS) == 19 and all(len(row) == 3 for row in ROWS)


def test_every_line_of_the_job_is_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = rendered(SITES[0], tmp_path, capsys)
    script = files["nodes/job.sbatch"]
    text = script + files["nodes/common.json"] + files["nodes/node0.json"]
    assert [line for line in named(1) if line not in text] == []
    directives = re.findall(r"^#SBATCH (--[a-z-]+)", script, re.MULTILINE)
    answered = [line for line in named(1) if line.startswith("#SBATCH")]
    assert len(directives) == 16
    assert [option for option in directives if not any(line.split()[1].startswith(option) for line in answered)] == []


def test_every_line_of_the_manifest_is_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = rendered(SITES[1], tmp_path, capsys)
    text = files["manifest.yaml"]
    assert [line for line in named(2) if line not in text] == []
