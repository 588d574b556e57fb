"""A run whose steps are recorded: the same figures as without, and its step in parts."""

from __future__ import annotations

import json

import pytest
from driving import SHORT, Benchmark

pytestmark = pytest.mark.e2e


def test_a_run_explains_its_step_and_saves_its_weights(benchmark: Benchmark) -> None:
    options = ("--explain-step", "1", "--save-weights", "--no-certificate")
    done = benchmark.run("--case", "short:torch", *SHORT, *options)
    assert done.returncode == 0, done.stderr
    run = benchmark.only_run()
    assert f"run_benchmarks.py report explain {run.name}" in " ".join(done.stderr.split())
    assert json.loads((run / "plan.json").read_text())["explain_steps"] == 1
    assert benchmark.result()["status"]["word"] == "valid" and benchmark.result()["seal"]["word"] == "sealed"
    assert (run / "weights" / "embedding.weight.npy").stat().st_size > 0
    assert {path.name for path in (run / "profile").iterdir()} == {"rank0.step0.json.gz", "rank0.step1.json.gz"}

    shown = benchmark.run("report", "explain", "latest", "--json")
    found = json.loads(shown.stdout)
    assert found["recorded_steps"] == 1 and found["missing"] == []
    parts = {each["part"]: each["time"]["mean"] for each in found["parts"]}
    assert sum(parts.values()) == pytest.approx(found["step"]["mean"], rel=0.02)
    assert parts["mlp"] > 0 and parts["unexplained"] < 0.02 * found["step"]["mean"]
    assert json.loads((run / "step-parts.json").read_text()) == {**found, "planned": None}
    alone = found["alone"]
    shown = {each["part"] for each in alone["parts"]}
    refused = [each for each in alone["missing"] if "run it again" in each]
    for part in ("mlp", "attention core"):  # beside other tests a time may be no measurement, which a sentence says
        assert part in shown or any(each.startswith(part) or "nothing is shown" in each for each in refused), alone
    assert found["planned"]["reason"] or {"computation", "step"} <= {each["name"] for each in found["planned"]["parts"]}
