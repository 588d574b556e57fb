"""A run that other programs disturbed is no speed where a quiet one is there; where none is, it has the word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compared_records import other_use, record, repeats, with_result
from levelfield.catalog.registry import Registry
from levelfield.compare.comparison import compare, comparison_json, comparison_sheets
from levelfield.compare.matrix import MatrixCell, ResultMatrix, make_matrix, matrix_json, matrix_sheets
from levelfield.compare.ranking import TOKENS
from levelfield.compare.scaling import compute_scaling, scaling_sheets
from levelfield.compare.series_runs import MAX_RUNS_READ, recent_runs
from levelfield.compare.sides import disturbance, side_of
from levelfield.pages.content import read_content
from levelfield.pages.first_view import FirstView, first_view, read_trainings
from levelfield.pages.page_building import build_pages
from levelfield.pages.page_rendering import LANGUAGES, translate
from levelfield.pages.series_history import CachedDocuments, InMemoryStore, history_data, summary_of
from levelfield.report.result_words import status_in_words
from levelfield.report.sheets import format_text
from levelfield.run.turns import PairProgress
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.specs.result import DISTURBED


def beside(run: RunRecord, cores: float | None, of: int | None = 2) -> RunRecord:
    """The run with what other programs used of the cores in its window."""
    return with_result(run, other_use=other_use(cores, of))


def loud(number: int, rate: float, **changes: Any) -> RunRecord:
    return beside(record(number, rate, **changes), 1.72)


def quiet(number: int, rate: float, **changes: Any) -> RunRecord:
    return beside(record(number, rate, **changes), 0.03)


def cell(outcome: ResultMatrix) -> MatrixCell:
    return next(iter(outcome.cells.values()))


def in_one_line(output: str) -> str:
    return " ".join(output.split())


WHY = "disturbed: others used up to 1.7 of 2 cores"


def test_a_side_leaves_disturbed_runs_out_and_says_which() -> None:
    side = side_of("A", [quiet(1, 1000), loud(2, 100), quiet(3, 1010)])
    assert [run.run_id for run in side.counted] == [record(n, 1).run_id for n in (1, 3)] and not side.is_disturbed
    ((run, reason),) = side.excluded
    assert run.tokens_per_second_per_device == 100 and WHY in reason and "quiet" in reason
    outcome = compare([side, side_of("B", [quiet(4, 500), loud(5, 2000)])])
    assert outcome.figures[0].ratios[0].value == pytest.approx(500 / 1005, rel=1e-3)
    counts = [re.findall(r"\d+", row[-1]) for row in next(comparison_sheets(outcome)).rows]
    assert counts == [["2", "3"], ["1", "2"]]
    (left_out,) = [field for field in outcome.comparability.cautions if field.name == "left out"]
    assert all(WHY in values[0] for values in left_out.values)
    assert [len(entry["left_out"]) for entry in comparison_json(outcome)["sides"]] == [1, 1]


def test_a_side_of_disturbed_runs_alone_is_shown_with_the_word() -> None:
    outcome = compare([side_of("A", [quiet(1, 1000)]), side_of("B", [loud(2, 100), loud(3, 90)])])
    assert outcome.sides[1].is_disturbed and len(outcome.sides[1].counted) == 2
    assert "2, disturbed" in format_text(comparison_sheets(outcome))
    assert [entry["disturbed"] for entry in comparison_json(outcome)["sides"]] == [False, True]


@pytest.mark.parametrize(("cores", "of"), [(None, 2), (0.2, 2), (1.0, None)])
def test_a_run_whose_use_is_unknown_or_within_the_limit_is_not_disturbed(cores: float | None, of: int | None) -> None:
    side = side_of("A", [quiet(1, 1000), beside(record(2, 100), cores, of)])
    assert len(side.counted) == 2


def test_pairs_in_turns_keep_their_disturbed_runs() -> None:
    assert len(side_of("A", [quiet(1, 1000), loud(2, 100)], is_paired=True).counted) == 2


def test_a_cell_is_of_the_newest_quiet_run_and_says_how_many_are_left_out() -> None:
    older = quiet(1, 1000, began="2026-11-18T10:00:00+00:00")
    outcome = make_matrix([older, loud(2, 100), loud(3, 90)], "framework")
    assert cell(outcome).value == 1000 and not cell(outcome).is_disturbed
    assert cell(outcome).detail.startswith("2 left") and cell(outcome).detail.endswith(f": {loud(3, 90).run_id}: {WHY}")
    assert in_one_line(cell(outcome).detail) in in_one_line(format_text(matrix_sheets(outcome)))


def test_a_disturbed_repeat_is_in_no_median_of_its_cell() -> None:
    runs = [beside(run, 1.72 if n == 2 else 0.03) for n, run in enumerate(repeats(1000, 100, 1010), start=1)]
    outcome = cell(make_matrix(runs, "framework"))
    assert outcome.rate and outcome.rate.values == (1000, 1010) and outcome.detail.startswith("1 left")


def test_a_disturbed_run_of_another_layout_hides_no_quiet_one() -> None:
    other = loud(2, 100, layout=Layout(tensor=1), micro_batch=4)
    outcome = cell(make_matrix([quiet(1, 1000), other], "framework"))
    assert outcome.value == 1000 and outcome.detail.startswith("1 left")


def test_a_cell_of_disturbed_runs_alone_has_the_word() -> None:
    outcome = make_matrix([loud(1, 100)], "framework")
    assert cell(outcome).value == 100 and cell(outcome).is_disturbed
    assert "! disturbed" in format_text(matrix_sheets(outcome))
    (row,) = matrix_json(outcome)["rows"]
    assert [entry["disturbed"] for entry in row["cells"].values()] == [True]


def two_cases(of_second: Callable[..., RunRecord], of_first: Callable[..., RunRecord] = quiet) -> list[RunRecord]:
    """Two frameworks in two cases: jax twice as fast in the first, four times in the second."""
    return [
        *(of_first(1, 1000), of_first(2, 2000, framework="jax")),
        *(quiet(3, 1000, case="llama"), of_second(4, 4000, framework="jax", case="llama")),
    ]


def test_the_geometric_mean_leaves_rows_of_disturbed_runs_out() -> None:
    (outcome,) = make_matrix(two_cases(loud), "framework").ratios
    expected = {"jax": 2.0, "torch": 0.5}[outcome.column]
    assert outcome.ratio.value == pytest.approx(expected) and (outcome.trainings, outcome.disturbed_left_out) == (1, 1)
    output = in_one_line(format_text(matrix_sheets(make_matrix(two_cases(loud), "framework"))))
    assert f"{outcome.column}: 1 row(s)" in output
    (every,) = make_matrix(two_cases(quiet), "framework").ratios
    assert (every.trainings, every.disturbed_left_out, every.is_disturbed) == (2, 0, False)


def test_a_mean_of_disturbed_rows_alone_is_one_and_says_so() -> None:
    outcome = make_matrix(two_cases(loud, loud), "framework")
    assert outcome.ratios[0].trainings == 2 and outcome.ratios[0].is_disturbed
    assert f"{outcome.ratios[0].column}: disturbed" in in_one_line(format_text(matrix_sheets(outcome)))


def test_scaling_leaves_them_out_and_says_so() -> None:
    runs = [
        quiet(1, 1000),
        quiet(2, 900, devices=2, layout=Layout(data=2)),
        loud(3, 90, devices=2, layout=Layout(data=2)),
    ]
    output = in_one_line(format_text(scaling_sheets(compute_scaling(runs))))
    assert "0.900" in output and f": {runs[2].run_id}: {WHY}" in output
    assert "1, disturbed" in format_text(scaling_sheets(compute_scaling([runs[0], runs[2]])))


# -- pages


def view(records: list[RunRecord]) -> FirstView:
    results = InMemoryStore(records)
    content = read_content(results)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    return first_view(read_trainings(content, results), TOKENS, histories)


def test_the_first_page_takes_the_newest_quiet_run_however_many_disturbed_ones_are_newer() -> None:
    noisy = [loud(n, 100 + n) for n in range(10, 20)]
    other = quiet(3, 500, chip="Z9")
    seen = view([quiet(1, 1000), *noisy, other])
    (drawn,) = seen.trainings
    x1 = next(bar for bar in drawn.best_bars if bar.name == "acme X1")
    assert x1.ranked.value == pytest.approx(1000) and not x1.ranked.contender.side.is_disturbed
    assert seen.overall.rows[0].column == "acme X1" and seen.lead and seen.lead.value == pytest.approx(2.0)
    assert len(x1.ranked.contender.side.excluded) == len(noisy)


def test_the_fastest_series_is_so_by_its_quiet_runs() -> None:
    """The faster layout was disturbed last: the slower one is not the better one for it."""
    seen = view([quiet(1, 1000, micro_batch=4), loud(5, 10, micro_batch=4), quiet(2, 500)])
    assert [bar.ranked.value for bar in seen.trainings[0].best_bars] == [pytest.approx(1000)]


def test_the_overall_ratio_of_the_pages_is_that_of_the_quiet_trainings() -> None:
    records = [
        *(quiet(1, 1000), quiet(2, 500, chip="Z9")),
        *(quiet(3, 1000, case="llama"), loud(4, 10, chip="Z9", case="llama")),
    ]
    seen = view(records)
    assert seen.lead and seen.lead.value == pytest.approx(2.0)
    assert (seen.overall.rows[1].trainings, seen.overall.rows[1].disturbed_left_out) == (1, 1)


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_mark_what_is_disturbed_and_say_what_is_left_out(language: str, tmp_path: Path) -> None:
    records = [quiet(1, 1000), *(loud(n, 10) for n in (4, 5)), loud(2, 100, chip="Z9")]
    build_pages(InMemoryStore(records), tmp_path / "site", Registry())
    folder = tmp_path / "site" / ("" if language == "en" else language)
    flag = f'<span class="flag busy">{translate(language, "flag.disturbed")}</span>'
    first = (folder / "index.html").read_text()
    case = next(folder.glob("case-*.html")).read_text()
    (bar,) = [line for line in first.splitlines() if "acme Z9</a>" in line]
    assert flag in bar and first.count(flag) == 1
    rows = [line for line in case.splitlines() if line.startswith('<tr><th scope="row"><a href="#')]
    assert [flag in row for row in rows] == ["Z9" in row for row in rows] and len(rows) == 2
    assert translate(language, "disturbed-left-out", count=2) in case and translate(language, "disturbed-shown") in case


def test_the_summary_of_a_series_is_of_its_newest_quiet_run() -> None:
    content = read_content(InMemoryStore([quiet(1, 1000), loud(2, 100), loud(3, 90)]))
    (runs,) = content.series.values()
    outcome = summary_of(runs)
    assert (
        outcome.tokens_per_second_per_device,
        outcome.disturbed_left_out,
        outcome.valid_count,
        runs.is_disturbed,
    ) == (1000, 2, 3, False)
    (alone,) = read_content(InMemoryStore([loud(2, 100), loud(3, 90)])).series.values()
    assert (
        summary_of(alone).tokens_per_second_per_device,
        summary_of(alone).disturbed_left_out,
        alone.is_disturbed,
    ) == (90, 0, True)


def test_the_history_of_a_series_has_the_word_for_each_run() -> None:
    results = InMemoryStore([loud(1, 100), quiet(2, 1000), loud(3, 90, word="invalid"), loud(4, 90)])
    (runs,) = read_content(results).series.values()
    made = history_data(runs, CachedDocuments(results))
    assert [made["kept"]["words"][place] for place in made["columns"]["word"]] == [
        DISTURBED,
        "valid",
        "invalid",
        DISTURBED,
    ]
    words = {translate(language, f"word.{DISTURBED}") for language in LANGUAGES}
    assert len(words) == len(LANGUAGES) and not words & {translate(language, "word.valid") for language in LANGUAGES}


def test_a_run_whose_window_is_unknown_is_disturbed_by_the_load_before_it() -> None:
    """So is a run in a container, whose processes are not told apart from others."""

    def run(before: float) -> RunRecord:
        use = {**other_use(None, 2), "host_before": {"value": before, "unit": "cores", "reason": None}}
        return with_result(record(1, 100), other_use=use)

    assert [bool(disturbance(run(cores))) for cores in (0.1, 1.72)] == [False, True]
    assert status_in_words(run(1.72).result) == DISTURBED and status_in_words(run(0.1).result) == "valid"


def test_a_status_that_is_not_valid_has_its_own_class() -> None:
    failed = with_result(loud(1, 100), status={"word": "invalid", "failure": "disturbed", "reasons": ["x"]})
    assert status_in_words(failed.result) == "invalid (disturbed)"


def test_the_progress_of_pairs_marks_a_disturbed_run(tmp_path: Path) -> None:
    lines: list[str] = []
    runs = iter([loud(1, 100), quiet(2, 100)])
    report = PairProgress("tokens_per_second_per_device", lines.append).wrap_store_run(lambda arm, paths: next(runs))
    for arm in "ab":
        report(arm, RunPaths(tmp_path))
    assert [", disturbed" in line for line in lines] == [True, False]


# -- where runs come from


class Newest:
    """A source of runs of one series, the newest first. read: how many were."""

    def __init__(self, runs: list[RunRecord]) -> None:
        self.runs, self.read = runs, 0

    def newest_runs(self, series: object) -> Iterator[RunRecord]:
        for run in self.runs:
            self.read += 1
            yield run


def test_a_series_is_read_until_a_quiet_run_or_so_many_disturbed_ones() -> None:
    noisy = [loud(n, 100, began=f"2026-11-22T10:{59 - n}:00+00:00") for n in range(40)]
    good = quiet(50, 1000, began="2026-11-18T10:00:00+00:00")
    few = Newest([*noisy[:5], good])
    assert list(recent_runs(few.newest_runs(good.series)))[-1] == good
    many = Newest([*noisy, good])
    assert len(list(recent_runs(many.newest_runs(good.series)))) == MAX_RUNS_READ == many.read
