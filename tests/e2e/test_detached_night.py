"""A night that goes on without its shell, also as the process of another checkout after a pull."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cloned_project import ClonedNights

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]  # tests/core has a call and its end, test_detached.py its start


def call_of(project: ClonedNights) -> dict[str, Any]:
    path = max((project.data / "runs/detached").glob("*/call.json"))
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_detached_night_ends_with_the_code_of_the_gate_also_after_a_pull(tmp_path: Path) -> None:
    """The first one is killed, and the code changes: the second one goes on in a checkout of the first commit."""
    project = ClonedNights(tmp_path)
    night = (*project.nightly_arguments("2026-01-23"), "--no-confirm", "--detach")
    first = project.start(*night, FAKE_STEP_SECONDS="4")
    out, err = first.communicate(timeout=120)
    assert first.returncode == 0 and "night-2026-01-23" in out, err
    while not list((project.data / "runs").glob("*/events/rank0.jsonl")):
        time.sleep(0.05)
    refused = project.run(*night)
    assert refused[0] == 2 and "another nightly" in refused[2]
    call = call_of(project)
    os.kill(call["platform"]["process"], signal.SIGKILL)
    code, _, err = project.run("run", "attach", call["id"])
    assert code == 3 and "start the night again" in " ".join(err.split())
    project.steps_last(0.15)
    project.commit("pulled")
    code, out, err = project.run(*night)
    assert code == 0, err
    code, out, err = project.run("run", "attach", out.split()[1])
    assert code == 0 and "night 2026-01-23" in out, f"{out}{err}"
    assert call_of(project)["exit_code"] == 0 and call_of(project)["id"] != call["id"]
