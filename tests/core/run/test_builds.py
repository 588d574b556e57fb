"""Builds of other commits: checked out once, and run through their own command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from levelfield.errors import RunFailed
from levelfield.run import builds
from levelfield.run.builds import CommitBuild, checkout_build, commits_between, run_with_build

PROGRAM = """\
import json, os, sys
runs = sys.argv[sys.argv.index("--runs") + 1]
print(json.dumps([{"run_id": "%s", "arguments": sys.argv[1:]}]) if "--fail" not in sys.argv else "no", flush=True)
print("a reason", file=sys.stderr)
sys.exit(3 if "--fail" in sys.argv else 0)
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three commits of a checkout whose program prints its own number as the run's name."""
    folder = tmp_path / "checkout"
    git(tmp_path, "init", "-q", str(folder))
    made = []
    for number in range(3):
        (folder / "run_benchmarks.py").write_text(PROGRAM % number)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", str(number))
        made.append(git(folder, "rev-parse", "HEAD"))
    monkeypatch.setattr(builds, "checkout", lambda: folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def say(text: str) -> None:
    pass


def test_a_build_has_the_code_of_its_commit_and_is_made_once(commits: list[str], tmp_path: Path) -> None:
    sentences: list[str] = []
    first = checkout_build(commits[0], say=sentences.append)
    assert checkout_build(commits[0], say=sentences.append) == first and len(sentences) == 1
    assert run_with_build(first, ["--case", "x"], tmp_path / "runs", 60).root == tmp_path / "runs" / "0"
    assert run_with_build(checkout_build(commits[1], say=say), [], tmp_path / "runs", 60).root.name == "1"
    assert [path.name for path in first.folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("commit", ["HEAD", "--help", "0" * 39, "../" + "0" * 37, "0" * 40])
def test_what_is_no_commit_of_the_checkout_is_refused_and_leaves_nothing(
    commits: list[str], commit: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed):
        checkout_build(commit, say=say)
    assert not [*(tmp_path / "cache").rglob("run_benchmarks.py")]
    assert not [path for path in (tmp_path / "cache").rglob(".*") if path.is_dir() and path.name != ".git"]


def test_commits_between_two(commits: list[str]) -> None:
    assert commits_between(commits[0], commits[2]) == commits
    for good, bad in ((commits[2], commits[0]), (commits[0], commits[0]), ("nothing", commits[0])):
        with pytest.raises(RunFailed):
            commits_between(good, bad)


def test_a_build_that_gives_no_result_is_named_with_its_last_words(commits: list[str], tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"\b3\b.*reason"):
        run_with_build(checkout_build(commits[0], say=say), ["--fail"], tmp_path, 60)
    with pytest.raises(RunFailed, match="0 seconds"):
        run_with_build(checkout_build(commits[0], say=say), [], tmp_path, 0.0)
    with pytest.raises(RunFailed, match=r"\b2\b.*none/run_benchmarks"):
        run_with_build(CommitBuild(commits[0], tmp_path / "none"), [], tmp_path, 60)


def test_the_store_is_not_written_by_a_build(commits: list[str], tmp_path: Path) -> None:
    build = checkout_build(commits[0], say=say)
    (build.folder / "run_benchmarks.py").write_text(
        "import json, os\nprint(json.dumps([{'run_id': os.environ['LEVELFIELD_STORE']}]))"
    )
    assert run_with_build(build, [], tmp_path, 60).root.name == "none"
