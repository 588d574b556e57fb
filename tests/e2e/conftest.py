"""Runs and caches in temporary folders; see driving.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Benchmark


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes of this run of the tests: a peak that is measured takes seconds of all cores."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def benchmark(tmp_path: Path, cache: Path) -> Iterator[Benchmark]:
    benchmark = Benchmark(tmp_path / "runs", cache, FAKE_DEVICES="2")
    yield benchmark
    benchmark.stop()
