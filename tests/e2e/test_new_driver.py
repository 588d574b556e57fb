"""A night of the training that pretends, after seven quiet ones: a faster driver with a slower build, and its pairs.

The quiet nights are one real run, put into the store once for each night. A variable of OpenMP stands for the driver,
as its change is one of the conditions; the clock of the training shows what is planted.
"""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest
from cloned_project import ClonedNights, of_speed
from levelfield.specs.record import NULL_PURPOSES

pytestmark = pytest.mark.e2e

TONIGHT = date(2026, 1, 20)
PACE = 0.02  # seconds of a step


class Nights(ClonedNights):
    """A clone whose store has quiet nights of one series."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        code, *_ = self.night("2026-01-01", FAKE_PACE=str(PACE))
        assert code == 0
        self.repeat_the_run(((TONIGHT - timedelta(days=days)).isoformat(), "nightly") for days in range(1, 9))

    def make_slower(self, factor: float) -> None:
        """Change the code of the training: the clock that it shows."""
        path = self.code / "tests/core/plugins/models/fake/train.py"
        text = path.read_text()
        assert text.count('float(os.environ["FAKE_PACE"])') == 1
        path.write_text(text.replace('float(os.environ["FAKE_PACE"])', f'{factor} * float(os.environ["FAKE_PACE"])'))
        self.commit("slower")


@pytest.mark.thorough  # tests/core/nights/test_new_conditions.py has it on stored runs
def test_a_slower_build_behind_a_faster_driver_is_found_in_its_first_night(tmp_path: Path) -> None:
    project = Nights(tmp_path)
    project.make_slower(1.06)
    faster = {"OMP_WAIT_POLICY": "active", "FAKE_PACE": str(PACE / 1.06)}
    code, findings, _err = project.night(TONIGHT.isoformat(), "--pairs", "20", **faster)
    finding = of_speed(findings)
    assert (code, finding["word"]) == (4, "regression"), finding
    assert finding["build_change"] == pytest.approx(1 / 1.06 - 1, abs=0.01)
    assert finding["conditions_change"] == pytest.approx(0.06, abs=0.01) and "OMP_WAIT_POLICY" in finding["detail"]
    assert "A/A difference" in finding["detail"] and "A/A pairs" in finding["detail"]
    runs = project.records()
    tonight = [run for run in runs if run.night == TONIGHT.isoformat()]
    purposes = Counter(run.purpose for run in tonight)
    assert purposes["nightly"] == 1 and purposes["confirm-a"] == purposes["confirm-b"] >= 3
    assert purposes["null-a"] == purposes["null-b"] == 7, "four of the week, and three for the regression"
    of_nulls = {run.subject.commit for run in tonight if run.purpose in NULL_PURPOSES}
    assert of_nulls == {project.git("rev-parse", "HEAD")}
    again, *_ = project.night(TONIGHT.isoformat(), **faster)
    assert again == 4 and len(project.records()) == len(runs), "nothing runs twice"
