"""Runs from the folder of runs and from the store: the same runs, figures from the raw files, and a lazy store."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import DocumentError, GateFailed, LevelfieldError, UnknownName, UsageError
from levelfield.evidence.bundle_reader import Bundle, RunInBundle
from levelfield.evidence.verification import RunVerification, verify_run
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction
from levelfield.rundir.directory import PAIRS_FOLDER, write_json
from levelfield.specs.paths import RunPaths
from levelfield.store.database import Store
from levelfield.store.run_record import record_of
from levelfield.studies import compared_runs
from levelfield.studies.compared_runs import BundleRuns, FolderRuns, RunSources, StoreRuns
from recorded_runs import rename

IDS = ["20260102T030405Z_tiny_fake_fake_00000a", "20260102T030406Z_tiny_fake_fake_00000b"]


@pytest.fixture
def folder(run: RunPaths, tmp_path: Path) -> Path:
    """Two runs of one series, with their results."""
    runs = tmp_path / "two-runs"
    for number, run_id in enumerate(IDS, start=1):
        shutil.copytree(run.root, runs / run_id)
        paths = RunPaths(runs / run_id)
        rename(paths, repeat=number)
        write_json(paths.result, {"schema": "levelfield.result/1", **collect(paths).model_dump(mode="json")})
    return runs


@pytest.fixture
def stored(folder: Path, tmp_path: Path) -> str:
    """A store with the runs of the folder."""
    url = str(tmp_path / "results.sqlite")
    source = FolderRuns(folder)
    with Store.open(url) as store:
        store.add([source.record(str(folder / run_id)) for run_id in IDS])
    return url


def test_folder_and_store_give_the_same_records(folder: Path, stored: str) -> None:
    files = FolderRuns(folder)
    with Store.open(stored, read_only=True) as store:
        rows = StoreRuns(store)
        for run_id in IDS:
            record = files.record(files.find_key(run_id))
            assert record.command_repeats == 1
            assert record.model_copy(update={"command_repeats": None}) == rows.record(rows.find_key(run_id))
        assert files.series() == rows.series() and len(files.series()) == 1
        (series,) = files.series()
        newest = [record.run_id for record in files.newest_runs(series)]
        assert newest == IDS[::-1] == [record.run_id for record in rows.newest_runs(series)]
        assert [Path(key).name for key in files.matching_keys("*00000a")] == rows.matching_keys("*00000a") == IDS[:1]


def test_a_pattern_with_a_folder_is_a_path(folder: Path, tmp_path: Path) -> None:
    keys = FolderRuns(tmp_path / "elsewhere").matching_keys(f"{folder}/*00000b")
    assert [Path(key).name for key in keys] == IDS[1:]


def test_an_edited_result_changes_nothing(folder: Path) -> None:
    before = FolderRuns(folder).record(str(folder / IDS[0]))
    path = folder / IDS[0] / "result.json"
    changed = json.loads(path.read_text())
    changed["throughput"]["tokens_per_second_per_device"] *= 4
    path.write_text(json.dumps(changed))
    assert FolderRuns(folder).record(str(folder / IDS[0])) == before


def test_repeats_of_one_command_are_in_the_order_of_their_numbers(folder: Path) -> None:
    """Their ids have one time and random ends."""
    for number, (old, end) in enumerate(zip(IDS, ("ffffff", "000000"), strict=True), start=1):
        paths = RunPaths((folder / old).rename(folder / f"{IDS[0][:-6]}{end}"))
        rename(paths, repeat=number)
    source = FolderRuns(folder)
    assert [r.run_id[-6:] for r in source.newest_runs(source.series()[0])] == ["000000", "ffffff"]


def test_a_run_of_the_future_is_not_the_newest(folder: Path, tmp_path: Path) -> None:
    """Its machine's clock was wrong. Folder and store give it after all others."""
    ahead = "21100102T030405Z_tiny_fake_fake_00000c"
    paths = RunPaths(Path(shutil.copytree(folder / IDS[0], folder / ahead)))
    rename(paths)
    source = FolderRuns(folder)
    (series,) = source.series()
    assert [record.run_id for record in source.newest_runs(series)] == [*IDS[::-1], ahead]
    with Store.open(str(tmp_path / "results.sqlite")) as store:
        store.add([source.record(str(folder / run_id)) for run_id in (*IDS, ahead)])
        assert store.find("latest") == IDS[1]
        assert [record.run_id for record in StoreRuns(store).newest_runs(series)] == [*IDS[::-1], ahead]


