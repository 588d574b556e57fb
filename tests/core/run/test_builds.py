"""Builds of other commits: checked out once, pinned on request, and run through their own command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from levelfield.errors import RunFailed
from levelfield.run import builds
from levelfield.run.builds import CommitBuild, Pin, build_of, commits_between, run_of

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
    (folder / "models" / "torch").mkdir(parents=True)
    (folder / "models" / "torch" / "implementation.yaml").write_text("packages:\n  - torch==2.13.0\n  - numpy==2.4.6\n")
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
    said: list[str] = []
    first = build_of(commits[0], say=said.append)
    assert build_of(commits[0], say=said.append) == first and len(said) == 1
    assert run_of(first, ["--case", "x"], tmp_path / "runs", 60).root == tmp_path / "runs" / "0"
    assert run_of(build_of(commits[1], say=say), [], tmp_path / "runs", 60).root.name == "1"
    assert [path.name for path in first.folder.parent.iterdir() if path.name.startswith(".")] == []


def test_a_pinned_build_changes_that_package_alone(commits: list[str]) -> None:
    build = build_of(commits[2], Pin("torch", ("torch",), "2.11.0"), say=say)
    text = (build.folder / "models" / "torch" / "implementation.yaml").read_text()
    assert text == "packages:\n  - torch==2.11.0\n  - numpy==2.4.6\n"
    assert "torch==2.13.0" in (build_of(commits[2], say=say).folder / "models/torch/implementation.yaml").read_text()


def test_a_pinned_build_has_no_further_versions(commits: list[str], tmp_path: Path) -> None:
    """Their pins would be changed too, and the manifest would contradict itself."""
    manifest = tmp_path / "checkout/models/torch/implementation.yaml"
    manifest.write_text(manifest.read_text() + 'versions:\n  "2.12.0":\n    packages: [torch==2.12.0]\n')
    git(tmp_path / "checkout", "commit", "-q", "-a", "-m", "versions")
    build = build_of(git(tmp_path / "checkout", "rev-parse", "HEAD"), Pin("torch", ("torch",), "2.11.0"), say=say)
    text = (build.folder / "models" / "torch" / "implementation.yaml").read_text()
    assert text == "packages:\n  - torch==2.11.0\n  - numpy==2.4.6\n"


def test_packages_of_one_version_change_together_and_keep_their_extras(commits: list[str], tmp_path: Path) -> None:
    manifest = tmp_path / "checkout/models/torch/implementation.yaml"
    manifest.write_text("packages:\n  - torch[cuda12,x]==2.13.0\n  - torchlib==2.13.0\n  - my-torch==2.13.0\n")
    git(tmp_path / "checkout", "commit", "-q", "-a", "-m", "extras")
    pin = Pin("torch", ("torch", "torchlib"), "2.11.0+cpu")
    build = build_of(git(tmp_path / "checkout", "rev-parse", "HEAD"), pin, say=say)
    text = (build.folder / "models" / "torch" / "implementation.yaml").read_text()
    pins = ["torch[cuda12,x]==2.11.0+cpu", "torchlib==2.11.0+cpu", "my-torch==2.13.0"]
    assert text == "".join(["packages:\n", *(f"  - {pin}\n" for pin in pins)])
    assert str(build) == "torch==2.11.0+cpu torchlib==2.11.0+cpu"


@pytest.mark.parametrize(
    "pin",
    [
        Pin("torch", ("orch",), "1"),
        Pin("torch", ("scipy",), "1"),
        Pin("jax", ("jax",), "1"),
        Pin("torch", ("torch", "scipy"), "1"),
    ],
)
def test_a_package_that_nothing_pins_is_refused(commits: list[str], pin: Pin) -> None:
    with pytest.raises(RunFailed, match=r"implementation\.yaml"):
        build_of(commits[2], pin, say=say)


@pytest.mark.parametrize("commit", ["HEAD", "--help", "0" * 39, "../" + "0" * 37, "0" * 40])
def test_what_is_no_commit_of_the_checkout_is_refused_and_leaves_nothing(
    commits: list[str], commit: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed):
        build_of(commit, say=say)
    assert not [*(tmp_path / "cache").rglob("run_benchmarks.py")]
    assert not [path for path in (tmp_path / "cache").rglob(".*") if path.is_dir() and path.name != ".git"]


def test_commits_between_two(commits: list[str]) -> None:
    assert commits_between(commits[0], commits[2]) == commits
    for good, bad in ((commits[2], commits[0]), (commits[0], commits[0]), ("nothing", commits[0])):
        with pytest.raises(RunFailed):
            commits_between(good, bad)


def test_a_build_that_gives_no_result_is_named_with_its_last_words(commits: list[str], tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="gave no result, exit code 3: a reason"):
        run_of(build_of(commits[0], say=say), ["--fail"], tmp_path, 60)
    with pytest.raises(RunFailed, match="could not be run"):
        run_of(build_of(commits[0], say=say), [], tmp_path, 0.0)
    with pytest.raises(RunFailed, match="gave no result"):
        run_of(CommitBuild(commits[0], tmp_path / "none"), [], tmp_path, 60)


def test_the_store_is_not_written_by_a_build(commits: list[str], tmp_path: Path) -> None:
    build = build_of(commits[0], say=say)
    (build.folder / "run_benchmarks.py").write_text(
        "import json, os\nprint(json.dumps([{'run_id': os.environ['LEVELFIELD_STORE']}]))"
    )
    assert run_of(build, [], tmp_path, 60).root.name == "none"
