"""Matrices case x framework and case x vendor: the latest good cell, empty cells in words, honest geometric means."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from compared_records import other_use, record, repeats, with_result
from levelfield.compare.comparison import compare
from levelfield.compare.matrix import MatrixCell, ResultMatrix, make_matrix, matrix_json, matrix_sheets
from levelfield.compare.sides import side_of
from levelfield.pages.series_history import InMemoryStore
from levelfield.report.sheets import format_markdown, format_text
from levelfield.specs.record import RunRecord


def numbered(run: RunRecord, number: int) -> RunRecord:
    return with_result(run, repeat=number)


def cell(results: ResultMatrix, case: str, column: str) -> MatrixCell:
    return next(cell for (row, name), cell in results.cells.items() if (row.training.case, name) == (case, column))


def of_day(day: int) -> str:
    return f"2026-11-{day}T10:00:00+00:00"


def test_a_cell_is_the_newest_good_run() -> None:
    older = record(1, 900, began=of_day(18)), record(2, 950, began=of_day(20))
    results = make_matrix([older[0], record(3, 1000), older[1]], "framework")
    assert cell(results, "gpt", "torch").value == 1000 and cell(results, "gpt", "torch").detail == ""


def test_one_more_run_of_a_build_hides_no_repeats_of_the_same_day() -> None:
    runs = [numbered(record(n, rate), n) for n, rate in ((1, 1000), (2, 1010), (3, 960))]
    of_others = (record(9, 5.0, began=of_day(20)), record(8, 5.0, packages="sha256:" + "5" * 64))
    more = numbered(record(11, 970), 1)
    results = cell(make_matrix([*of_others, *runs, more], "framework"), "gpt", "torch")
    assert results.rate and sorted(results.rate.values) == [960, 970, 1000, 1010]
    failed = numbered(record(12, word="failed"), 1)
    results = cell(make_matrix([*runs[:2], failed, more], "framework"), "gpt", "torch")
    assert results.rate and sorted(results.rate.values) == [970, 1000, 1010] and failed.run_id in results.detail


def test_each_version_of_a_framework_has_a_column_of_its_own() -> None:
    further = record(3, 500, further_version="2.11.0", framework_version="2.11.0")
    results = make_matrix([record(1, 1000), further], "framework")
    assert (cell(results, "gpt", "torch").value, cell(results, "gpt", "torch_2.11.0").value) == (1000, 500)
    assert [ratio.column for ratio in results.ratios] == ["torch_2.11.0"]
    assert results.ratios[0].ratio.value == pytest.approx(0.5)


def test_a_cell_is_the_median_over_the_newest_repeats() -> None:
    runs = [numbered(record(n, rate), n) for n, rate in ((1, 1000), (2, 1010), (3, 960))]
    results = cell(make_matrix([record(0, 5.0), *runs], "framework"), "gpt", "torch")
    assert results.value == 1000 and results.rate and results.rate.interval and results.rate.interval.n == 3


def test_repeats_with_other_variables_are_no_repeats_of_a_command() -> None:
    """Two commands that ran at once: by time and number the last three runs look like one command."""
    slow, fast = {"ONEDNN_VERBOSE": "2"}, {"ONEDNN_VERBOSE": "0"}
    ran = [(1, 1, 1000, fast), (2, 1, 500, slow), (3, 2, 1000, fast), (4, 3, 1000, fast)]
    runs = [numbered(record(n, rate, variables=variables), number) for n, number, rate, variables in ran]
    results = cell(make_matrix(runs, "framework"), "gpt", "torch")
    assert results.rate and results.rate.values == (1000, 1000, 1000)


def test_a_repeat_that_does_not_count_cuts_no_cell_and_is_said() -> None:
    runs = [numbered(record(n, 1000 + n), n) for n in (1, 2, 3, 5)]
    bad = numbered(record(4, word="failed", packages="sha256:" + "5" * 64), 4)
    results = cell(make_matrix([*runs, bad], "framework"), "gpt", "torch")
    assert results.rate and results.rate.interval and results.rate.interval.n == 4
    assert results.detail.startswith("1 of") and results.detail.endswith(f": {bad.run_id}: failed")
    assert " 5 repeats" in results.detail


def test_repeats_behind_a_failed_first_one_are_not_of_the_command_before() -> None:
    before = numbered(record(1, 500, began=of_day(20)), 1)
    command = [numbered(record(n + 10, 1000 + n), n) for n in (2, 3)]
    results = cell(make_matrix([before, numbered(record(11, word="failed"), 1), *command], "framework"), "gpt", "torch")
    assert results.rate and results.rate.values == (1002, 1003)


@pytest.mark.parametrize(
    "bad",
    [{"word": "failed", "failure": "oom"}, {"evidence": "tampered"}, {"evidence": "unsealed"}, {"verdict": "diverged"}],
)
def test_a_newer_run_that_does_not_count_is_named_and_not_shown(bad: dict[str, Any]) -> None:
    results = make_matrix([record(1, 900), record(2, 5000, **bad)], "framework")
    newest = cell(results, "gpt", "torch")
    assert newest.value == 900 and record(2).run_id in newest.detail
    assert "900.0 *" in format_text(matrix_sheets(results))


def test_a_cell_without_a_good_run_says_why() -> None:
    results = make_matrix([record(1, word="oom", reason="tight"), record(2, framework="paddle")], "framework")
    assert cell(results, "gpt", "torch").state == "oom" and cell(results, "gpt", "torch").detail.endswith(
        ": oom: tight"
    )
    assert cell(results, "gpt", "torch").value is None and results.ratios[0].ratio.value is None


def test_cells_that_nobody_ran_are_shown() -> None:
    results = make_matrix([record(1)], "framework", expected=["paddle"], cases=["gpt", "llama"])
    assert cell(results, "gpt", "paddle").state == "not run" and results.not_run == ("llama",)
    text = format_text(matrix_sheets(results))
    assert "not run" in text and "llama" in text


@pytest.mark.parametrize("change", [{"work": "sha256:" + "9" * 64}, {"corpus": "sha256:" + "9" * 64}], ids=str)
def test_another_work_or_corpus_is_a_row_of_its_own(change: dict[str, object]) -> None:
    """After a change of a case its newer runs hide none of before, and its one name stands in no two rows."""
    runs = [*repeats(1000), *repeats(500, framework="paddle", first=2)]
    results = make_matrix(
        [*runs, *repeats(300, first=3, **change), *repeats(600, framework="paddle", first=4, **change)], "framework"
    )
    assert all(results.cells[row, results.columns[1]].ratio for row in results.rows)
    assert len({row.label for row in results.rows}) == 2
    (ratio,) = results.ratios
    assert ratio.trainings == 2 and ratio.ratio.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("window", {"window": (11, 29)}),
        ("formulas", {"formulas": ("palm/2",)}),
    ],
)
def test_a_cell_of_another_window_or_formula_is_not_comparable_and_in_no_mean(
    field: str, change: dict[str, object]
) -> None:
    runs = [*repeats(1000, case="a"), *repeats(500, case="a", framework="paddle", first=2, **change)]
    runs += [*repeats(1000, case="b", first=3), *repeats(800, case="b", framework="paddle", first=4)]
    results = make_matrix(runs, "framework")
    assert {results.cells[results.rows[0], name].state for name in results.columns} == {"measured", "not comparable"}
    assert any(field in cell.detail for cell in results.cells.values())
    (ratio,) = results.ratios
    assert ratio.trainings == 1 and ratio.ratio.value == pytest.approx(0.8 if ratio.column == "paddle" else 1.25)


def test_the_geometric_mean_is_over_rows_that_both_columns_have() -> None:
    runs = [record(1, 100, case="a"), record(2, 100, case="b"), record(3, 100, case="c")]
    runs += [record(4, 200, case="a", framework="paddle"), record(5, 50, case="b", framework="paddle")]
    results = make_matrix(runs, "framework")
    (ratio,) = results.ratios
    assert results.columns == ("torch", "paddle") and (ratio.column, ratio.base, ratio.trainings) == (
        "paddle",
        "torch",
        2,
    )
    assert ratio.ratio.value is not None and math.isclose(ratio.ratio.value, 1.0)
    failed = [*runs[:-1], record(6, 50, case="b", framework="paddle", word="failed")]
    assert make_matrix(failed, "framework").ratios[0].trainings == 1  # a failure is no speed-up: the count falls


def test_vendors_are_columns_by_chip_and_frameworks_are_rows() -> None:
    runs = [record(1), record(2, vendor="other", chip="Z9"), record(3, framework="paddle")]
    results = make_matrix(runs, "vendor")
    assert results.columns == ("acme X1", "other Z9") and {row.other for row in results.rows} == {"torch", "paddle"}


def test_numbers_of_devices_and_precisions_are_rows_of_their_own() -> None:
    from levelfield.specs.layout import Layout

    runs = [record(1), record(2, devices=2, layout=Layout(data=2)), record(3, precision="bf16")]
    assert len(make_matrix(runs, "framework").rows) == 3


def test_tables_fit_eighty_columns_with_long_names_and_many_columns() -> None:
    names = [f"framework-number-{i}-of-somebody-with-a-long-name" for i in range(7)]
    results = make_matrix([record(i, framework=name, case="c" * 60) for i, name in enumerate(names)], "framework")
    text = format_text(matrix_sheets(results))
    # a word of a command line is never broken
    assert all(len(line) <= 80 or len(line.split()) <= 2 for line in text.splitlines())
    newest = "".join(text.split())
    assert all("".join(column[-1]) in newest for column in names)


def test_json_and_markdown_say_the_same() -> None:
    runs = [
        record(1),
        record(2, 400.0, framework="paddle"),
        record(3, framework="oneflow", word="failed", reason="a|b"),
    ]
    results = make_matrix(runs, "framework")
    values = json.loads(json.dumps(matrix_json(results), allow_nan=False))
    assert values["rows"][0]["cells"]["paddle"]["tokens_per_second_per_device"] == 400.0
    assert values["rows"][0]["cells"]["oneflow"]["state"] == "failed"
    assert "a\\|b" in format_markdown(matrix_sheets(results)) and "400.0" in format_markdown(matrix_sheets(results))


def test_no_run_is_said() -> None:
    results = make_matrix([], "vendor")
    assert format_text(matrix_sheets(results)).split() and matrix_json(results)["rows"] == []


def test_the_newest_run_is_so_by_its_time_and_not_by_its_name() -> None:
    old = record(9, 900, began="2026-11-20T23:59:59+00:00")
    assert cell(make_matrix([record(1, 1000), old], "framework"), "gpt", "torch").value == 1000
    east = record(9, 900, began="2026-11-22T11:30:00+02:00", packages="sha256:" + "5" * 64)  # 09:30 in UTC
    assert cell(make_matrix([record(1, 1000), east], "framework"), "gpt", "torch").value == 1000


# -- a ratio is a number only where `compare` calls it one


def three(rates: tuple[float, float, float], first: int, **changes: object) -> list[RunRecord]:
    return [numbered(run, number) for number, run in enumerate(repeats(*rates, first=first, **changes), start=1)]


def test_a_ratio_that_compare_calls_inconclusive_is_no_number_in_the_matrix() -> None:
    runs = [record(1, 1000.0), record(2, 213.0, framework="paddle")]
    sides = [side_of("A", runs[:1]), side_of("B", runs[1:])]
    assert compare(sides).figures[0].ratios[0].standing == "inconclusive"
    results = make_matrix(runs, "framework")
    text = format_text(matrix_sheets(results))
    assert "0.213" not in text and "4.695" not in text and text.count("inconclusive") >= 2
    assert results.ratios[0].ratio.low is None and matrix_json(results)["ratios"][0]["standing"] == "inconclusive"


def test_repeats_give_the_ratio_of_compare_with_its_interval() -> None:
    a, b = three((1000, 1002, 998), 1), three((213, 214, 212), 5, framework="paddle")
    expected = compare([side_of("A", b), side_of("B", a)]).figures[0].ratios[0]
    results = make_matrix([*a, *b], "framework")
    assert results.columns[0] == "paddle" and cell(results, "gpt", "torch").ratio == expected == results.ratios[0].ratio
    assert f"({expected.value:.3f})" in format_text(matrix_sheets(results)) and expected.ends in format_text(
        matrix_sheets(results)
    )


def test_the_history_of_a_series_gives_a_cell_of_one_run_its_noise() -> None:
    nights = [record(n, 1000.0 + n, began=f"2026-11-{n:02}T10:00:00Z") for n in range(1, 11)]
    other = [record(20 + n, 500.0 + n, began=f"2026-11-{n:02}T11:00:00Z", framework="paddle") for n in range(1, 11)]
    latest = [nights[-1], other[-1]]
    points = InMemoryStore([*nights, *other]).points()
    stored = {entry.series.fingerprint(): points[entry.digest] for entry in InMemoryStore([*nights, *other]).series()}
    assert make_matrix(latest, "framework").ratios[0].ratio.standing == "inconclusive"
    assert make_matrix(latest, "framework", histories=stored).ratios[0].ratio.standing == "higher"


def test_cautions_stand_at_the_cell_as_in_compare() -> None:
    """Paddle ran beside other programs and is not aligned; torch ran after it."""
    paddle, torch = record(1, 213, framework="paddle", verdict="unchecked"), record(2)
    paddle = with_result(paddle, other_use=other_use(1.7, 2))
    results = make_matrix([paddle, torch], "framework")
    expected = {
        "paddle": ("alignment unchecked", "other programs up to 1.7 of 2 cores"),
        "torch": ("run order 11-22 10:00",),
    }
    assert {name: cell(results, "gpt", name).cautions for name in results.columns} == expected
    compared = compare([side_of("A", [paddle]), side_of("B", [torch])]).comparability.cautions
    assert {field.name for field in compared} == {"alignment", "other programs", "run order"}
    text = format_text(matrix_sheets(results))
    assert "213.0 !" in text and "(inconclusive) !" in text


def test_an_inconclusive_cell_has_the_command_that_decides_it() -> None:
    results = make_matrix([record(1, framework="paddle"), record(2)], "framework")
    command = "run_benchmarks.py compare duel gpt:paddle:X1:1:1 gpt:torch:X1:1:1 --scale smoke"
    assert matrix_json(results)["rows"][0]["cells"]["torch"]["ratio"]["decided_by"] == command
    markdown = format_markdown(matrix_sheets(results))
    assert command in markdown.replace("\\\n        ", "")


def test_a_difference_within_noise_has_a_mark() -> None:
    runs = [*three((1000, 1030, 970), 1), *three((1001, 1031, 971), 5, framework="paddle")]
    assert "~)" in format_text(matrix_sheets(make_matrix(runs, "framework")))


def tuned(run: RunRecord, **chosen: str) -> RunRecord:
    tuning = {"word": "peak" if chosen else "base", "chosen": chosen}
    return with_result(run, tuning=tuning)


def test_base_and_peak_have_a_column_each() -> None:
    """The newest run is a tuned one: in one column it would stand for the defaults as well."""
    runs = [tuned(record(1, 1000)), tuned(record(2, 1300), layout="suite"), tuned(record(3, 900, case="llama"))]
    results = make_matrix(runs, "framework", expected=["torch", "paddle"])
    assert results.columns == ("torch base", "torch peak", "paddle")
    assert cell(results, "gpt", "torch base").value == 1000 and cell(results, "gpt", "torch peak").value == 1300
    assert cell(results, "llama", "torch peak").state == "not run"
    assert "layout (suite)" in " ".join(format_text(matrix_sheets(results)).split())
    assert matrix_json(results)["rows"][0]["cells"]["torch peak"]["tokens_per_second_per_device"] == 1300
    assert make_matrix(runs, "vendor").columns == ("acme X1 base", "acme X1 peak")
    older = make_matrix([record(4, 800), *runs], "framework")
    assert cell(older, "gpt", "torch").value == 800 and len(older.columns) == 3, "an earlier version says neither"
