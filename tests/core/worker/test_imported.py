"""What a rank reports of its imports, and a report that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.testing.framework_kit.small_runs import imported_by, imported_by_all
from levelfield.worker.imported import VARIABLE, report_imported

PLATFORM = Path(__file__).parents[3] / "platform"
SCRIPT = """
import sys, types, beside
sys.path.insert(0, {other!r})
import elsewhere, numpy
sys.modules["fake"] = types.ModuleType("fake")
sys.modules["fake"].__file__ = "_classes.py"
from levelfield.worker.imported import report_imported
report_imported(3)
"""


def test_a_rank_reports_its_own_modules_wherever_they_lie_and_no_installed_ones(tmp_path: Path) -> None:
    own, other, out = (tmp_path / name for name in ("own", "other", "out"))
    for folder in (own, other, out):
        folder.mkdir()
    for path in (own / "beside.py", own / "unused.py", other / "elsewhere.py"):
        path.write_text("")
    (own / "link.py").symlink_to(own / "beside.py")
    (own / "train.py").write_text(SCRIPT.format(other=str(other)))
    environment = {**os.environ, VARIABLE: str(out), "PYTHONPATH": str(PLATFORM)}
    subprocess.run([sys.executable, str(own / "train.py")], check=True, env=environment)
    found = set(imported_by(out, 3))
    assert {str(own / "train.py"), str(own / "beside.py"), str(other / "elsewhere.py")} <= found
    assert str(PLATFORM / "levelfield/worker/imported.py") in found
    assert not [path for path in found if "unused" in path or "numpy" in path or "_classes" in path]


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    report_imported(0)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_written_fails_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    report_imported(0)
    assert "the imported files cannot be written" in capsys.readouterr().err


def test_a_rank_without_a_report_makes_the_files_of_all_unknown(tmp_path: Path) -> None:
    (tmp_path / "rank0.imported").write_text(json.dumps(["/a", "/b"]))
    (tmp_path / "rank1.imported").write_text(json.dumps(["/b", "/c"]))
    reports = [imported_by(tmp_path, rank) for rank in (0, 1, 2)]
    assert imported_by_all(reports[:2]) == {"/a", "/b", "/c"}
    assert imported_by_all(reports) == frozenset()
