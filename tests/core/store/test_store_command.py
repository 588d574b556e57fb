"""`store` and the recording of runs, as a user calls them."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.cli.store_command import _EXPORT_REASON
from levelfield.cli.store_options import run_recorder
from levelfield.nights.nightly import NightEntry, NightState, state_path, write_state
from levelfield.run.runner import finish
from levelfield.rundir.directory import PAIRS_FOLDER, write_status
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord, StoreEvent
from levelfield.store.database import Store
from levelfield.store.schema import SCHEMA_VERSION
from levelfield.store.upkeep import prune
from plans import PLUGINS
from recorded_runs import change_steps, seal_again
from stored_records import changed

Command = Callable[..., tuple[int, str, str]]


def imported(output: str) -> tuple[int, int]:
    """Return the numbers of new and of known runs that an import printed."""
    match = re.match(r"(\d+) new, (\d+) known already", output)
    assert match, output
    return int(match[1]), int(match[2])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the store that the commands of the test use by default."""
    monkeypatch.setenv("LEVELFIELD_STORE", str(tmp_path / "s" / "results.sqlite"))
    monkeypatch.setenv("LEVELFIELD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    return tmp_path / "s" / "results.sqlite"


@pytest.fixture
def command(store: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """command(*arguments): exit code, stdout and stderr of one command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err and "fault of" not in err
        if arguments[0] == "store" and not {"export", "--json"} & {*arguments}:
            assert max(map(len, out.splitlines()), default=0) <= 80
        return code, out, " ".join(err.split())

    return run


def copies(run: RunPaths, count: int) -> Iterator[Path]:
    """Run directories beside `run`, each with its own id."""
    for number in range(count):
        run_id = f"{run.root.name[:-6]}{number:06x}"
        copy = Path(shutil.copytree(run.root, run.root.parent / run_id))
        for name in ("plan.json", "job.json"):
            (copy / name).write_text((copy / name).read_text().replace(run.root.name, run_id))
        seal_again(type(run)(copy))
        yield copy


def test_a_folder_of_runs_is_imported_once(command: Command, run: RunPaths, store: Path) -> None:
    list(copies(run, 3))
    code, out, err = command("store", "import", run.root.parent)
    assert (code, imported(out), err) == (0, (4, 0), "")
    assert imported(command("store", "import", run.root.parent, run.root)[1]) == (0, 5)
    code, out, _ = command("store", "info", "--json")
    assert code == 0 and json.loads(out)["rows"]["run"] == 4
    with Store.open(str(store), read_only=True) as opened:
        assert opened.record(opened.find("latest")).word == "valid"


def test_an_import_says_which_runs_count_in_no_comparison_and_why(command: Command, run: RunPaths) -> None:
    """Of a work that the training was not given, sealed again, and of a file that was edited after the seal."""
    plan = json.loads(run.plan.read_text())
    training = plan["work"]["training"]
    run.plan.write_text(json.dumps({**plan, "work": {**plan["work"], "training": {**training, "global_batch": 16}}}))
    seal_again(run)
    out = " ".join(command("store", "import", run.root)[1].split())
    assert f"{run.root.name}: reported: plan.json: work_digest:" in out
    run.plan.write_text(json.dumps(plan))
    out = json.loads(command("store", "import", run.root, "--json")[1])
    assert out["not_sealed"][run.root.name].startswith("tampered: ")


def test_runs_of_a_folder_keep_the_nights_that_lie_beside_them(command: Command, run: RunPaths, store: Path) -> None:
    entry = NightEntry(name="e", run_id=run.root.name, state="done")
    state = NightState(night="2026-01-04", suite="x", began="2026-01-04T00:00:00+00:00", entries=(entry,))
    write_state(state_path(run.root.parent, state.night, "x"), state)
    list(copies(run, 1))
    assert imported(command("store", "import", run.root.parent)[1]) == (2, 0)
    with Store.open(str(store), read_only=True) as opened:
        pruned = {record.run_id: (record.purpose, record.night) for record in opened.records()}
    assert pruned.pop(run.root.name) == ("nightly", "2026-01-04") and set(pruned.values()) == {("manual", None)}


def test_a_damaged_night_is_named_and_its_runs_are_imported(command: Command, run: RunPaths) -> None:
    (run.root.parent / "nightly_x_2026-01-04.json").write_text("{")
    code, out, err = command("store", "import", run.root.parent)
    assert "nightly_x_2026-01-04.json" in out + err and "1 new" in out and code == 2


def test_a_run_of_a_pair_is_refused_and_a_folder_leaves_its_pairs_out(
    command: Command, run: RunPaths, store: Path
) -> None:
    pair = run.root.parent / PAIRS_FOLDER / run.root.name
    shutil.copytree(run.root, pair)
    code, _, err = command("store", "import", pair)
    assert code == 2 and f"{pair}: " in err and "pair of" in err
    assert imported(command("store", "import", run.root.parent)[1]) == (1, 0)


def test_the_result_is_computed_from_the_raw_files(command: Command, run: RunPaths, store: Path) -> None:
    """A figure that was edited in result.json does not get into the store, unless somebody wants it."""
    finish(run)
    content = json.loads(run.result.read_text())
    content["throughput"]["tokens_per_second_per_device"] *= 4
    run.result.write_text(json.dumps(content))
    wrong = content["throughput"]["tokens_per_second_per_device"]
    for more, factor in ((), 4), (("--trust-results",), 1):
        assert command("store", "import", run.root, *more)[0] == 0
        with Store.open(str(store)) as opened:
            record = opened.record(run.root.name)
        assert record.tokens_per_second_per_device == pytest.approx(wrong / factor)
        assert record.evidence == ("reported" if more else "sealed")
        code, out, _ = command("store", "prune", "--run", run.root.name)
        assert code == 0 and "removed 1" in out


def test_a_run_with_other_content_is_kept_aside_and_named(command: Command, run: RunPaths, store: Path) -> None:
    command("store", "import", run.root)
    other = next(copies(run, 1))
    change_steps(run, lambda event: event.update(end_ns=event["end_ns"] + 1))
    code, out, err = command("store", "import", run.root, other)
    assert code == 2 and imported(out) == (1, 0)
    assert f"run {run.root.name}: " in err and "kept aside" in err
    code, out, _ = command("store", "check")
    assert code == 4 and f"--run {run.root.name}`" in " ".join(out.split())
    with Store.open(str(store)) as opened:
        assert opened.run_ids() == [other.name]
    assert command("store", "prune", "--run", run.root.name)[0] == 0
    assert imported(command("store", "import", run.root)[1]) == (1, 0)
    assert command("store", "check")[0] == 0


def test_what_cannot_be_imported_is_named_and_the_rest_is_imported(
    command: Command, run: RunPaths, tmp_path: Path
) -> None:
    good, broken, running = copies(run, 3)
    (broken / "plan.json").write_text("{")
    write_status(type(run)(running), "running", "running")
    (tmp_path / "bad.jsonl").write_text("{}\nnonsense\n")
    (tmp_path / "empty").mkdir()
    code, out, err = command("store", "import", run.root.parent, tmp_path / "bad.jsonl", "absent", tmp_path / "empty")
    assert code == 2 and imported(out) == (2, 0)
    for output in (
        f"{broken.name}/plan.json: not valid json",
        f"{running.name} is running (process",
        "bad.jsonl line 1: key 'schema': found None",
        "bad.jsonl line 2: not valid JSON",
        "unknown run 'absent'",
        "empty: found no run there, expected folders with a plan.json",
    ):
        assert output in err
    assert f"{good.name}/" not in err and f"run {good.name}" not in err


def test_an_export_is_a_whole_copy(command: Command, run: RunPaths, tmp_path: Path, store: Path) -> None:
    """Of runs, events, expectations and findings; a second import of it changes nothing."""
    list(copies(run, 2))
    command("store", "import", run.root.parent)
    with Store.open(str(store)) as opened:
        opened.add_event(
            StoreEvent(id="e", kind="note", series="s", at="2026-01-02T03:04:05+00:00", who="ann", why="x")
        )
        opened.add_expected_entries("2026-01-02", "nightly", {"a": None, "b": "sha256:b"})
        opened.add_finding("2026-01-02", {"word": "no change", "change": 0.01})
        before = contents(opened)
        before = ([record.mark_reported(_EXPORT_REASON) for record in before[0]], *before[1:])
    file, second = tmp_path / "all.jsonl", tmp_path / "second.sqlite"
    assert command("store", "export", "--output", file)[0] == 0
    output = command("store", "import", file, "--store", second)[1]
    counted, *reasons = output.splitlines()
    assert imported(counted) == (3, 0) and " 4 event(s)," in counted
    assert " 3 runs," in reasons[0] and "an export" in " ".join(reasons)
    for _ in range(2):
        with Store.open(str(second)) as opened:
            assert contents(opened) == before
        assert imported(command("store", "import", file, "--store", second)[1]) == (0, 3)
    assert len(command("store", "export", "--case", "absent")[1].splitlines()) == 4
    assert len(command("store", "export", "--since", "2027", "--format", "csv")[1].splitlines()) == 0


def test_an_export_that_was_edited_is_reported_until_the_raw_files_come(
    command: Command, run: RunPaths, tmp_path: Path, store: Path
) -> None:
    """Nothing shows whether a line of an export is as it was. The run's own files replace it."""
    finish(run)
    command("store", "import", run.root)
    file, second = tmp_path / "all.jsonl", tmp_path / "second.sqlite"
    assert command("store", "export", "--output", file)[0] == 0
    line = json.loads(file.read_text())
    right = line["tokens_per_second_per_device"]
    line["tokens_per_second_per_device"] *= 4
    file.write_text(json.dumps(line) + "\n")
    code, out, err = command("store", "import", file, "--store", second)
    message = f"key 'tokens_per_second_per_device': found {right * 4}, expected {right} as in its result"
    assert code != 0 and message in " ".join((out + err).split())
    line["result"]["throughput"]["tokens_per_second_per_device"] *= 4
    file.write_text(json.dumps(line) + "\n")
    for source, evidence, factor in ((file, "reported", 4), (run.root, "sealed", 1), (file, "sealed", 1)):
        assert command("store", "import", source, "--store", second)[0] == 0
        with Store.open(str(second)) as opened:
            record = opened.record(run.root.name)
        assert (record.evidence, record.is_comparable) == (evidence, evidence == "sealed")
        assert record.tokens_per_second_per_device == pytest.approx(right * factor)
    assert command("store", "check", "--store", second)[0] == 0
    assert command("store", "import", file, run.root, "--store", tmp_path / "third.sqlite")[0] == 0
    with Store.open(str(tmp_path / "third.sqlite")) as opened:
        assert opened.record(run.root.name).evidence == "sealed"


def contents(store: Store) -> tuple[list[RunRecord], list[StoreEvent], object, object, object]:
    return [*store.records()], store.events(), store.expected_entries("2026-01-02"), store.findings(), store.nights()


@pytest.mark.parametrize("action", [["info"], ["check"], ["export"], ["prune", "--keep-days", "1"]])
def test_what_only_looks_makes_no_store(command: Command, store: Path, action: list[str]) -> None:
    code, _, err = command("store", *action)
    assert code == 2 and f"{store}: " in err and "`store import RUNS`" in err and not store.parent.exists()


def test_a_bundle_is_the_same_run(command: Command, run: RunPaths, tmp_path: Path, store: Path) -> None:
    """Its files are redacted, and the digest of the sealed files still shows which run it is."""
    run.provenance.write_text(json.dumps({"machine": {"name": "gpu17"}, "time": "2026-01-02T03:04:05+00:00"}))
    seal_again(run)
    finish(run)
    bundle = tmp_path / "run.zip"
    assert command("evidence", "bundle", run.root, "--output", bundle)[0] == 0
    assert imported(command("store", "import", bundle)[1]) == (1, 0)
    assert imported(command("store", "import", run.root)[1]) == (0, 1)
    with Store.open(str(store)) as opened:
        record = opened.record(run.root.name)
        assert record.evidence == "sealed" and record.is_comparable
    bundle.write_bytes(bundle.read_bytes()[:-40])
    code, _, err = command("store", "import", bundle, run.root)
    assert code == 2 and "run.zip" in err and "its end" in err


def test_a_table_has_raw_numbers_and_no_formula(command: Command, record: RunRecord, store: Path) -> None:
    tricky = {"reason": "=HYPERLINK(1)", "entry": "@suite/-1", "failure": "\tx"}
    with Store.open(str(store)) as opened:
        opened.add([changed(record, 1), changed(record, 2, loss_tail=-1.5, **tricky)])
    _, out, _ = command("store", "export", "--format", "csv")
    first, second = csv.DictReader(out.splitlines())
    assert float(first["tokens_per_second_per_device"]) == changed(record, 1).tokens_per_second_per_device
    assert first["night"] == "" and first["case"] == "tiny"
    assert (second["reason"], second["entry"], second["failure"]) == ("'=HYPERLINK(1)", "'@suite/-1", "'\tx")
    assert second["loss_tail"] == "-1.5"


def test_prune_removes_old_runs_but_never_evidence(command: Command, record: RunRecord, store: Path) -> None:
    old = [changed(record, number) for number in range(5)]
    baseline = StoreEvent(
        id="b", kind="baseline", series="s", at="2026-01-09T00:00:00+00:00", who="a", why="x", runs=(old[1].run_id,)
    )
    now = datetime(2026, 2, 4, tzinfo=timezone.utc)
    with Store.open(str(store)) as opened:
        opened.add([*old, changed(record, 30, series={"case": "tinier"})])
        opened.add_event(baseline)
        pruned = prune(opened, 30, None, None, dry_run=True, now=now)
        assert pruned.removed == (old[0].run_id, old[2].run_id) and pruned.remaining == (old[1].run_id,)
        assert len(opened.run_ids()) == 6
        assert prune(opened, 30, None, None, dry_run=False, now=now) == pruned
        assert len(opened.run_ids()) == 4 and prune(opened, 30, "tinier", None, dry_run=False, now=now) == ((), ())
    code, out, _ = command("store", "prune", "--keep-days", 0, "--case", "tiny", "--dry-run")
    assert code == 0 and re.findall(r"(\d) run\(s\)", out) == ["2", "1"]
    assert json.loads(command("store", "prune", "--case", "tinier", "--json")[1])["removed"] == [
        changed(record, 30).run_id
    ]
    assert command("store", "check")[0] == 0


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--keep-days", "-1"]])
def test_prune_without_a_choice_is_refused(
    command: Command, options: list[str], record: RunRecord, store: Path
) -> None:
    with Store.open(str(store)) as opened:
        opened.add([record])
    assert command("store", "prune", *options)[0] == 2
    with Store.open(str(store)) as opened:
        assert opened.run_ids() == [record.run_id]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run SET tokens_per_second_per_device = tokens_per_second_per_device * 1.01",
        *(
            pytest.param(f"UPDATE run SET {change}", marks=pytest.mark.thorough)
            for change in ("word = 'invalid'", "began = '2025' || substr(began, 5)", "window_last = window_last - 1")
        ),
        "UPDATE raw SET steps = losses",
        pytest.param("UPDATE raw SET documents = x'00'", marks=pytest.mark.thorough),
        "UPDATE series SET document = replace(document, '\"devices\":2', '\"devices\":4')",
        "UPDATE condition SET document = '{'",
        "DELETE FROM raw",
    ],
)
def test_check_finds_a_row_that_was_changed(command: Command, record: RunRecord, store: Path, change: str) -> None:
    with Store.open(str(store)) as opened:
        opened.add([record])
        assert command("store", "check")[0] == 0
        opened.write(lambda connection: connection.exec_driver_sql(change))
    code, out, _ = command("store", "check")
    assert code == 4 and ("is damaged" in out or "digest says" in out or "are missing" in out)


