"""`report --hide`: a hidden column and what gives it away are `*`, and their digits are in no format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.errors import UnknownName
from levelfield.judge.collector import collect
from levelfield.report.result_words import COLUMNS
from levelfield.report.tables import NEVER_HIDDEN, REVEALED_BY, format_with_hidden, hidden_columns
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Energy, Figure, Result, Status, TimeToLoss
from levelfield.specs.run_figures import MFU_TITLE

FORMATS = ("table", "markdown", "csv", "json")
SPEED = ["tokens/s/device", MFU_TITLE, "J/token", "s to loss"]


@pytest.fixture
def result(run: RunPaths) -> Result:
    """A result in which every figure has digits of its own, also in a reason, an evidence and a deviation."""
    collected = collect(run)
    assert collected.throughput is not None
    figures = {
        "chip": "Z94127",
        "throughput": collected.throughput.model_copy(update={"tokens_per_second_per_device": 71395.25}),
        "utilisation": tuple(u.model_copy(update={"value": 0.45892, "low": None}) for u in collected.utilisation),
        "memory": collected.memory.model_copy(update={"device_used_peak": figure(63_817_000_000)}),
        "energy": Energy.model_validate(
            collected.energy.model_dump() | {"joules_per_token": figure(0.08264).model_dump()}
        ),
        "loss": collected.loss.model_copy(update={"tail_mean": 2.97531}),
        "to_loss": TimeToLoss(
            level=2.66, source=None, averaged_steps=1, seconds=318.46, tokens=5120.0, step=5.0, uncounted_steps=2
        ),
        "status": Status(word="invalid", reasons=("71395 tokens/s, 45.892 %",), evidence="rank 0 said 2.97531"),
        "deviations": ("63.817 GB of Z94127 at 0.08264 J/token",),
    }
    return collected.model_copy(update=figures)


def figure(value: float) -> Figure:
    return Figure(value=value, unit="1")


DIGITS = {
    "chip": ("94127",),
    "tokens/s/device": ("71,395", "71395"),
    MFU_TITLE: ("45.9", "45.8", "0.458"),
    "memory": ("59.43", "63.8", "63817"),
    "J/token": ("0.0826",),
    "loss": ("2.975",),
    "s to loss": ("318.46",),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("column", DIGITS)
def test_no_digit_of_a_hidden_column_is_in_any_format(result: Result, column: str, form: str) -> None:
    hidden = hidden_columns([column])
    open_text, text = format_with_hidden(form, [result, result], []), format_with_hidden(form, [result, result], hidden)
    for name in (name for name in hidden if name in DIGITS):
        assert not any(digits in text for digits in DIGITS[name]), name
    is_in_the_table = form != "table" or column not in ("J/token", "s to loss")
    assert (DIGITS[column][0] in open_text) == ("*" in text) == is_in_the_table
    assert "rank 0" not in open_text and result.run_id not in open_text
    assert form != "table" or max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("names", "hidden"),
    [
        (["tokens/s"], SPEED),
        (["MFU"], SPEED),
        (["chip"], ["chip", MFU_TITLE, "J/token"]),
        (["chip", "mfu"], ["chip", MFU_TITLE, "J/token"]),
        (["mfu", "chip"], ["chip", MFU_TITLE, "J/token"]),
        (["chip", "tokens/s/device"], ["chip", *SPEED]),
        (["memory", "layout"], ["layout", "memory"]),
        (["loss"], ["loss", "s to loss", "alignment"]),
        ([], []),
    ],
)
def test_what_gives_a_column_away_is_hidden_with_it(names: list[str], hidden: list[str]) -> None:
    assert sorted(hidden_columns(names)) == sorted(hidden)


@pytest.mark.parametrize("name", ["", "l", "speed", "case"])
def test_an_unknown_column_is_an_error_with_those_there_are(name: str) -> None:
    with pytest.raises(UnknownName) as error:
        hidden_columns([name])
    *_, alternatives = str(error.value).partition("--hide")
    assert f"column '{name}'" in str(error.value) and all(column in alternatives for column in REVEALED_BY)


def test_a_new_column_is_in_no_such_table_until_somebody_decides(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(COLUMNS) == {*NEVER_HIDDEN, *REVEALED_BY}, (
        "may it give a hidden column away? REVEALED_BY if so, else NEVER_HIDDEN"
    )
    monkeypatch.setitem(COLUMNS, "new_column", lambda result: "4711")
    assert not any("4711" in format_with_hidden(form, [result], ["memory"]) for form in FORMATS)


def test_all_formats_have_the_same_cells(result: Result) -> None:
    hidden = ["chip", "memory"]
    document = json.loads(format_with_hidden("json", [result], hidden))
    (row,) = csv.DictReader(io.StringIO(format_with_hidden("csv", [result], hidden)))
    header, _, cells, *rest = format_with_hidden("markdown", [result], hidden).splitlines()
    assert document["hidden"] == hidden and document["rows"] == [row]
    assert row["chip"] == row["memory"] == "*" and row["tokens/s/device"] == "71,395.2" and row["status"] == "invalid"
    assert [name.strip() for name in header.strip("|").split("|")] == list(row) and cells.count("*") == 2 and not rest


def test_the_command_prints_and_writes_it(run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", str(run.root), str(run.root), "--hide", "memory", "--hide", "chip", "--format", "json"]
    assert main([*words, "--output", str(tmp_path / "table.json")]) == 0
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]  # a run that is named twice counts once
    assert (row["chip"], row["memory"], row["tokens/s/device"]) == ("*", "*", "64.0")
    assert main(["report", str(run.root), "--hide", "speed"]) == 2
    assert "column 'speed'" in capsys.readouterr().err
