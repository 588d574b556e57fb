"""Every framework's peak probe, run in float32 on a processor."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.worker.product_rates import ON_PROCESSOR

PLATFORM = Path(__file__).parents[2] / "platform"


@pytest.mark.parametrize("framework", sorted(Registry().frameworks))
def test_the_probe_prints_a_rate(framework: str, interpreter_of: Callable[[str], Path]) -> None:
    implementation, folder = Registry().implementation(framework)
    script = Path(implementation.launch.peak_probe[1].format(folder=folder)).resolve()
    if script.parent != Path(folder).resolve():
        assert script.is_file()  # another framework's, which its own case runs
        return
    argv = [str(interpreter_of(framework)), str(script), "--dtype", "fp32", "--seconds", "0.01", "--threads", "1"]
    variables = {**os.environ, "PYTHONPATH": str(PLATFORM)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True, env=variables)
    rate = json.loads(done.stdout.splitlines()[-1])["fp32"]
    assert math.isfinite(rate["tflops"]) and 0 < rate["median"] <= rate["tflops"]
    assert tuple(rate["shape"]) in ON_PROCESSOR and rate["repeats"] >= 1