# -- recording


def run_tiny(command: Command, runs: Path, *more: object) -> tuple[int, int, Path, str]:
    """The exit code that the run itself asks for, the one that came, the run's folder and stderr."""
    before = {*runs.glob("*")}
    options = ("--case", "tiny:fake:fake:1:2", "--plugins", PLUGINS, "--python", sys.executable, "--quiet")
    code, _, err = command(*options, *more)
    (folder,) = {*runs.glob("*")} - before
    word = json.loads((folder / "result.json").read_text())["status"]["word"]
    return 0 if word == "valid" else 3, code, folder, err


def test_a_run_is_recorded_when_it_ends_unless_with_no_store(command: Command, store: Path, tmp_path: Path) -> None:
    expected, code, folder, err = run_tiny(command, tmp_path / "runs")
    assert code == expected and "recorded" not in err
    with Store.open(str(store)) as opened:
        record = opened.record(folder.name)
        assert record.purpose == "manual" and record.result.run_id == folder.name
        assert record.node.startswith("sha256:") and record.subject.commit is not None
    run_tiny(command, tmp_path / "runs", "--no-store")
    with Store.open(str(store)) as opened:
        assert opened.run_ids() == [folder.name]


def test_a_store_that_cannot_be_written_changes_nothing(command: Command, store: Path, tmp_path: Path) -> None:
    store.parent.mkdir()
    store.write_text("no store at all" * 100)
    expected, code, folder, err = run_tiny(command, tmp_path / "runs")
    assert code == expected and (folder / "report.md").exists()
    assert f"{folder.name} was" in err and f"/{folder.name}`" in err and str(store) in err
    store.unlink()
    assert imported(command("store", "import", tmp_path / "runs")[1]) == (1, 0)