def test_a_run_of_a_pair_is_not_the_newest_of_its_series(folder: Path, stored: str) -> None:
    """Pairs run the older build last. `compare --matrix` and a series' label show the night's own run."""
    with Store.open(stored) as store:
        older = store.record(IDS[1]).model_copy(
            update={"run_id": "pair", "content": "pair", "began": "2026-01-03T00:00:00+00:00", "purpose": "confirm-a"}
        )
        store.add([older])
        (series,) = StoreRuns(store).series()
        assert [record.run_id for record in StoreRuns(store).newest_runs(series)] == IDS[::-1]
    with RunSources(folder / "none", stored, Registry()) as places:
        assert [record.run_id for record in places.latest_runs()] == IDS[::-1]
        assert [record.run_id for record in places.runs_of_side("tiny:fake").runs] == IDS
        assert [record.run_id for record in places.runs_of_side("pair").runs] == ["pair"]
    (folder / PAIRS_FOLDER).mkdir()
    (folder / IDS[1]).rename(folder / PAIRS_FOLDER / IDS[1])
    source = FolderRuns(folder)
    assert [record.run_id for record in source.newest_runs(series)] == IDS[:1]
    assert source.record(source.find_key(IDS[1])).run_id == IDS[1]


def test_a_damaged_run_is_in_no_series(folder: Path) -> None:
    (folder / IDS[0] / "plan.json").write_text("{}")
    source = FolderRuns(folder)
    (series,) = source.series()
    assert [record.run_id for record in source.newest_runs(series)] == IDS[1:]


