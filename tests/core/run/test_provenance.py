"""What a run notes of its own code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from levelfield.run import provenance
from levelfield.run.provenance import source


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("1\n")
    for words in (["init", "-q"], ["add", "a.py"], ["commit", "-qm", "one"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_files_that_differ_from_the_commit_are_named(repository: Path) -> None:
    assert source(repository)["changed_files"] == []
    (repository / "a.py").write_text("2\n")
    assert source(repository)["changed_files"] == ["a.py"]


def test_a_status_that_does_not_come_is_no_clean_checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = provenance._git
    monkeypatch.setattr(
        provenance, "_git", lambda folder, *words: None if words[0] == "status" else known(folder, *words)
    )
    found = source(repository)
    assert found["commit"] and found["changed_files"] is None and "git status failed" in found["reason"]


def test_outside_of_git_there_is_a_reason(tmp_path: Path) -> None:
    assert source(tmp_path) == {"commit": None, "reason": "not a git checkout, or git is missing"}