def test_no_fault_of_the_store_takes_a_result(
    run: RunPaths, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(run)
    monkeypatch.setattr("levelfield.store.run_record.record_of", lambda *arguments: dict[str, object]()["fault"])
    run_recorder(None, False)(run)
    output = " ".join(capsys.readouterr().err.split())
    assert f"{run.root.name} was" in output and "KeyError: 'fault'" in output and "`store import" in output


def test_a_second_run_of_the_same_id_is_told(run: RunPaths, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(run)
    run_recorder(None, False)(run)
    assert capsys.readouterr().err == ""
    change_steps(run, lambda event: event.update(end_ns=event["end_ns"] + 1))
    run_recorder(None, False)(run)
    output = " ".join(capsys.readouterr().err.split())
    assert output.startswith(f"levelfield: {run.root.name}: ") and output.endswith("kept aside")


def test_none_records_nothing(command: Command, run: RunPaths, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(run)
    monkeypatch.setenv("LEVELFIELD_STORE", "none")
    run_recorder(None, False)(run)
    assert not store.exists() and command("store", "info")[0] == 2


def test_every_action_works_on_both_databases(command: Command, url: str, record: RunRecord, tmp_path: Path) -> None:
    with Store.open(url) as opened:
        opened.add(changed(record, number) for number in range(3))
    at = ("--store", url)
    facts = json.loads(command("store", "info", *at, "--json")[1])
    assert facts["rows"]["run"] == 3 and facts["bytes"] > 10_000 and facts["schema"] == SCHEMA_VERSION
    assert command("store", "check", *at)[0] == 0
    file = tmp_path / "all.jsonl"
    assert command("store", "export", *at, "--output", file)[0] == 0 and len(file.read_text().splitlines()) == 3
    code, out, _ = command("store", "prune", *at, "--run", changed(record, 1).run_id)
    assert code == 0 and "removed 1" in out
    assert imported(command("store", "import", file, *at)[1]) == (1, 2)
    with Store.open(url) as opened:
        opened.write(lambda c: c.exec_driver_sql("UPDATE run SET memory_bytes = memory_bytes * 1.01"))
    code, out, _ = command("store", "check", *at)
    assert code == 4 and out.count("is damaged") == 3
