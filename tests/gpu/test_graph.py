"""A step's CUDA graph on pretended devices: one launch for all, and what cannot be captured is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from standin.build import build

PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
MODELS = Path(__file__).resolve().parents[2] / "models" / "torch"
PROGRAM = """
import ctypes, json, sys
import torch
from step.graph import StepGraph

def twice_the_norm(x, y):
    total = (x * y).sum() + weight.norm()
    if {waits}:
        total.item()
    return total * 2, x + 1

weight, graph, library = torch.ones(8, device="cuda"), StepGraph(), ctypes.CDLL(None)
results = []
for call in range(5):
    library.standin_reset()
    results.append(graph.run(twice_the_norm, torch.ones(8, device="cuda"), torch.ones(8, device="cuda")))
library.standin_dump(sys.argv[1].encode())
same = [result is results[-1] for result in results]
print(json.dumps(same))
"""
pytestmark = pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")


def run(folder: Path, waits: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **build(Path(str(PYTHON))).environment()}
    environment["PYTHONPATH"] = os.pathsep.join((str(MODELS), str(MODELS.parents[1] / "platform")))
    argv = [str(PYTHON), "-c", PROGRAM.format(waits=waits), str(folder / "books.json")]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)


def test_from_the_third_call_on_a_graph_is_launched(tmp_path: Path) -> None:
    end = run(tmp_path, waits=False)
    assert end.returncode == 0, end.stderr[-2000:]
    assert json.loads(end.stdout) == [False, False, True, True, True]
    entries = json.loads((tmp_path / "books.json").read_text())["entries"]
    counts = [(kind, count) for kind, _, count, *_ in entries]
    assert [count for kind, count in counts if kind == "graph"] == [1]
    assert sum(count for kind, count in counts if kind == "kernel") == 2  # that fill the inputs with ones
    assert not [kind for kind, _ in counts if kind == "captured"]


def test_a_function_that_waits_for_the_device_is_not_captured(tmp_path: Path) -> None:
    end = run(tmp_path, waits=True)
    assert end.returncode and "CUDA error" in end.stderr
