"""A night of a branch in a clone: its run is stored as one of the branch, and the pages stay as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cloned_project import ClonedNights

pytestmark = pytest.mark.e2e


@pytest.mark.thorough  # tests/core/nights/test_branch_nights.py has it on stored runs
def test_a_night_of_a_branch_is_no_night_of_the_default_one(tmp_path: Path) -> None:
    project, site = ClonedNights(tmp_path), tmp_path / "site"
    assert project.night("2026-01-23", "--no-confirm")[0] == 0
    project.commit("of a branch")
    code, findings, _err = project.night(
        "2026-01-24.7", "--no-confirm", "--branch", "me/fast", "--html", str(site), "--markdown", str(tmp_path / "n.md")
    )
    assert code == 0 and {finding["night"] for finding in findings} == {"2026-01-24.7@me-fast"}
    _code, out, _err = project.run("store", "export")
    lines = [json.loads(line) for line in out.splitlines()]
    runs = [(line["night"], line["purpose"]) for line in lines if line["schema"] == "levelfield.record/1"]
    assert runs == [("2026-01-23", "nightly"), ("2026-01-24.7@me-fast", "branch")]
    assert "2026-01-24.7@me-fast" in (tmp_path / "n.md").read_text()
    assert "2026-01-23" in (site / "data" / "badge.json").read_text()
    code, out, _err = project.run("nightly", "gate")
    assert code == 0 and out.startswith("night 2026-01-23 ")
