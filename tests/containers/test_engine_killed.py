"""An engine that is killed under a run: one of the test's own, beside the others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers_shared import IN_CONTAINERS, kept
from docker import DockerClient
from driving import PRETENDING, ROOT, Benchmark, finished, trainings

pytestmark = pytest.mark.containers
NAME = "levelfield-drill"
STATE = Path("/run") / NAME


def control(word: str, name: str = NAME) -> str:
    environment = {**os.environ, "ENGINE_NAME": name}
    done = subprocess.run([str(ROOT / ".ci" / "engine"), word], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def second_engine(engine: DockerClient) -> Iterator[str]:
    """Where it answers. Its state and images are removed afterwards."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root and dockerd")
    try:
        yield control("up").split("DOCKER_HOST=")[1].split()[0]
    finally:
        control("remove")


def test_a_killed_engine_ends_the_run_and_its_next_start_leaves_nothing(
    second_engine: str, images_cache: Path, tmp_path: Path
) -> None:
    benchmark = Benchmark(tmp_path / "runs", images_cache, FAKE_DEVICES="2", DOCKER_HOST=second_engine)
    process = benchmark.start("--case", "long:fake:fake:1:2", *PRETENDING, *IN_CONTAINERS)
    for rank in (0, 1):
        benchmark.wait_for_step(process, 5, rank)
    os.kill(int((STATE / "docker.pid").read_text()), signal.SIGKILL)
    done = finished(process)
    left = trainings(benchmark.runs)
    result = benchmark.result()
    assert done.returncode == 3
    assert (result["status"]["word"], result["status"]["failure"]) == ("failed", "engine")
    assert result["steps_done"] >= 5
    control("up")  # first, so that a failure below leaves nothing either
    assert left == {}
    assert any("no process" in warning for warning in result["warnings"])
    assert benchmark.run("--case", "tiny:fake:fake:1:1", *PRETENDING, *IN_CONTAINERS).returncode == 0
    assert trainings(benchmark.runs) == {}
    client = DockerClient(base_url=second_engine)
    assert kept(client, [p.name for p in benchmark.runs.iterdir()]) == []
    client.close()
