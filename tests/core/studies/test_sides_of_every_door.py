"""The same runs are a side for `compare`, its matrices and the first page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from compared_records import repeats, with_result
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.compare.comparison import compare, comparison_json, comparison_sheets
from levelfield.compare.matrix import make_matrix, matrix_sheets
from levelfield.compare.ranking import TOKENS
from levelfield.compare.sides import side_of, tuning_of
from levelfield.pages.content import read_content
from levelfield.pages.first_view import FirstView, first_view, read_trainings
from levelfield.pages.series_history import InMemoryStore
from levelfield.report.sheets import format_text
from levelfield.specs.record import RunRecord
from levelfield.studies.compared_runs import BundleRuns, runs_of_side


class ListedRuns(BundleRuns):
    """Records in a list, in the place of a bundle."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._records = {record.run_id: record for record in records}


def tuned(runs: Sequence[RunRecord], word: str, **chosen: str) -> list[RunRecord]:
    return [with_result(run, tuning={"word": word, "chosen": chosen}) for run in runs]


def at(runs: Sequence[RunRecord], day: int, hour: int = 10) -> list[RunRecord]:
    """The runs as they would be named and dated on this day of November."""
    moved = []
    for minute, run in enumerate(runs):
        name = f"202611{day:02}T{hour:02}{minute:02}{run.run_id[13:]}"
        began = f"2026-11-{day:02}T{hour:02}:{minute:02}:{run.run_id[13:15]}+00:00"
        moved.append(run.model_copy(update={"run_id": name, "began": began}))
    return moved


def page(records: Sequence[RunRecord]) -> FirstView:
    results = InMemoryStore(records)
    content = read_content(results)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    return first_view(read_trainings(content, results), TOKENS, histories)


def sides_of_matrix(records: Sequence[RunRecord]) -> list[list[str]]:
    cells = make_matrix(records, "framework").cells.values()
    return sorted(sorted(run.run_id for run in cell.side.counted) for cell in cells if cell.side)


def sides_of_page(records: Sequence[RunRecord]) -> list[list[str]]:
    bars = [bar for training in page(records).trainings for bar in training.ranking.bars]
    return sorted(sorted(run.run_id for run in bar.contender.side.counted) for bar in bars)


@pytest.mark.parametrize("newest", ["base", "peak"])
def test_runs_of_base_and_peak_are_never_one_side(newest: str) -> None:
    older = "peak" if newest == "base" else "base"
    runs = [*at(tuned(repeats(100, 101), older), 22), *at(tuned(repeats(150, first=9), newest), 22, hour=11)]
    of_one_tuning = [sorted(run.run_id for run in runs if tuning_of(run) == word) for word in (newest, older)]
    taken = sorted(run.run_id for run in runs_of_side(ListedRuns(runs), "gpt:torch").runs)
    for side in [taken, *sides_of_matrix(runs), *sides_of_page(runs)]:
        assert side in of_one_tuning


TORCH = at(tuned(repeats(100, 101, 102), "base"), 22)
ENV = {"variables": {"OMP": "1"}}
# what else ran, and the runs that then stand for the series; None: those of TORCH
STORES: dict[str, tuple[list[RunRecord], list[RunRecord] | None]] = {
    "an earlier run of the day": (at(tuned(repeats(150, first=40), "base"), 22, hour=9), None),
    "a command of another day": (at(tuned(repeats(150, 160, 170, 180, first=40), "base"), 20), None),
    "a later peak": (at(tuned(repeats(150, first=40), "peak", env="user"), 26), None),
    "a later complete peak": (at(tuned(repeats(150, 151, 152, first=40), "peak", env="user"), 26), None),
    "a later run that is different": (at(tuned(repeats(150, first=40, verdict="different"), "peak"), 26), None),
    "a later run that diverged": (at(tuned(repeats(150, first=40, verdict="diverged"), "base"), 22, hour=11), None),
    "one later run under other variables": (at(tuned(repeats(50, first=40, **ENV), "base"), 22, hour=11), None),
    **{
        f"a later command {words}": (others, others)
        for words, others in {
            "under other variables": at(tuned(repeats(50, 51, 52, first=40, **ENV), "base"), 22, hour=11),
            "on another node": at(tuned(repeats(50, 51, 52, first=40, node="node-2"), "base"), 22, hour=11),
            "of another build": at(tuned(repeats(50, first=40, commit="new"), "base"), 22, hour=11),
        }.items()
    },
}


@pytest.mark.parametrize("store", STORES)
def test_a_label_a_matrix_and_a_page_take_the_same_runs_of_a_series(store: str) -> None:
    others, expected = STORES[store]
    runs = [*TORCH, *others]
    ids = sorted(run.run_id for run in expected or TORCH)
    chosen = runs_of_side(ListedRuns(runs), "gpt:torch")
    assert sorted(run.run_id for run in chosen.runs) == ids
    assert ids in sides_of_matrix(runs)
    assert ids in sides_of_page(runs)


def test_a_label_says_which_runs_it_leaves_out_and_why() -> None:
    different = at(tuned(repeats(150, first=40, verdict="different"), "base"), 26)
    peak = at(tuned(repeats(150, first=50), "peak", env="user"), 27)
    chosen = runs_of_side(ListedRuns([*TORCH, *different, *peak]), "gpt:torch")
    reasons = {run.run_id: reason for run, reason in chosen.left_out}
    assert "different" in reasons[different[0].run_id]
    assert "peak" in reasons[peak[0].run_id] and "env" in reasons[peak[0].run_id]
    side = side_of("A", chosen.runs, left_out=chosen.left_out)
    outcome = compare([side, side_of("B", repeats(90, 91, 92, first=20, framework="jax"))])
    assert {entry["run"] for entry in comparison_json(outcome)["sides"][0]["left_out"]} == set(reasons)
    output = format_text(comparison_sheets(outcome))
    assert all(run_id in output for run_id in reasons)