class TestPlaces:
    def test_a_run_of_the_folder_opens_no_store(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: object, **options: object) -> None:
            raise AssertionError("a store was opened")

        monkeypatch.setattr(Store, "open", refuse)
        with RunSources(folder, None, Registry()) as places:
            assert [record.run_id for record in places.runs_of_side(IDS[0]).runs] == IDS[:1]
            assert [record.run_id for record in places.runs_of_side(IDS[1], with_repeats=True).runs] == IDS

    def test_the_store_has_what_no_folder_has(
        self, tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LEVELFIELD_STORE", stored)
        with RunSources(tmp_path / "no-runs", None, Registry()) as places:
            assert [record.run_id for record in places.runs_of_side("tiny:fake").runs] == IDS
            assert [record.run_id for record in places.latest_runs()] == IDS[::-1]
            with pytest.raises(UnknownName):
                places.runs_of_side("nothing")

    def test_a_named_store_is_the_only_place(self, folder: Path, tmp_path: Path) -> None:
        with Store.open(str(tmp_path / "empty.sqlite")):
            pass
        with RunSources(folder, str(tmp_path / "empty.sqlite"), Registry()) as places, pytest.raises(UnknownName):
            places.runs_of_side(IDS[0])

    @pytest.mark.parametrize("value", ["none", "missing"])
    def test_without_a_store_the_error_is_of_the_folder(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        monkeypatch.setenv("LEVELFIELD_STORE", "none" if value == "none" else str(tmp_path / "missing.sqlite"))
        with RunSources(folder, None, Registry()) as places:
            with pytest.raises(UnknownName, match="run 'nothing'"):
                places.runs_of_side("nothing")
            assert places.histories([]) == {} and not (tmp_path / "missing.sqlite").exists()

    def test_a_named_store_that_is_not_there_is_said(self, folder: Path, tmp_path: Path) -> None:
        with RunSources(folder, str(tmp_path / "missing.sqlite"), Registry()) as places, pytest.raises(UsageError):
            places.runs_of_side(IDS[0])


VERIFIED = Path(__file__).resolve().parents[3] / "docs" / "verified"
BUNDLES = {chip: VERIFIED / chip.lower() / "2026-11-28.zip" for chip in ("H100", "H200")}


def test_a_side_may_be_of_a_bundle(tmp_path: Path) -> None:
    """Here two chips' own bundles: by series, with an alias, by a part of an id, and by a pattern."""
    with RunSources(tmp_path, None, Registry()) as places:
        for chip, file in BUNDLES.items():
            (run,) = places.runs_of_side(
                f"{file}:llama_8b_wide:torch:{chip}" if chip == "H100" else f"{file}:772e3c"
            ).runs
            assert run.series.chip.startswith(chip) and run.evidence == "sealed"
        pattern = "*_llama_8b_wide_torch*"
        mixed = places.runs_of_side(f"{BUNDLES['H100']}:{pattern}, {BUNDLES['H200']}:{pattern}").runs
        assert [run.series.chip[:4] for run in mixed] == ["H100", "H200", "H200"]
        assert len(places.runs_of_side(str(BUNDLES["H100"])).runs) == 12
        with pytest.raises(UnknownName, match=r"2026-11-28\.zip 'nothing'"):
            places.runs_of_side(f"{BUNDLES['H100']}:nothing")
        with pytest.raises(UsageError, match="'llama': found 6"):
            places.runs_of_side(f"{BUNDLES['H100']}:llama")
        (tmp_path / "not.zip").write_text("{}")
        with pytest.raises(LevelfieldError, match=r"not\.zip: not"):
            places.runs_of_side(str(tmp_path / "not.zip"))
        with pytest.raises(UsageError, match=r"absent\.zip: no"):
            places.runs_of_side(str(tmp_path / "absent.zip"))


def test_a_changed_bundle_is_no_side(tmp_path: Path) -> None:
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(BUNDLES["H100"]) as before, zipfile.ZipFile(changed, "w") as after:
        for member in before.infolist():
            after.writestr(member, before.read(member).replace(b'"loss":12.5', b'"loss":12.4'))
    with RunSources(tmp_path, None, Registry()) as places, pytest.raises(GateFailed, match=r"digest"):
        places.runs_of_side(f"{changed}:772e3c")


@pytest.mark.thorough
def test_the_newest_run_of_a_bundle_s_series_comes_first() -> None:
    runs = BundleRuns(BUNDLES["H200"], Registry())
    newest = list(runs.newest_runs(runs.record(runs.find_key("e3451f")).series))
    assert [run.run_id[-6:] for run in newest] == ["772e3c", "e3451f"]


def test_a_run_of_a_bundle_that_cannot_be_computed_is_named_and_the_others_are_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def undated(paths: RunPaths, **computed: Any) -> object:
        if paths.root.name == IDS[0]:
            raise DocumentError("no date")
        return record_of(paths, **computed)

    bundle = str(tmp_path / "two.zip")
    assert main(["evidence", "bundle", *(str(folder / run_id) for run_id in IDS), "--output", bundle]) == 0
    monkeypatch.setattr(compared_runs, "record_of", undated)
    capsys.readouterr()
    assert main(["store", "import", bundle, "--store", str(tmp_path / "s.sqlite")]) == 2
    output = capsys.readouterr()
    assert "1 new" in output.out and f"{bundle}: no date" in " ".join(output.err.split())
    with RunSources(tmp_path, None, Registry()) as places, pytest.raises(UsageError, match="no date"):
        places.runs_of_side(f"{bundle}:00000b")


def test_a_report_may_be_of_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What does not follow from its raw files is refused, after the report of the others."""
    bundle, beside = BUNDLES["H100"], VERIFIED / "h100" / "llama-one-device.json"
    assert main(["report", f"{bundle}:5a07ac", "--json"]) == 0
    (computed,), stated = json.loads(capsys.readouterr().out), json.loads(beside.read_text())
    assert {name: computed[name] for name in ("throughput", "memory", "status")} == {
        name: stated[name] for name in ("throughput", "memory", "status")
    }
    assert main(["report", f"{bundle}:*_llama_8b_wide_*", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2
    for side, fault in (
        (f"{bundle}:none", "unknown run of"),
        (f"{tmp_path}/none.zip", "none.zip: no"),
    ):
        assert main(["report", side]) == 2 and fault in " ".join(capsys.readouterr().err.split())

    for command in (["report", "explain", str(bundle)], ["report", "pages", str(tmp_path / "p"), f"{bundle}:5a07ac"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "a bundle" in error and "`compare`" in error

    def verify_another_loss(run: RunInBundle, registry: Registry, bundle: Bundle) -> RunVerification:
        wrong = (Contradiction("the loss of step 1", "12.5", "12.4"),)
        verified = verify_run(run, registry, bundle)
        return replace(verified, contradictions=wrong) if "5a07ac" in run.name else verified

    monkeypatch.setattr(compared_runs, "verify_run", verify_another_loss)
    assert main(["report", str(bundle), "--format", "csv"]) == 4
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 12 and "5a07ac" not in output.out
    text = " ".join(output.err.split())
    assert all(fact in text for fact in ("5a07ac", "step 1", "12.5", "12.4", f"`evidence verify {bundle}`"))
