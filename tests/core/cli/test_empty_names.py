"""A name that is empty, or a part of every name, acts on nothing: with one run there, that run would be taken."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.nights.stored_nights import find_series
from levelfield.rundir.directory import find_run
from levelfield.specs.paths import RunPaths
from levelfield.store.database import Store
from levelfield.studies.compared_runs import BundleRuns, RunSources, parse_bundle_name

Printed = pytest.CaptureFixture[str]
NO_NAMES = ("", " ", "\t", ".", "..", "/", "_", "-", "./")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def runs(run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> Path:
    """A folder with one run, which is in a store and in a bundle beside it, too."""
    monkeypatch.setenv("LEVELFIELD_RUNS", str(run.root.parent))
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "results.sqlite"))
    monkeypatch.chdir(tmp_path)
    assert main(["store", "import", str(run.root)]) == 0
    assert main(["evidence", "bundle", run.root.name, "--output", "one.zip"]) == 0
    (tmp_path / "own").mkdir()
    capsys.readouterr()
    return run.root.parent


COMMANDS = (
    "align references promote EMPTY --reason x --plugins own", "align references noise tiny EMPTY",
    "align EMPTY", "align latest EMPTY",
    "evidence bundle EMPTY --output x.zip", "evidence bundle latest --output EMPTY", "evidence bundle latest --output=",
    "evidence collect EMPTY", "evidence verify EMPTY",
    "report EMPTY", "report latest EMPTY", "report one.zip:", "report explain EMPTY", "report pages EMPTY",
    "report pages site EMPTY", "report latest --output EMPTY",
    "compare EMPTY latest", "compare latest EMPTY", "compare latest, latest", "compare one.zip: latest",
    "compare one.zip, latest", "compare latest latest --html EMPTY", "diagnose EMPTY --against fake",
    "nightly accept EMPTY --reason x", "nightly accept --reason x --run EMPTY SERIES", "nightly note EMPTY --reason x",
    "nightly history EMPTY", "nightly levels EMPTY", "nightly accept sha256: --reason x", "nightly accept : --reason x",
    "store import EMPTY", "store prune --run EMPTY", "store prune --case EMPTY", "store info --store EMPTY",
    "store export --output EMPTY", "show EMPTY", "show runs --runs EMPTY", "--case EMPTY", "--suite EMPTY",
    "--case tiny:fake --runs EMPTY --dry-run", "--case tiny:fake --layout EMPTY --dry-run", "run attach EMPTY",
    "--case tiny: --dry-run", "--plugins EMPTY show", "case new EMPTY --from x", "framework new EMPTY",
    "vendor new EMPTY", "EMPTY",
)  # fmt: skip


def test_an_empty_name_is_exit_code_2_and_changes_nothing(runs: Path, tmp_path: Path, capsys: Printed) -> None:
    before = tree(tmp_path)
    for text in COMMANDS:
        for empty in ("", " "):
            words = [empty if word == "EMPTY" else word for word in shlex.split(text)]
            try:
                code = main(words)
            except SystemExit as ended:
                code = int(ended.code or 0)
            printed = capsys.readouterr()
            assert code == 2 and printed.err and not printed.out, (words, code, printed)
            assert tree(tmp_path) == before, words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["align", "references", "promote", "", "--reason", "x", "--plugins", "own"],
            "found an empty value after `align references promote`, expected a name",
        ),
        (
            ["evidence", "bundle", "latest", "--output", ""],
            "after `--output`, expected a name, a file or another value. If a variable",
        ),
        (
            ["evidence", "bundle", ".", "--output", "x.zip"],
            "run '.': found no letter and no digit, expected an id",
        ),
    ],
)
def test_the_message_says_what_to_do(runs: Path, words: list[str], says: str, capsys: Printed) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_a_part_of_every_name_finds_nothing_anywhere(runs: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        find_run(runs, name)
    with Store.open(read_only=True) as store:
        for find in (
            lambda: store.find(name),
            lambda: find_series(store, name),
            lambda: find_series(store, f"sha256:{name}"),
            lambda: BundleRuns(tmp_path / "one.zip", Registry()).find_key(name),
            lambda: parse_bundle_name(f"one.zip:{name}"),
        ):
            with pytest.raises(UsageError, match="no digit"):
                find()
    for text in (name, f"one.zip,{name}", f"latest,{name}"):
        with RunSources(runs, None, Registry()) as places, pytest.raises(UsageError):
            places.runs_of_side(text)


def test_an_empty_name_is_not_the_folder_that_the_user_is_in(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = runs.iterdir()
    monkeypatch.chdir(only)
    for empty in ("", " "):
        with pytest.raises(UsageError, match="no digit"):
            find_run(runs, empty)
    assert find_run(runs, ".").root == find_run(runs, os.curdir).root == only.resolve()


def test_names_that_name_a_run_still_do(runs: Path) -> None:
    (only,) = runs.iterdir()
    for name in (only.name, only.name[-6:], "latest", str(only), f"{only}/", "tiny_"):
        assert find_run(runs, name).root == only.resolve(), name
    assert parse_bundle_name("one.zip") == parse_bundle_name("one.zip:*") == (Path("one.zip"), "*")
    assert parse_bundle_name("one.zip:?*") == (Path("one.zip"), "?*")
