"""Tuning sets free fields only: a locked one is refused with its reason, a typing error with the nearest names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_files import golden
from levelfield.catalog.registry import Registry
from levelfield.catalog.tuning_changes import UNCHOSEN_VALUES, RunTarget, row_changes, tuned_values, tuning_rows
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.base import Value, load, parse
from levelfield.specs.case import Case, Work
from levelfield.specs.suite import Suite
from levelfield.specs.tuning import LOCKED_FIELDS, Tuning, TuningChoice, TuningFile, TuningRow, chosen_by, lock_reason
from plans import PLUGINS

FREE = set(TuningChoice.model_fields)


def names_in(kind: type[Value]) -> set[str]:
    """The fields of a document and of all documents in it."""
    names = set()
    for name, field in kind.model_fields.items():
        names.add(name)
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, Value):
                names |= names_in(part)
    return names


# -- the table


def test_every_field_that_a_case_fixes_is_in_the_table_once() -> None:
    names = [name for group in LOCKED_FIELDS for name in (*group.fields, *group.aliases)]
    assert len(names) == len(set(names))
    assert {name for group in LOCKED_FIELDS for name in group.fields} == names_in(Work) | {"tokenizer"}


def test_no_free_field_is_locked_and_all_free_fields_are_the_tunings() -> None:
    assert set(Tuning.model_fields) == FREE and not [name for name in FREE if lock_reason(name)]
    assert all(len(group.reason) > 40 for group in LOCKED_FIELDS)


# -- the fence


def planted(plugins: Path, row: dict[str, Any]) -> Path:
    """The tests' tuning file with one more row behind its three."""
    path = plugins / "vendors/fake/tuning/tiny.yaml"
    content = yaml.safe_load(path.read_text())
    content["rows"].append(row)
    path.write_text(yaml.safe_dump(content))
    return path


def refusal(plugins: Path) -> str:
    with pytest.raises(UsageError) as error:
        tuning_rows(Registry([plugins]), "fake", "tiny")
    assert error.value.exit_code == 2
    return str(error.value)


@pytest.mark.parametrize("name", sorted(names_in(Work)))
def test_each_locked_field_is_refused_by_name_with_its_reason(plugins: Path, name: str) -> None:
    path = planted(plugins, {"set": {"micro_batch": 2, name: 1}, "why": "faster"})
    assert re.match(rf"{path}: key 'rows\.3\.set': '{name}'.*: {re.escape(lock_reason(name) or '')}", refusal(plugins))


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("global_batch_size", "the tokens of a step decide"),
        ("learning_rate", "the same steps from the same weights"),
        ("seq_len", "the tokens of a step decide"),
        ("dtype", "a peak, an MFU and a loss belong to one precision"),
        ("model", "another model has other FLOPs"),
        ("max_steps", "who is measured does not choose"),
        ("tokenizer", "initial weights and the order of samples"),
    ],
)
def test_other_names_of_locked_fields_are_known(plugins: Path, name: str, beginning: str) -> None:
    planted(plugins, {"set": {name: 1}, "why": "faster"})
    assert (lock_reason(name) or "").startswith(beginning)
    assert re.search(rf"'{name}'.*\blocked\b.*: {re.escape(beginning)}", refusal(plugins))


@pytest.mark.parametrize(
    ("name", "near"), [("micro_bach", "micro_batch"), ("recomputation", "recompute, recompute_layers")]
)
def test_a_typing_error_is_no_locked_field(plugins: Path, name: str, near: str) -> None:
    path = planted(plugins, {"set": {name: 1}, "why": "faster"})
    error = refusal(plugins)
    assert re.match(rf"{path}: .*'rows\.3\.set': .*'{name}'; nearest: {near}\. .*: layout, ", error)
    assert "locked" not in error


def test_a_field_like_no_other_lists_the_free_ones(plugins: Path) -> None:
    planted(plugins, {"set": {"zzz": 1}, "why": "faster"})
    assert re.search(rf"'zzz'\. .*: {', '.join(TuningChoice.model_fields)}", refusal(plugins))


