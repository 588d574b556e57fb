"""A rehearsal of the smallest case on a pretended device, where a CUDA build of torch is named.

Nothing is mocked. It takes half a minute, and runs where LEVELFIELD_CUDA_PYTHON names a Python with such a torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = ROOT / "tools" / "rehearsal" / "inside"
PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
pytestmark = pytest.mark.skipif(not PYTHON, reason="no CUDA build of torch: LEVELFIELD_CUDA_PYTHON names none")
BREAKS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from compiled import since

def broken(x):
    torch._dynamo.graph_break()
    return x + 1

seen = {"graphs": 0, "breaks": {}}
torch.compile(broken, backend="eager")(torch.ones(2))
first, second = since(seen), since(seen)
assert first["graphs"] == 1 and sum(first["graph_breaks"].values()) == 1, first
assert second == {"graphs": 0, "graph_breaks": {}}, second
"""


def rehearsed(*options: str, folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, str(ROOT / "tools" / "rehearse.py"), "gpt2_small:torch:H100:1:1", *options]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "platform"), "TMPDIR": str(folder)}
    return subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_smallest_case_needs_what_was_planned(tmp_path: Path) -> None:
    process = rehearsed("--json", "--compile", folder=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out)
    (rank,) = found["ranks"]
    last = rank["steps"][-1]
    assert 0.8 < last["allocated_peak_bytes"] / found["planned_bytes"] < 1.1
    assert last["allocated_peak_bytes"] <= last["reserved_peak_bytes"]
    assert last["failed_allocations"] == last["allocator_retries"] == 0
    # a layer has 4 products forward and 8 backward; torch.compile makes few kernels of the rest
    assert 20 < last["kernels_a_layer"] < 50 and not any(step["graph_breaks"] for step in rank["compiled_steps"])
    assert not list(tmp_path.glob("rehearsal-*"))


def test_ctrl_c_leaves_no_rank_and_no_folder(tmp_path: Path) -> None:
    process = rehearsed(folder=tmp_path)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("rehearsal-*/rank0.txt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ranks_of(tmp_path)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in err
    assert not list(tmp_path.glob("rehearsal-*")) and not ranks_of(tmp_path)


def ranks_of(folder: Path) -> list[Path]:
    """Processes that have a file of this folder among their arguments."""
    places: list[Path] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        places += [place for word in words if word.startswith(f"{folder}/rehearsal-".encode())]
    return places


def test_graph_breaks_are_counted_once() -> None:
    done = subprocess.run([str(PYTHON), "-c", BREAKS, str(INSIDE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
