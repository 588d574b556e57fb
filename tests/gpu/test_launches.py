"""Each launch of a rehearsed step belongs to a part: of a constructed record, and of gpt2_small."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rehearsal.launches import launches_by_part
from rehearsal.plans import make_plan
from rehearsal.start import rehearse
from rehearsal.text import launch_lines
from sampled_launches import compare_launches
from standin.build import build

PYTHON = os.environ.get("LEVELFIELD_CUDA_PYTHON")
BASE = 1_790_000_000_000_000_000
MAIN = 11  # the thread


def recorded(folder: Path, calls: list[str]) -> None:
    """A step of 1 ms: an MLP with a product, and nothing that is named after 500 us."""

    def span(name: str, start: float, end: float) -> dict[str, object]:
        return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": end - start, "tid": MAIN, "args": {}}

    events = [span("lf/step", 0, 1000), span("lf/mlp/layers.0.mlp", 10, 400), span("aten::mm", 20, 100)]
    trace = {"baseTimeNanoseconds": BASE, "traceEvents": events}
    (folder / "rank0.trace.json").write_text(json.dumps(trace))
    (folder / "rank0.calls").write_text("".join(f"{line}\n" for line in calls))


def at(microseconds: int, kind: str, name: str) -> str:
    return f"{BASE + microseconds * 1000} {MAIN} {kind} {name}"


def test_each_launch_has_the_part_of_its_time_on_its_thread(tmp_path: Path) -> None:
    recorded(
        tmp_path,
        [
            at(30, "product", "bf16 m=1 n=2 k=3 batch=1"),
            at(50, "kernel", "void add<float>(float*)"),
            at(200, "memset", "memset"),
            at(300, "collective", "all_reduce over 8"),
            at(350, "memory", "allocation"),  # starts nothing
            at(700, "kernel", "nobody's"),
        ],
    )
    assert launches_by_part(tmp_path, 0) == {"mlp": 3, "all-reduce": 1, "unexplained": 1}


def test_without_a_record_there_is_none(tmp_path: Path) -> None:
    assert launches_by_part(tmp_path, 0) is None
    (line,) = launch_lines([{"rank": 0, "launches": None}])
    assert line.startswith("rank 0: no")


@pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")
def test_less_than_one_in_a_hundred_launches_is_unexplained() -> None:
    entry, python = make_plan("gpt2_small:torch:H100:1:1", []), Path(str(PYTHON))
    (report,) = rehearse(entry, python, build(python), [0], 2, 120, by_part=True)
    launches = report["launches"]
    assert launches.get("unexplained", 0) < 0.01 * sum(launches.values())
    assert launches["attention core"] == 12 * 4 and launches["mlp"] > 0


@pytest.mark.skipif(not PYTHON, reason="LEVELFIELD_CUDA_PYTHON is not set")
def test_a_sampled_step_waits_as_often_as_others_and_takes_little_memory() -> None:
    without, sampled = compare_launches("gpt2_small:torch:H100:1:1", Path(str(PYTHON)))
    assert sampled.waits == without.waits
    assert sampled.copies > without.copies + 1000  # the samples: none of them is waited for
    assert sampled.peak_bytes < 1.02 * without.peak_bytes
