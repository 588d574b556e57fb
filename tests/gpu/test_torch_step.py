"""benchmarks/torch_step.py on the stand-in: launches of a step of ours and of its peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tools" / "run_on_standin.py"


@pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")
def test_launches_are_counted_on_the_standin() -> None:
    row = only_row("eager")
    assert row["pretended"] == "H100-80" and row["of_peak"] is None and "gpt2" in row["left_out"]["liger"]
    # 12 layers with 4 products, and the head: each has three, of which ours divides the head's into chunks of rows
    least = 3 * (12 * 4 + 1)
    launches = {who: facts["launches"] for who, facts in row["trainers"].items()}
    assert min(launches.values()) > least and launches["plain"] == pytest.approx(721, abs=20), launches
    launches = {who: facts["launches"] for who, facts in only_row("graph")["trainers"].items()}
    # the graph, and the learning rate before it
    assert 2 <= launches["ours"] < 10 and launches["plain"] > least, launches


def only_row(mode: str) -> dict[str, Any]:
    only = ["--only", "gpt h768", "--only", f"bf16 {mode}"]
    argv = [sys.executable, str(RUN), str(PYTHON), "benchmarks/torch_step.py", "--device", "cuda", *only, "--json"]
    environment = {**os.environ, "PYTHONPATH": "platform", "LEVELFIELD_STANDIN_CHIP": "H100-80"}
    done = subprocess.run([*argv, "--turns", "1"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout)
    return dict(row)


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(RUN), str(tmp_path / "none"), "x.py"], capture_output=True, text=True)
    assert done.returncode == 2
    assert str(tmp_path / "none") in done.stderr
