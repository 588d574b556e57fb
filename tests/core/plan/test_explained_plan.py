"""The plan of a run whose steps are recorded: how its ranks start, and which frameworks have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import NotHere
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import job_of
from plans import make_plan

CASE = "gpt3_6.7B:{}:cpu:1:1"


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "megatron", "jax", "paddle"])
def test_the_ranks_start_through_the_module_that_records(framework: str) -> None:
    registry, text = Registry(), CASE.format(framework)
    plain = make_plan(registry, text, scale="smoke")
    plan = make_plan(registry, text, scale="smoke", explain_steps=4)
    python, *program = plain.implementation.argv
    assert plan.implementation.argv == (python, "-m", "levelfield.worker.step_profile", *program)
    run = RunPaths(Path("/runs/one"))
    told = {"steps": 4, "folder": "/runs/one/profile", "most_bytes": 2**26}
    assert job_of(plan, run) == {**job_of(plain, run), "explain_step": told}
    assert "explain_step" not in job_of(plain, run) and plain.explain_steps is None
    assert plan.work_digest == plain.work_digest, "the work is another one, so that no run is compared with it"


@pytest.mark.parametrize("framework", ["oneflow"])
def test_a_framework_that_cannot_record_its_steps_is_refused_by_name(framework: str) -> None:
    with pytest.raises(NotHere, match=f"framework {framework} has no step_profile.py"):
        make_plan(Registry(), CASE.format(framework), scale="smoke", explain_steps=3)


@pytest.mark.parametrize("steps", ["0", "21", "-1"])
def test_a_number_of_steps_has_bounds(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", CASE.format("torch"), "--explain-step", steps, "--dry-run"]) == 2
    assert f"--explain-step: found {steps}, expected 1 to 20 steps" in capsys.readouterr().err
