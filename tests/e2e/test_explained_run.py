"""A run of real text whose steps are recorded: the same figures as without, and its step in parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from driving import SHORT, TORCH_HERE, Benchmark

pytestmark = pytest.mark.e2e


def test_a_run_of_real_text_explains_its_step_and_saves_its_weights(benchmark: Benchmark, tmp_path: Path) -> None:
    sources, prefix = Path(os.__file__).parent / "json", tmp_path / "stdlib"
    prepared = benchmark.run(
        "data", "prepare", "--input", str(sources), "--suffix", ".py", "--tokenizer", "bytes", "--output", str(prefix)
    )
    assert prepared.returncode == 0, prepared.stderr
    options = ("--data", str(prefix), "--explain-step", "1", "--save-weights", "--no-certificate")
    done = benchmark.run("--case", "short:torch", *SHORT, *TORCH_HERE, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    digest = next(line.split()[1] for line in prepared.stdout.splitlines() if line.startswith("digest"))
    assert benchmark.result()["identity"]["corpus"] == digest
    assert benchmark.result()["loss"]["floor"] is None
    run = benchmark.only_run()
    assert f"explain {run.name}" in " ".join(done.stderr.split())
    assert json.loads((run / "plan.json").read_text())["explain_steps"] == 1
    assert benchmark.result()["status"]["word"] == "valid" and benchmark.result()["seal"]["word"] == "sealed"
    assert (run / "weights" / "embedding.weight.npy").stat().st_size > 0
    assert {path.name for path in (run / "profile").iterdir()} == {"rank0.step0.json.gz", "rank0.step1.json.gz"}

    step = json.loads(benchmark.run("report", "explain", "latest", "--json").stdout)
    assert step["recorded_steps"] == 1 and step["missing"] == []
    parts = {part["part"]: part["time"]["mean"] for part in step["parts"]}
    assert sum(parts.values()) == pytest.approx(step["step"]["mean"], rel=0.02)
    assert parts["mlp"] > 0 and parts["unexplained"] < 0.02 * step["step"]["mean"]
    assert json.loads((run / "step-parts.json").read_text()) == {**step, "planned": None}
    alone = step["alone"]
    measured = {part["part"] for part in alone["parts"]}
    noisy = [sentence for sentence in alone["missing"] if "run it again" in sentence]
    for name in ("mlp", "attention core"):  # beside other tests a time may be no measurement, which a sentence says
        assert name in measured or any(s.startswith(name) or "nothing is" in s for s in noisy), alone
    planned = step["planned"]
    assert planned["reason"] or {"computation", "step"} <= {part["name"] for part in planned["parts"]}
