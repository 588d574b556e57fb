"""A container engine for the tests that need one, and what it must not keep of them.

They take the engine that DOCKER_HOST names and the local image LEVELFIELD_BASE_IMAGE; `.ci/engine up` gives both.
Without them these tests are skipped by name, which CI forbids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers_shared import kept
from docker import DockerClient
from docker.errors import DockerException, ImageNotFound
from driving import Benchmark
from levelfield.run.runtimes.engine import IMAGE_LABEL


def _unavailable(reason: str) -> None:
    pytest.skip(f"{reason}; `.ci/engine up` starts one and prints the variables to set")


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerClient]:
    try:
        client = DockerClient.from_env()
        client.ping()
    except (DockerException, OSError):
        _unavailable("no container engine answers")
    base = os.environ.get("LEVELFIELD_BASE_IMAGE", "")
    try:
        client.images.get(base or "none")
    except ImageNotFound:
        _unavailable(f"the engine has no image LEVELFIELD_BASE_IMAGE='{base}'")
    yield client
    for image in client.images.list(filters={"label": f"{IMAGE_LABEL}=fake-fake"}):
        client.images.remove(image.id, force=True)
    client.close()


@pytest.fixture(scope="session")
def images_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that wheels are fetched and packages listed once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@pytest.fixture
def benchmark(engine: DockerClient, images_cache: Path, tmp_path: Path) -> Iterator[Benchmark]:
    """Nothing of a test's runs may be left on the engine."""
    bench = Benchmark(tmp_path / "runs", images_cache, FAKE_DEVICES="2", LEVELFIELD_LOCKS=str(tmp_path / "locks"))
    yield bench
    bench.stop()
    runs = [p.parent.name for p in bench.runs.glob("*/plan.json")]
    assert kept(engine, runs) == []