def test_a_locked_field_beside_set_is_refused_with_its_reason_too(plugins: Path) -> None:
    planted(plugins, {"set": {"micro_batch": 2}, "why": "faster", "precision": "fp8"})
    assert re.search(r"'rows\.3': 'precision'.*\blocked\b.*: a peak", refusal(plugins))
    planted(plugins, {"set": {"micro_batch": 2}, "why": "faster", "colour": "red"})
    with pytest.raises(DocumentError, match=r"'rows\.0\.colour': unknown"):
        row = {"set": {}, "why": "faster", "colour": 1}
        parse(TuningFile, {"schema": "levelfield.tuning/1", "case": "x", "rows": [row]}, "f")


@pytest.mark.parametrize(
    ("value", "message"), [({"micro_batch": 0}, "rows.3.set.micro_batch': found 0"), ([], "found []")]
)
def test_a_free_field_keeps_its_own_rules(plugins: Path, value: Any, message: str) -> None:
    planted(plugins, {"set": value, "why": "faster"})
    assert message in refusal(plugins)


def test_suites_and_cases_are_fenced_as_well(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    entry = {"case": "tiny:fake", "set": {"seed": 7}}
    path.write_text(yaml.safe_dump({"schema": "levelfield.suite/1", "title": "x", "entries": [entry]}))
    with pytest.raises(DocumentError, match=r"'entries\.0\.set': 'seed'.*\blocked\b.*: initial"):
        load(Suite, path)
    content = yaml.safe_load((PLUGINS / "configs/cases/tiny.yaml").read_text())
    content["tuning"]["full"]["global_batch"] = 7
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(DocumentError, match=r"'tuning\.full': 'global_batch'.*\blocked\b"):
        load(Case, path)


def test_nothing_runs_behind_the_fence(
    plugins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "2")
    path = planted(plugins, {"scale": "smoke", "chip": "F2", "set": {"global_batch": 4}, "why": "faster"})
    arguments = ["--case", "tiny:fake:F1", "--scale", "smoke", "--plugins", str(plugins)]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    assert re.search(rf"{path}: .*'rows\.3\.set': 'global_batch'.*\blocked\b", capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


# -- rows that could never apply


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chip": "F3"}, "key 'rows.3.chip': unknown chip of fake 'F3'; nearest: F"),
        ({"chip": "F1-8GB"}, "key 'rows.3.chip': unknown chip of fake 'F1-8GB'; nearest: F1"),
        ({"framework": "troch"}, "key 'rows.3.framework': unknown framework 'troch'; nearest: torch"),
        ({"set": {"layout": "XX"}}, "key 'rows.3.set.layout': layout 'XX' has an unknown notation"),
        ({"set": {"layout": "DP2DP2"}}, "key 'rows.3.set.layout': layout 'DP2DP2': found DP twice"),
        ({"devices": 0}, "key 'rows.3.devices': found 0"),
        ({"why": ""}, "key 'rows.3.why': found ''"),
    ],
)
def test_a_row_that_could_never_apply_names_its_file(plugins: Path, row: dict[str, Any], message: str) -> None:
    path = planted(plugins, {"set": {"micro_batch": 2}, "why": "faster", **row})
    error = refusal(plugins)
    assert str(path) in error and message in error


# -- what a vendor changes


@pytest.fixture
def case() -> Case:
    return Registry([PLUGINS]).case("tiny")


@pytest.fixture
def rows() -> tuple[TuningRow, ...]:
    return tuning_rows(Registry([PLUGINS]), "fake", "tiny")


def changes_at(case: Case, rows: tuple[TuningRow, ...], target: RunTarget) -> dict[int, list[tuple[str, Any, Any]]]:
    changed_rows = row_changes(case, rows, "smoke", target)
    return {row.number: [(c.field, c.before, c.after) for c in row.changes] for row in changed_rows}


def test_each_row_is_held_against_those_that_apply_wherever_it_does(case: Case, rows: tuple[TuningRow, ...]) -> None:
    assert changes_at(case, rows, RunTarget()) == {
        0: [("micro_batch", 4, 1), ("threads", UNCHOSEN_VALUES["threads"], 3)],
        1: [("micro_batch", 1, 2)],
        2: [("micro_batch", 1, 8)],
    }


@pytest.mark.parametrize(
    ("target", "numbers"),
    [
        (RunTarget(chip="F1"), [0, 1]),
        (RunTarget(chip="F2"), [0, 2]),
        (RunTarget("F1", None, 4), [0]),
        (RunTarget("F1", "x", 2), [0, 1]),
    ],
)
def test_rows_for_another_target_are_left_out(
    case: Case, rows: tuple[TuningRow, ...], target: RunTarget, numbers: list[int]
) -> None:
    assert list(changes_at(case, rows, target)) == numbers


