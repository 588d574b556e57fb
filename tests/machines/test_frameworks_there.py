"""Shipped cases on two machines by every framework, aligned with the reference of one process: about fifteen minutes.

`aligned` includes the same checksums of tokens and initial weights. Data, tensor and pipeline parallelism each cross
the machines once. The frameworks' environments are those of this checkout, which both machines see.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_shared import site
from driving import Benchmark
from fleet import Fleet
from levelfield.catalog.registry import Registry

pytestmark = [pytest.mark.machines, pytest.mark.thorough]
ON_CPU = [name for name in sorted(Registry().frameworks) if "cpu" in Registry().implementation(name)[0].requirements]
RUNS = (
    *(f"gpt3_6.7B:{framework}:cpu:2:1 DP2" for framework in ON_CPU),
    "gpt3_6.7B:torch:cpu:2:1 TP2",
    "gpt3_6.7B:torch:cpu:2:1 PP2",
    "llama3_8b:torch:cpu:2:2 DP4",
    "llama3_8b:megatron:cpu:2:2 DP4",
)


def is_aligned(benchmark: Benchmark, *arguments: str) -> None:
    done = benchmark.run(*arguments, "--no-preflight")
    assert done.returncode == 0, done.stdout + done.stderr
    result = benchmark.result()
    assert (result["status"]["word"], result["alignment"]["verdict"]) == ("valid", "aligned"), result["alignment"]
    outcome = json.loads((benchmark.only_run() / "outcome.json").read_text())
    assert [node["word"] for node in outcome["nodes"]] == ["ended", "ended"]


@pytest.mark.parametrize("text", RUNS)
def test_by_slurm(text: str, benchmark: Benchmark, tmp_path: Path) -> None:
    case, layout = text.split()
    is_aligned(benchmark, "--case", case, "--layout", layout, *site(tmp_path))


@pytest.mark.parametrize("text", RUNS)
def test_by_ssh(text: str, fleet: Fleet, tmp_path: Path) -> None:
    is_aligned(fleet, *by_ssh(text, tmp_path))


def by_ssh(text: str, folder: Path) -> tuple[str, ...]:
    case, layout = text.split()
    python = Path(__file__).parents[2] / ".venvs" / f"{case.split(':')[1]}-cpu" / "bin" / "python"
    return ("--case", case, "--layout", layout, "--python", str(python), "--site", str(folder / "site.json"))


@pytest.mark.parametrize("text", ["gpt3_6.7B:torch:cpu:2:1 DP2", "gpt3_6.7B:torch:cpu:2:1 PP2"])
def test_recorded_steps_of_both_machines_are_read_by_ssh(text: str, fleet: Fleet, tmp_path: Path) -> None:
    is_aligned(fleet, *by_ssh(text, tmp_path), "--explain-step", "2")
    parts = json.loads((fleet.only_run() / "step-parts.json").read_text())
    assert parts["recorded_steps"] == 2 and len(parts["ranks"]) == 2 and parts["missing"] == [], parts["missing"]
