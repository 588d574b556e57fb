"""Runs and caches in temporary folders; see driving.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import Benchmark


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def benchmark(tmp_path: Path, cache: Path) -> Iterator[Benchmark]:
    benchmark = Benchmark(tmp_path / "runs", cache, FAKE_DEVICES="2")
    yield benchmark
    benchmark.stop()
