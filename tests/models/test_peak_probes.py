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
# The probe without the larger products.
SMALL = """
import runpy, sys
from levelfield.worker import product_rates
product_rates.ON_PROCESSOR = product_rates.ON_PROCESSOR[:2]
sys.path.insert(0, {folder!r})
runpy.run_path({script!r}, run_name="__main__")
"""


# Each run of torch by tests/e2e measures its peak by torch's.
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if name == "torch" else [])
        for name in sorted(Registry().frameworks)
    ],
)
def test_the_probe_prints_a_rate(framework: str, interpreter_of: Callable[[str], Path]) -> None:
    implementation, folder = Registry().implementation(framework)
    script = Path(implementation.launch.peak_probe[1].format(folder=folder)).resolve()
    if script.parent != Path(folder).resolve():
        assert script.is_file()  # another framework's, which its own case runs
        return
    code = SMALL.format(folder=str(script.parent), script=str(script))
    argv = [str(interpreter_of(framework)), "-c", code, "--dtype", "fp32", "--seconds", "0.01", "--threads", "1"]
    variables = {**os.environ, "PYTHONPATH": str(PLATFORM)}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True, env=variables)
    rate = json.loads(done.stdout.splitlines()[-1])["fp32"]
    assert math.isfinite(rate["tflops"]) and 0 < rate["median"] <= rate["tflops"]
    assert tuple(rate["shape"]) in ON_PROCESSOR[:2] and rate["repeats"] >= 1
