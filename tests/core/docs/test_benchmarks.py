"""Every benchmark that needs no framework runs.

tests/models/test_training_benchmarks.py and tests/containers/test_container_cost.py run the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from plans import ROOT

FOLDER = ROOT / "benchmarks"
NO_FRAMEWORK = (
    *("startup", "corpus_opening", "initial_weights", "planner_speed"),
    *("comparison_coverage", "gate_power", "gate_speed", "launch_cost", "many_nodes", "preflight_alarms"),
    *("page_speed", "store_speed", "planner_fit", "planner_host", "planner_recipes", "planner_unseen"),
)
WITH_FRAMEWORK = (
    *("products", "platform_overhead", "torch_parts", "torch_step", "jax_loop"),
    *("followed_choices", "window_gradients", "spot_check"),
)
WITH_ENGINE = ("container_cost",)  # tests/containers


def quick(name: str, *more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    argv = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", *more]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# `make thorough` runs these once more for what they print: figures of some are read below, and
# core/predict/test_planner_residuals.py runs the others with --check.
WITH_FIGURES = ("corpus_opening", "initial_weights", "store_speed")
CHECKED = ("planner_fit", "planner_host")
# core/series/test_gate_rates.py runs the simulation of gate_power; mypy sees most of what breaks in any.
LONGEST = (
    *("many_nodes", "launch_cost", "page_speed", "gate_speed", "gate_power"),
    *("planner_speed", "planner_recipes", "comparison_coverage"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.thorough] if n in (*WITH_FIGURES, *CHECKED, *LONGEST) else [])
        for n in NO_FRAMEWORK
    ],
)
def test_a_benchmark_runs_and_prints_figures(name: str) -> None:
    assert any(character.isdigit() for character in quick(name))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if n == "store_speed" else n for n in WITH_FIGURES]
)
def test_its_figures_are_positive_numbers(name: str) -> None:
    figures = json.loads(quick(name, "--json"))
    assert figures and all(value > 0 for value in figures.values())


def test_every_benchmark_is_run_by_a_test() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"all"}
    assert programs == {*NO_FRAMEWORK, *WITH_FRAMEWORK, *WITH_ENGINE}
