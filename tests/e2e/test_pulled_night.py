"""A pull under a night of the training that pretends, in a clone: the night runs what its first start had."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from cloned_project import ClonedNights

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]  # tests/core/nights/test_night_code.py pulls and starts again


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_pull_changes_nothing_of_a_night_that_has_begun(is_killed: bool, tmp_path: Path) -> None:
    """Killed and started again, or while it runs: the entry runs with the first commit, from a checkout of it."""
    project = ClonedNights(tmp_path)
    process = project.start(*project.nightly_arguments("2026-01-23"), "--no-confirm", FAKE_STEP_SECONDS="0.5")
    while not list((project.data / "runs").glob("*/events/rank0.jsonl")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    project.steps_last(0.15)
    project.commit("pulled")
    if is_killed:
        process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == (-signal.SIGKILL if is_killed else 0)
    if is_killed:
        assert project.night("2026-01-23", "--no-confirm")[0] == 0
    _code, out, _err = project.run("store", "export")
    runs = [row for line in out.splitlines() if (row := json.loads(line))["schema"] == "levelfield.record/1"]
    (run,) = [run for run in runs if run["night"] == "2026-01-23"]
    assert (run["word"], run["subject"]["commit"], run["subject"]["is_dirty"]) == ("valid", project.first, False)