def test_a_peak_stands_for_a_label_where_no_base_counts() -> None:
    peak, failed = tuned(repeats(150, first=9), "peak"), tuned(repeats(1, first=20, word="failed"), "base")
    assert runs_of_side(ListedRuns([*peak, *failed]), "gpt:torch").runs == tuple(peak)


def test_the_fastest_series_stands_for_a_column_of_a_matrix_and_of_the_page() -> None:
    slow = at(tuned(repeats(50, 51, 52, first=40, micro_batch=4, accumulation=2), "base"), 23)
    jax = repeats(90, 91, 92, first=20, framework="jax")
    assert sides_of_matrix([*TORCH, *slow, *jax]) == sides_of_page([*TORCH, *slow, *jax])
    assert sorted(run.run_id for run in TORCH) in sides_of_matrix([*TORCH, *slow, *jax])


@pytest.mark.thorough  # test_run_sources.py has sides of both bundles; the order of their runs is tested above
def test_the_shipped_bundles_compare_one_case_on_two_chips() -> None:
    """The newest run of the H100 is one with forced TF32, whose training differs."""
    folder = checkout() / "docs" / "verified"
    sides = []
    for chip in ("h100", "h200"):
        (file,) = (folder / chip).glob("*.zip")
        chosen = runs_of_side(BundleRuns(file, Registry()), "gpt3_6.7B:torch")
        sides.append(side_of(chip, chosen.runs, left_out=chosen.left_out))
    outcome = compare(sides)
    assert outcome.comparability.is_comparable and outcome.figures[0].ratios[0].value
    assert [{*map(tuning_of, side.counted)} for side in sides] == [{"base"}] * 2


JAX = at(repeats(90, 91, 92, first=20, framework="jax"), 22)
WORK = "sha256:" + "7" * 64


def trial(**changes: Any) -> list[RunRecord]:
    """A run of each framework, of which jax is the faster."""
    torch, jax = changes.pop("torch", {}), changes.pop("jax", {})
    return [
        *at(tuned(repeats(60, first=40, **changes, **torch), "base"), 23),
        *at(repeats(61, first=44, framework="jax", **changes, **jax), 23),
    ]


TRIALS = {
    "a derived case": trial(case="gpt+steps14", work=WORK),
    "full scale once": trial(scale="full", work=WORK),
    "another case that is not aligned": trial(case="llama", work=WORK, jax={"verdict": "not checked"}),
}


@pytest.mark.parametrize("kind", TRIALS)
def test_a_trial_is_in_no_headline_and_no_mean_and_is_listed_apart(kind: str) -> None:
    duel, whole = (
        [*tuned(TORCH, "base"), *tuned(JAX, "base")],
        [*TORCH, *tuned(JAX, "base"), *tuned(TRIALS[kind], "base")],
    )
    before, after = page(duel), page(whole)
    assert before.lead and after.lead and before.is_decided and after.is_decided
    assert (after.lead.value, after.lead.low, after.scale) == (before.lead.value, before.lead.low, "smoke")
    (ratio,) = make_matrix(whole, "framework").ratios
    assert ratio.ratio.standing in ("higher", "lower") and ratio.trainings == 1
    value = ratio.ratio.value
    assert any(value == pytest.approx(lead.value) for lead in (before.lead, before.lead.inverse))
    assert len(ratio.outside_mean) == len(after.overall.rows[1].outside_mean) == 1
    assert ratio.outside_mean[0][0] in format_text(matrix_sheets(make_matrix(whole, "framework")))


def test_a_trial_is_the_answer_where_there_is_nothing_else() -> None:
    derived = trial(case="gpt+steps14")
    assert page(derived).lead and make_matrix(tuned(derived, "base"), "framework").ratios[0].trainings == 1


H100: dict[str, Any] = {"vendor": "nvidia", "chip": "H100"}
H200: dict[str, Any] = {"vendor": "nvidia", "chip": "H200"}
OTHERS = [
    *at(repeats(35, 35.1, 35.2, framework="deepspeed", **H100), 22),
    *at(repeats(379, 380, 381, first=20, framework="jax", **H200), 23),
]
SAME = [*at(repeats(50, 50.1, 50.2, first=30, **H100), 22), *at(repeats(60, 60.1, 60.2, first=40, **H200), 22)]


def test_chips_are_compared_by_the_same_framework() -> None:
    outcome = page([*OTHERS, *SAME])
    (ratio,) = make_matrix([*OTHERS, *SAME], "vendor").ratios
    assert outcome.lead and outcome.lead.value == pytest.approx(1.1996, rel=1e-3)
    value = ratio.ratio.value
    assert any(value == pytest.approx(lead.value) for lead in (outcome.lead, outcome.lead.inverse))
    (training,) = outcome.trainings
    assert [bar.ranked.contender.framework for bar in training.best_bars] == ["torch", "torch"]
    frameworks = {bar.ranked.contender.framework for bar in training.listed_bars if bar.ranked.ratio}
    assert frameworks == {"torch"}


def test_chips_that_ran_by_other_frameworks_alone_have_no_ratio() -> None:
    outcome = page(OTHERS)
    (training,) = outcome.trainings
    assert outcome.lead is None and outcome.others_differ_by_framework
    assert len(training.best_bars) == 1 and training.uncompared == ("nvidia H100 (deepspeed)",)
    assert [ratio.ratio.value for ratio in make_matrix(OTHERS, "vendor").ratios] == [None]
