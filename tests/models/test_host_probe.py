"""The probe of this host, run: every figure is there, and processes that share the cores measure together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from levelfield.run import measurement

pytestmark = pytest.mark.torch

TORCH = Path(__file__).parents[2] / "models" / "torch"
# The probe with two ways of dividing the cores, whose processes leave out the largest products and arrays.
RANK = """
import sys
sys.path.insert(0, {folder!r})
import host_rank
host_rank.SIZES, host_rank.ARRAY_BYTES = host_rank.SIZES[:3], host_rank.ARRAY_BYTES[:3]
host_rank.main()
"""
ALONE = """
import pathlib, sys
sys.path.insert(0, {folder!r})
import host_rates
host_rates.RANK = pathlib.Path({rank!r})
host_rates.divisions = lambda cores: [(1, 1), (2, 1)]
sys.argv[1:] = ["--dtype", "fp32", "--seconds", "0.001"]
host_rates.main()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> str:
    rank = tmp_path_factory.mktemp("probe") / "rank.py"
    rank.write_text(RANK.format(folder=str(TORCH)))
    alone = ALONE.format(folder=str(TORCH), rank=str(rank))
    return subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, timeout=600, check=True).stdout


def test_every_figure_is_measured(found: str) -> None:
    shares = json.loads(found)["shares"]
    assert [(s["processes"], s["threads"]) for s in shares] == [(1, 1), (2, 1)]
    for share in shares:
        assert set(share["matmul"]["fp32"]) == {"64", "128", "256"}
        assert min(*share["matmul"]["fp32"].values(), *share["triad"].values(), share["copy"]) > 1e6
        assert 0 < share["operation"] < 1e-2
    assert shares[0]["collectives"] == {}
    assert set(shares[1]["collectives"]) == {"all_reduce", "all_gather", "reduce_scatter", "send_recv"}
    assert all(len(times) == 8 for times in shares[1]["collectives"].values())


def test_the_platform_takes_what_the_probe_prints(found: str) -> None:
    answer = json.loads(found)
    for times in answer["shares"][1]["collectives"].values():
        times.update({size: 1e-4 + int(size) / 1e9 for size in times})  # a busy machine's may not grow with the size
    rates = measurement.parse_host_rates(json.dumps(answer))
    assert rates.shares[1].collectives["all_reduce"].alpha_seconds == pytest.approx(1e-4)


def test_of_several_processes_the_slowest_counts() -> None:
    from host_rates import slowest  # of models/torch

    assert slowest([{"a": {"x": 1, "y": 5}}, {"a": {"x": 2, "y": 4}}], False) == {"a": {"x": 1, "y": 4}}
    assert slowest([3, 2], True) == 3
