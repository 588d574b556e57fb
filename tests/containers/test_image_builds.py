"""Building: a framework of elsewhere with a template of its own, a build that fails, and one that is cancelled."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest
from docker import DockerClient
from driving import PRETENDING, Benchmark, finished
from levelfield.run.runtimes.engine import RUN_LABEL

pytestmark = pytest.mark.containers
FAKE = Path(PRETENDING[1])


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """The pretending framework and its vendor, in a folder whose template a test may write."""
    shutil.copytree(FAKE, tmp_path / "plugins")
    return tmp_path / "plugins"


def template(plugins: Path, line: str) -> None:
    block = '{% extends "base.Dockerfile.j2" %}\n{% block check %}' + line + "{% endblock %}\n"
    (plugins / "models" / "fake" / "Dockerfile.j2").write_text(block)


def build(plugins: Path) -> tuple[str, ...]:
    return ("environment", "image", "build", "fake", "--vendor", "fake", "--plugins", str(plugins))


def tags(engine: DockerClient) -> set[str]:
    """The tags here, without those of images that runs on several machines load beside these tests."""
    return {tag for image in engine.images.list() for tag in image.tags if ":node-" not in tag}


def steps(engine: DockerClient) -> set[str]:
    """The containers in which steps of builds work: those of runs, which other tests start, have a label."""
    return {str(c.id) for c in engine.containers.list(ignore_removed=True) if RUN_LABEL not in c.labels}


def test_a_build_that_fails_says_why_and_leaves_no_image(
    benchmark: Benchmark, engine: DockerClient, plugins: Path
) -> None:
    template(plugins, "import a_module_that_is_not_there")
    before = tags(engine)
    done = benchmark.run(*build(plugins))
    assert done.returncode == 3
    assert "'a_module_that_is_not_there'" in " ".join(done.stderr.split())
    assert "The log" in done.stderr and tags(engine) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_build_stops_the_engines_work(
    number: int, benchmark: Benchmark, engine: DockerClient, plugins: Path
) -> None:
    template(plugins, f"import time; print('{number} sleeps', flush=True); time.sleep(300)")
    before = tags(engine)
    process = benchmark.start(*build(plugins))
    assert process.stderr is not None
    for line in process.stderr:
        if "sleeps" in line:
            break
    began = time.monotonic()
    while not (working := steps(engine)) and time.monotonic() < began + 30:
        time.sleep(0.1)  # the step's text is printed before it begins
    process.send_signal(number)
    assert finished(process).returncode in (130, -signal.SIGTERM)
    deadline = time.monotonic() + 30
    while working & steps(engine) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert working and not working & steps(engine) and tags(engine) == before


def test_export_writes_what_docker_loads_and_what_docker_builds(
    benchmark: Benchmark, engine: DockerClient, tmp_path: Path
) -> None:
    fake = ("fake", "--vendor", "fake", "--plugins", str(FAKE))
    image, context = tmp_path / "image.tar", tmp_path / "context.tar"
    assert benchmark.run("environment", "image", "export", *fake, "--output", str(image)).returncode == 0
    with image.open("rb") as file:
        (loaded,) = engine.images.load(file)
    assert any(tag.startswith("levelfield/fake-fake:") for tag in loaded.tags)
    assert benchmark.run("environment", "image", "export", *fake, "--output", str(context), "--context").returncode == 0
    with context.open("rb") as file:
        built, _ = engine.images.build(fileobj=file, custom_context=True, network_mode="none", rm=True)
    try:
        words = ["/opt/levelfield/bin/python", "-c", "import numpy"]
        assert engine.containers.run(built, words, remove=True) == b""
    finally:
        engine.images.prune(filters={"dangling": True, "label": "levelfield.image=fake-fake"})
