"""The torch implementation's modules are siblings of its train.py, not a package: tests import them by its folder.

Every other framework has an environment of its own, made by the platform as for a run.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, Variant, compare, first_steps, planted, small_job, torch_curve, train
from levelfield.specs.recorded_runs import Difference
from trainings.interpreters import interpreters
from xdist.scheduler import LoadScopeScheduling

# Each rank of jax compiles: in a third of the time without optimisation and without its newer code generator.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "torch"))
sys.path.insert(0, str(Path(__file__).parent))


# Kernels in Triton's interpreter: test_torch_kernels.py runs them, in a process that has Triton beside torch.
collect_ignore = [] if "TRITON_INTERPRET" in os.environ else ["interpreted"]

# Files whose tests share a costly fixture or import: one process takes all tests of such a group. (Marks of a group by
# xdist change nothing since pytest 9.2.)
GROUPS = {
    "test_preflight.py": "collectives",
    "test_host_probe.py": "host probe",
    "test_mixture_huggingface.py": "transformers",
    "test_torch_huggingface.py": "transformers",
    "test_alone.py": "torch",
}


class GroupedFiles(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(Path(nodeid.partition("::")[0]).name, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupedFiles:
    config.option.loadscopereorder = False  # the order below stays
    return GroupedFiles(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest: one that begins last is waited for while most of the cores do nothing."""
    items.sort(key=lambda item: item.path.name not in ("test_training_benchmarks.py", "test_mixture_power.py"))


@pytest.fixture(scope="session")
def interpreter_of() -> Iterator[Callable[[str], Path]]:
    with interpreters() as interpreter:
        yield interpreter


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest, interpreter_of: Callable[[str], Path]) -> Path:
    """The interpreter of the framework that a file is of."""
    return interpreter_of(request.module.FRAMEWORK)


@pytest.fixture(scope="session")
def torch_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Curve]:
    """torch's curve of a job, computed once for all processes of this run of the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "torch-curves"
    return functools.partial(torch_curve, folder=folder)


@pytest.fixture(scope="session")
def reference(torch_of: Callable[[dict[str, Any]], Curve]) -> Callable[[str], Curve]:
    """torch's curve of a family in one process: 40 steps in float32."""
    return functools.cache(lambda family: torch_of(small_job(MODELS[family], SINGLE)))


@pytest.fixture(scope="session")
def differs(reference: Callable[[str], Curve]) -> Callable[..., Difference]:
    """The difference of a framework's run, with a fault planted, from torch's."""

    def of(
        folder: Path,
        framework: str,
        python: Path,
        fault: str,
        family: str = "gpt",
        variant: Variant = SINGLE,
        steps: int = 5,
    ) -> Difference:
        curve = train(small_job(MODELS[family], variant, steps), planted(folder, framework, fault), python)
        return compare(curve, first_steps(reference(family), steps))

    return of
