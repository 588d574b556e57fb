"""A build that does not run: the message names it, and a search ends where the good one does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compared_records import record
from levelfield.errors import RunFailed
from levelfield.nights import bisection, build_pairs
from levelfield.nights.bisection import BuildComparison
from levelfield.nights.build_pairs import Arm, ArmFailed, paired_records
from levelfield.run.builds import CommitBuild
from levelfield.rundir.directory import PAIRS_FOLDER
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord

SERIES = record().series
ENDS = "import sys\nsys.exit('absent')\n"


def arm(name: str, folder: Path) -> Arm:
    folder.mkdir()
    (folder / "run_benchmarks.py").write_text(ENDS)
    return Arm(name, CommitBuild(name * 40, folder), ())


def test_a_build_that_gives_no_result_is_named(tmp_path: Path) -> None:
    arms = [arm("a", tmp_path / "first"), arm("b", tmp_path / "second")]
    pairs = paired_records(arms, 3, tmp_path, SERIES, lambda name, paths: pytest.fail("ran"))
    with pytest.raises(ArmFailed, match=r"a{12}:.*1: absent$") as error:
        next(pairs)
    assert error.value.arm == "a"


WRITES = """\
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--runs") + 1]) / "a-run"
folder.mkdir(parents=True)
print(json.dumps([{"run_id": folder.name}]))
"""


def test_runs_of_pairs_are_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """So neither the folder's latest run nor its matrix takes one of them."""
    arms = [arm("a", tmp_path / "first"), arm("b", tmp_path / "second")]
    (arms[0].build.folder / "run_benchmarks.py").write_text(WRITES)
    folders: list[Path] = []

    def store_run(name: str, paths: RunPaths) -> RunRecord:
        folders.append(paths.root)
        return record(word="failed")

    with pytest.raises(ArmFailed):
        next(paired_records(arms, 3, tmp_path / "runs", SERIES, store_run))
    assert folders[0] == tmp_path / "runs" / PAIRS_FOLDER / "a-run" and folders[0].is_dir()


@dataclass
class FailingComparison(BuildComparison):
    """A comparison whose pairs end at once, in this arm."""

    arm: str = "a"

    def _pairs(self, build: CommitBuild) -> Iterator[tuple[float | None, float | None]]:
        raise ArmFailed(Arm(self.arm, build, ()), "absent")


@pytest.mark.parametrize("name", ["a", "b"])
def test_only_the_good_build_ends_a_search(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    plan: Any = None
    comparison = FailingComparison(
        plan, CommitBuild("0" * 40, tmp_path), "memory_bytes", tmp_path, (), lines.append, arm=name
    )
    other = CommitBuild("1" * 40, tmp_path)
    if name == "b":
        assert comparison.judge(other) == "unknown" and lines == ["111111111111: absent"]
        return
    with pytest.raises(RunFailed, match=r"first build.*absent"):
        comparison.judge(other)


def test_the_runs_of_one_figure_answer_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The bad build has fewer tokens and more memory; runs of a build that was not tried are run."""
    started: list[str] = []
    series = SimpleNamespace(fingerprint=lambda: "S", label="S")

    def run_of(build: CommitBuild, *rest: Any) -> str:
        started.append(build.commit)
        return build.commit

    def record_of(commit: str) -> Any:
        slower = 1.1 if commit[0] == "b" else 1.0
        figures = {"tokens_per_second_per_device": 1000 / slower, "memory_bytes": 1e9 * slower}
        quiet, subject = SimpleNamespace(other_use=None), SimpleNamespace(commit=None)
        return SimpleNamespace(word="valid", series=series, run_id="r", subject=subject, result=quiet, **figures)

    monkeypatch.setattr(build_pairs, "run_with_build", run_of)
    monkeypatch.setattr(bisection, "record_of", record_of)
    monkeypatch.setattr(bisection, "series_of", lambda plan: series)
    monkeypatch.setattr(bisection, "make_arms", lambda plan, a, b, *rest: (Arm("a", a, ()), Arm("b", b, ())))
    monkeypatch.setattr(BuildComparison, "_shared_python", lambda self, build: None)
    good, bad, fine = (CommitBuild(name * 40, tmp_path) for name in "abc")
    plan: Any = None
    first = BuildComparison(plan, good, "tokens_per_second_per_device", tmp_path, (), print, 0.0953)
    assert first.judge(bad) == "bad" and started == [build.commit for build in (good, bad, bad, good)]
    other = BuildComparison(plan, good, "memory_bytes", tmp_path, (), print, 0.0953, first.records)
    assert other.judge(bad) == "bad" and len(started) == 4
    assert other.judge(fine) == "good" and started[4:] == [build.commit for build in (good, fine, fine, good)]
    alone = BuildComparison(plan, good, "memory_bytes", tmp_path, (), print, 0.0953)
    assert alone.judge(bad) == "bad" and len(started) == 12
