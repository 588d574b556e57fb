"""The benchmarks that train: each runs from end to end, on little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import ROOT

pytestmark = pytest.mark.torch


def quick(name: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    argv = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_products_have_a_rate_by_both_libraries() -> None:
    (row,) = quick("products")
    assert len(row["rates"]) == 3 and all(rate > 0 for pair in row["rates"].values() for rate in pair)


@pytest.mark.thorough
def test_parts_of_a_step_are_measured_alone() -> None:
    rows = quick("torch_parts")
    assert {row["part"] for row in rows} == {"ceilings", "head", "pieces"} and rows[0]["rate"] > 0
    heads = [row for row in rows if row["part"] == "head" and "left_out" not in row]
    assert len(heads) >= 3 and all(row["ms"] > 0 for row in heads)
    for row in heads:  # float32 against float64, of sums over few rows
        assert row["loss_error"] < 1e-6 and row["gradient_error"] < 1e-5, row


@pytest.mark.thorough
def test_a_step_is_compared_with_peers_that_do_the_same_work() -> None:
    for row in quick("torch_step"):
        peers = [who for who in ("transformers", "plain", "liger") if who not in row["left_out"]]
        assert set(row["trainers"]) == {"ours", *peers} and {"transformers", "plain"} <= set(peers)
        assert row["best"]["ratio"] == row["ratios"][row["best"]["peer"]] > 0 and row["memory_ratio"] > 0
        assert 0 < row["of_peak"] < 1
        for who, facts in row["trainers"].items():  # other random weights of the same spread, the same tokens
            assert facts["losses"][0] == pytest.approx(row["trainers"]["ours"]["losses"][0], rel=0.03), who
            assert facts["first_norm"] == pytest.approx(row["trainers"]["ours"]["first_norm"], rel=0.2), who


@pytest.mark.thorough
def test_a_step_under_the_platform_is_compared_with_the_bare_loop() -> None:
    assert quick("platform_overhead")["ratio"] > 0


@pytest.mark.thorough
def test_a_mixture_with_choices_is_compared_with_one_without() -> None:
    (row,) = quick("followed_choices")
    assert row["ratio"] > 0 and row["collected_seconds"] > 0


@pytest.mark.thorough
def test_a_window_with_gradient_norms_is_compared_with_one_without() -> None:
    (row,) = quick("window_gradients")
    assert row["ratio"] > 0


@pytest.mark.thorough
def test_a_window_with_a_sampled_step_is_compared_with_one_without() -> None:
    (row,) = quick("spot_check")
    assert row["ratio"] > 0


def test_a_step_of_jax_is_compared_with_a_plain_loop(interpreter_of: Callable[[str], Path]) -> None:
    interpreter_of("jax")  # where it has to be made, that takes longer than the benchmark may
    (row,) = quick("jax_loop")
    assert row["ratio"] > 0 and row["ours_ms"] > 0 and row["plain_ms"] > 0
