"""The same runs are a side for `compare`, its matrices and the first page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from compared_records import repeats, with_result
from levelfield.compare.matrix import matrix
from levelfield.compare.ranking import TOKENS
from levelfield.pages.content import gathered
from levelfield.pages.first_view import FirstView, first_view, ranked_trainings
from levelfield.pages.series_history import GivenRuns
from levelfield.specs.record import RunRecord
from levelfield.studies.compared_runs import BundleRuns, named_runs


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
    results = GivenRuns(records)
    content = gathered(results)
    histories = {digest: runs.points for digest, runs in content.series.items()}
    return first_view(ranked_trainings(content, results), TOKENS, histories)


def sides_of_matrix(records: Sequence[RunRecord]) -> list[list[str]]:
    cells = matrix(records, "framework").cells.values()
    return sorted(sorted(run.run_id for run in cell.side.counted) for cell in cells if cell.side)


def sides_of_page(records: Sequence[RunRecord]) -> list[list[str]]:
    bars = [bar for training in page(records).trainings for bar in training.ranking.bars]
    return sorted(sorted(run.run_id for run in bar.contender.side.counted) for bar in bars)


@pytest.mark.parametrize("newest", ["base", "peak"])
def test_runs_of_base_and_peak_are_never_one_side(newest: str) -> None:
    older = "peak" if newest == "base" else "base"
    runs = [*at(tuned(repeats(100, 101), older), 22), *at(tuned(repeats(150, first=9), newest), 22, hour=11)]
    of_one_tuning = [sorted(run.run_id for run in runs if run.result.tuning.word == word) for word in (newest, older)]
    taken = sorted(run.run_id for run in named_runs(ListedRuns(runs), "gpt:torch"))
    for side in [taken, *sides_of_matrix(runs), *sides_of_page(runs)]:
        assert side in of_one_tuning
