"""A build that does not run: the message names it, and a search ends where the good one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.errors import RunFailed
from levelfield.nights import bisection, build_pairs
from levelfield.nights.bisection import BuildTrials
from levelfield.nights.build_pairs import Arm, ArmFailed, paired_records
from levelfield.run.builds import CommitBuild
from levelfield.rundir.directory import PAIRS

ENDS = "import sys\nsys.exit('it lacks a library')\n"


def arm(name: str, folder: Path) -> Arm:
    folder.mkdir()
    (folder / "run_benchmarks.py").write_text(ENDS)
    return Arm(name, CommitBuild(name * 40, folder), ())


def test_a_build_that_gives_no_result_is_named(tmp_path: Path) -> None:
    arms = [arm("a", tmp_path / "first"), arm("b", tmp_path / "second")]
    pairs = paired_records(arms, 3, tmp_path, series=None, keep=lambda name, paths: pytest.fail("nothing was run"))
    with pytest.raises(ArmFailed, match="aaaaaaaaaaaa: it gave no result, exit code 1: it lacks a library") as found:
        next(pairs)
    assert found.value.arm == "a"


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
    kept: list[Path] = []
    runs = paired_records(arms, 3, tmp_path / "runs", series=None, keep=lambda name, paths: kept.append(paths.root))
    with pytest.raises(ArmFailed):
        next(runs)
    assert kept == [tmp_path / "runs" / PAIRS / "a-run"] and kept[0].is_dir()


class Failing(BuildTrials):
    """Trials whose pairs end at once: the plan says in which arm."""

    def _pairs(self, build: CommitBuild) -> Iterator[tuple[float | None, float | None]]:
        raise ArmFailed(Arm(str(self.plan), build, ()), "no library")


@pytest.mark.parametrize("name", ["a", "b"])
def test_only_the_good_build_ends_a_search(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    trials = Failing(name, CommitBuild("0" * 40, tmp_path), "memory_bytes", tmp_path, (), said.append)
    other = CommitBuild("1" * 40, tmp_path)
    if name == "b":
        assert trials.answer(other) == "unknown" and said == ["111111111111: no library"]
        return
    with pytest.raises(RunFailed, match="the first build does not run, so nothing can be held against it"):
        trials.answer(other)


def test_the_runs_of_one_figure_answer_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The bad build has fewer tokens and more memory; runs of a build that was not tried are run."""
    started: list[str] = []
    series = SimpleNamespace(fingerprint=lambda: "S", label="S")

    def run_of(build: CommitBuild, *rest: Any) -> str:
        started.append(build.commit)
        return build.commit

    def record(commit: str) -> Any:
        slower = 1.1 if commit[0] == "b" else 1.0
        figures = {"tokens_per_second_per_device": 1000 / slower, "memory_bytes": 1e9 * slower}
        return SimpleNamespace(word="valid", series=series, run_id="r", subject=SimpleNamespace(commit=None), **figures)

    monkeypatch.setattr(build_pairs, "run_of", run_of)
    monkeypatch.setattr(bisection, "record_of", record)
    monkeypatch.setattr(bisection, "series_of", lambda plan: series)
    monkeypatch.setattr(bisection, "arms_of", lambda plan, a, b, *rest: (Arm("a", a, ()), Arm("b", b, ())))
    monkeypatch.setattr(BuildTrials, "_python", lambda self, build: None)
    good, bad, fine = (CommitBuild(name * 40, tmp_path) for name in "abc")
    plan: Any = None
    first = BuildTrials(plan, good, "tokens_per_second_per_device", tmp_path, (), str, 0.0953)
    assert first.answer(bad) == "bad" and started == [each.commit for each in (good, bad, bad, good)]
    other = BuildTrials(plan, good, "memory_bytes", tmp_path, (), str, 0.0953, first.ran)
    assert other.answer(bad) == "bad" and len(started) == 4
    assert other.answer(fine) == "good" and started[4:] == [each.commit for each in (good, fine, fine, good)]
    alone = BuildTrials(plan, good, "memory_bytes", tmp_path, (), str, 0.0953)
    assert alone.answer(bad) == "bad" and len(started) == 12
