"""What a rank reports of its imports, and a report that cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from levelfield.testing.framework_kit.small_runs import imported_by, imported_by_all

REPORT = Path(__file__).parents[3] / "platform/levelfield/testing/framework_kit/imports"
SCRIPT = """
import os, sys, types, beside
sys.path[:0] = [{other!r}, {other!r} + "/kernels"]
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {other!r} + "/kernels"  # as torch's compiler sets it
import elsewhere, numpy, generated
sys.modules["fake"] = types.ModuleType("fake")
sys.modules["fake"].__file__ = "_classes.py"
if not os.fork():
    os._exit(0)
os.wait()
{end}
"""


def run(folder: Path, out: Path | None, end: str = "os._exit(0)", other: Path | None = None) -> str:
    """A rank's script in `folder`, which reports to `out`; what it said on stderr."""
    (folder / "train.py").write_text(SCRIPT.format(other=str(other or folder), end=end))
    environment = {**os.environ, "RANK": "3", "PYTHONPATH": str(REPORT)}
    environment.pop("LEVELFIELD_IMPORTED", None)
    environment |= {"LEVELFIELD_IMPORTED": str(out)} if out else {}
    done = subprocess.run([sys.executable, str(folder / "train.py")], env=environment, capture_output=True, text=True)
    return done.stderr


def own_modules(folder: Path, *names: str) -> None:
    for name in names or ("beside.py", "elsewhere.py", "kernels/generated.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")


def test_a_rank_reports_its_own_modules_wherever_they_lie_and_no_installed_ones(tmp_path: Path) -> None:
    own, other, out = (tmp_path / name for name in ("own", "other", "out"))
    for folder in (own, other, out):
        folder.mkdir()
    own_modules(own, "beside.py", "unused.py")
    own_modules(other, "elsewhere.py", "kernels/generated.py")
    (own / "link.py").symlink_to(own / "beside.py")
    assert run(own, out, other=other) == ""
    found = set(imported_by(out, 3))
    assert {str(own / "train.py"), str(own / "beside.py"), str(other / "elsewhere.py")} == found


def test_without_the_variable_and_after_a_failure_nothing_is_written(tmp_path: Path) -> None:
    own_modules(tmp_path)
    run(tmp_path, None)
    run(tmp_path, tmp_path, end="os._exit(1)")
    assert not list(tmp_path.glob("*.imported"))


def test_a_report_that_cannot_be_written_fails_no_training(tmp_path: Path) -> None:
    own_modules(tmp_path)
    assert "imported files cannot be written" in run(tmp_path, tmp_path / "gone")


def test_a_rank_without_a_report_makes_the_files_of_all_unknown(tmp_path: Path) -> None:
    (tmp_path / "rank0.imported").write_text(json.dumps(["/a", "/b"]))
    (tmp_path / "rank1.imported").write_text(json.dumps(["/b", "/c"]))
    reports = [imported_by(tmp_path, rank) for rank in (0, 1, 2)]
    assert imported_by_all(reports[:2]) == {"/a", "/b", "/c"}
    assert imported_by_all(reports) == frozenset()
