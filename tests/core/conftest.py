"""Shared by the core tests: the plugins of the tests, plans made from them, and runs that were never trained."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import ReadyRuntime
from levelfield.node import code_digest
from levelfield.run.runtimes import process_runtime
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from plans import PLUGINS, ROOT, make_plan
from recorded_runs import record_run

settings.register_profile("shared machine", deadline=None)  # another's load is no failure
settings.load_profile("shared machine")


@pytest.fixture(scope="session", autouse=True)
def packages_listed_once() -> Iterator[None]:
    """The packages of this Python are listed by the first run that each process starts, not by hundreds."""
    list_packages = process_runtime.list_packages
    packages_here: dict[str, str] = {}

    def packages(runtime: ReadyRuntime, plan: Plan, seconds: float) -> dict[str, str]:
        if type(runtime) is not process_runtime.ProcessRuntime or plan.environment.python != sys.executable:
            return list_packages(runtime, plan, seconds)
        if not packages_here:
            packages_here.update(list_packages(runtime, plan, seconds))
        return dict(packages_here)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_runtime, "list_packages", packages)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_code_read_once() -> Iterator[None]:
    """The checkout's code stays as it is while tests run: its digest is computed once in each process."""
    of_checkout = {ROOT / "models", ROOT / "platform"}

    def remembered(digest: Callable[[Path], object]) -> Callable[[Path], object]:
        cached = functools.lru_cache(maxsize=None)(digest)
        return lambda folder: (cached if of_checkout & {*folder.parents} else digest)(folder)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("folder_digest", "shared_folders"):
            patch.setattr(code_digest, name, remembered(getattr(code_digest, name)))
        yield


@pytest.fixture
def registry() -> Registry:
    """The checkout's plugins and the tests' own."""
    return Registry([PLUGINS])


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A copy of the tests' plugins, to be changed."""
    return Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))


@pytest.fixture
def plan_for(registry: Registry) -> Callable[..., Plan]:
    """plan_for(case string, scale=..., measured=..., ...): the plan that would run."""

    def make(text: str, **values: Any) -> Plan:
        return make_plan(registry, text, **values)

    return make


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One valid run of two ranks, as the worker's recorder writes it, by a clock of half a second a step."""
    folder = tmp_path_factory.mktemp("recorded") / "20260102T030405Z_tiny_fake_fake_abcdef"
    record_run(RunPaths(folder))
    return folder


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RunPaths:
    """A copy of the valid run, to be broken, without what another test may have collected from it."""
    collected = shutil.ignore_patterns("result.json", "report.md")
    return RunPaths(Path(shutil.copytree(recorded, tmp_path / "runs" / recorded.name, ignore=collected)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)
