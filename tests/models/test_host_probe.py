"""The probe of this host, run: every figure is there, and processes that share the cores measure together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.run import host_probe

TORCH = Path(__file__).parents[2] / "models" / "torch"
ALONE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import host_rates
host_rates.divisions = lambda cores: [(1, 1), (2, 1)]
sys.argv[1:] = ["--dtype", "fp32", "--seconds", "0.001"]
host_rates.main()
"""


@pytest.fixture(scope="module")
def found() -> str:
    printed = subprocess.run(
        [sys.executable, "-c", ALONE, str(TORCH)], capture_output=True, text=True, timeout=200, check=True
    ).stdout
    return printed


@pytest.mark.torch
def test_every_figure_is_measured(found: str) -> None:
    shares = json.loads(found)["shares"]
    assert [(s["processes"], s["threads"]) for s in shares] == [(1, 1), (2, 1)]
    for share in shares:
        assert set(share["matmul"]["fp32"]) == {"64", "128", "256", "512", "1024", "2048"}
        assert min(*share["matmul"]["fp32"].values(), *share["triad"].values(), share["copy"]) > 1e6
        assert 0 < share["operation"] < 1e-2
    assert shares[0]["collectives"] == {}
    assert set(shares[1]["collectives"]) == {"all_reduce", "all_gather", "reduce_scatter", "send_recv"}
    assert all(len(times) == 8 for times in shares[1]["collectives"].values())


@pytest.mark.torch
def test_the_platform_takes_what_the_probe_prints(found: str) -> None:
    answer = json.loads(found)
    for times in answer["shares"][1]["collectives"].values():
        times.update({size: 1e-4 + int(size) / 1e9 for size in times})  # a busy machine's may not grow with the size
    rates = host_probe.rates_from(json.dumps(answer))
    assert rates.shares[1].collectives["all_reduce"].alpha_seconds == pytest.approx(1e-4)


@pytest.mark.torch
def test_of_several_processes_the_slowest_counts() -> None:
    from host_rates import slowest  # of models/torch

    assert slowest([{"a": {"x": 1, "y": 5}}, {"a": {"x": 2, "y": 4}}], False) == {"a": {"x": 1, "y": 4}}
    assert slowest([3, 2], True) == 3