def test_what_a_row_leaves_as_it_was_is_no_change(case: Case) -> None:
    same = TuningRow(scale="smoke", set=TuningChoice(micro_batch=4, recompute="none"), why="as before")
    assert changes_at(case, (same,), RunTarget()) == {0: []}


def test_variables_join_those_before(case: Case) -> None:
    first = TuningRow(scale="smoke", set=TuningChoice(environment={"A": "1", "B": "1"}), why="one")
    second = TuningRow(scale="smoke", set=TuningChoice(environment={"B": "2"}), why="two")
    assert tuned_values(case, (first, second), "smoke", RunTarget())["environment"] == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("target", "micro_batch"),
    [(RunTarget(), 1), (RunTarget("F1", None, 2), 2), (RunTarget("F1", None, 1), 1), (RunTarget("F2"), 8)],
)
def test_all_rows_for_a_target_make_its_tuning(
    case: Case, rows: tuple[TuningRow, ...], target: RunTarget, micro_batch: int
) -> None:
    fields = tuned_values(case, rows, "smoke", target)
    assert set(fields) == FREE and (fields["micro_batch"], fields["threads"]) == (micro_batch, 3)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["show", *arguments, "--plugins", str(PLUGINS)]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_show_diff_prints_each_row_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "tiny", "--vendor", "fake", "--diff")
    assert text == golden("tuning_changes.txt", text)
    assert all(len(line) <= 80 for line in text.splitlines())
    only = shown(capsys, "tiny", "--vendor", "fake", "--diff", "--chip", "f1-8gb", "--devices", "2")
    assert "row 1" in only and "row 2" not in only


def test_show_diff_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(shown(capsys, "tiny", "--vendor", "fake", "--diff", "--json", "--scale", "smoke"))
    assert (content["case"], content["vendor"], "full" in content) == ("tiny", "fake", False)
    changes = [{"field": "micro_batch", "from": 1, "to": 8}]
    assert content["smoke"][2] == {"row": 2, "chip": "F2", "changes": changes, "why": "another chip"}


def test_show_with_a_vendor_gives_the_tuning_that_would_hold(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "tiny", "--vendor", "fake", "--chip", "F1", "--devices", "2")
    smoke = yaml.safe_load(text)["smoke"]
    reasons = [row.why for row in tuning_rows(Registry([PLUGINS]), "fake", "tiny")]
    assert smoke["tuning"]["micro_batch"] == 2 and smoke["rows_applied"] == reasons[:2]
    assert smoke["rows_elsewhere"] == [] and smoke["default_tuning"]["micro_batch"] == 4
    open_ended = json.loads(shown(capsys, "tiny", "--vendor", "fake", "--json"))["smoke"]
    assert open_ended["rows_elsewhere"] == [{"chip": "F1", "devices": 2}, {"chip": "F2"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff"], "show: --diff: found no --vendor; add --vendor NAME; known: "),
        (["--chip", "F1", "--devices", "2"], "show: --chip, --devices: found no --vendor; add --vendor NAME"),
        (["--vendor", "fak"], "unknown vendor 'fak'; nearest: fake"),
        (["--vendor", "fake", "--chip", "F9"], "unknown chip of fake 'F9'"),
        (["--vendor", "fake", "--framework", "troch"], "unknown framework 'troch'; nearest: torch"),
        (["--vendor", "fake", "--devices", "0"], "--devices: found 0, expected 1 or more"),
    ],
)
def test_show_refuses_what_there_is_not(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in shown(capsys, "tiny", *arguments, code=2)


@pytest.mark.parametrize(
    ("origin", "who"),
    [
        ("case gpt3_6.7B", None),
        ("default: 8 usable cores over 2 process(es)", None),
        ("planner: fastest of those that fit", None),
        ("vendor nvidia: fits without recomputation", "vendor"),
        ("case string", "case string"),
        ("suite oneflow_gpt", "suite oneflow_gpt"),
        ("file strategy.json", "file strategy.json"),
        ("command line", "command line"),
        ("something new", "something new"),
    ],
)
def test_a_field_is_chosen_unless_its_origin_is_known_to_be_a_default(origin: str, who: str | None) -> None:
    assert chosen_by(origin) == who
