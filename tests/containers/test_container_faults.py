"""What goes wrong with runs in containers: each ends with its word and exit code, and leaves nothing on the engine.

The training only pretends, but its container, image, processes, signals and memory are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from containers_shared import IN_CONTAINERS, kept
from docker import DockerClient
from driving import PRETENDING, Benchmark, alone_on_the_engine, finished, trainings, until_step

pytestmark = pytest.mark.containers
LONG = ("--case", "long:fake:fake:1:2", *PRETENDING, *IN_CONTAINERS)


def broken(benchmark: Benchmark, breaking: Callable[[], object], *more: str) -> tuple[int, dict[str, Any]]:
    """Start a long run, break it after some steps, and see it end with no process left."""
    process = benchmark.start(*LONG, *more)
    for rank in (0, 1):  # they do not wait for each other
        benchmark.wait_for_step(process, 5, rank)
    breaking()
    done = finished(process)
    assert trainings(benchmark.runs) == {}
    return done.returncode, benchmark.result()


def container_of(engine: DockerClient, benchmark: Benchmark) -> str:
    (name,) = kept(engine, [benchmark.only_run().name])
    return name


def test_a_killed_rank_is_named(benchmark: Benchmark) -> None:
    code, result = broken(benchmark, lambda: trainings(benchmark.runs)[1].kill())
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "killed")
    assert "rank 1" in result["status"]["evidence"] and "SIGKILL" in result["status"]["evidence"]
    assert result["steps_done"] >= 5


@pytest.mark.thorough  # tests/e2e has it without a container: the heartbeat is a file of the run
def test_a_stopped_rank_is_a_hang(benchmark: Benchmark) -> None:
    code, result = broken(benchmark, lambda: trainings(benchmark.runs)[1].suspend())
    assert (code, result["status"]["word"]) == (3, "timeout")
    assert "rank 1" in result["status"]["evidence"] and "no heartbeat" in result["status"]["evidence"]


def test_a_killed_container_is_a_killed_run_and_not_out_of_memory(benchmark: Benchmark, engine: DockerClient) -> None:
    code, result = broken(benchmark, lambda: engine.containers.get(container_of(engine, benchmark)).kill())
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "killed")
    assert result["steps_done"] >= 5


def test_a_container_that_is_stopped_from_outside_is_said(benchmark: Benchmark, engine: DockerClient) -> None:
    code, result = broken(benchmark, lambda: engine.containers.get(container_of(engine, benchmark)).stop())
    assert (code, result["status"]["word"], result["status"]["failure"]) == (3, "failed", "cancelled")
    assert "`docker stop`" in result["status"]["evidence"]
    assert result["steps_done"] >= 5


def test_memory_beyond_the_containers_limit_is_oom(benchmark: Benchmark) -> None:
    done = benchmark.run(*LONG, "--container-memory", "200M", "--env", "FAKE_FAULT=eat")
    result = benchmark.result()
    assert (done.returncode, result["status"]["word"]) == (3, "oom")
    assert "SIGKILL" in result["status"]["evidence"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything(benchmark: Benchmark, number: int) -> None:
    process = benchmark.start(*LONG)
    for rank in (0, 1):
        benchmark.wait_for_step(process, 3, rank)
    process.send_signal(number)
    assert finished(process).returncode == 130
    assert trainings(benchmark.runs) == {}
    assert benchmark.result()["status"]["failure"] == "interrupted"


@alone_on_the_engine()
def test_a_killed_platform_ends_its_ranks_and_the_next_start_removes_the_container(
    benchmark: Benchmark, engine: DockerClient
) -> None:
    process = benchmark.start(*LONG)
    for rank in (0, 1):
        benchmark.wait_for_step(process, 3, rank)
    process.kill()
    process.communicate()
    until(lambda: trainings(benchmark.runs) == {})
    run = benchmark.only_run().name
    assert kept(engine, [run]) != []
    assert benchmark.run("evidence", "collect", run).returncode == 0
    assert (benchmark.result()["status"]["word"], benchmark.result()["status"]["failure"]) == ("failed", "platform")
    done = benchmark.run("--case", "tiny:fake:fake:1:1", *PRETENDING, *IN_CONTAINERS)
    assert done.returncode == 0 and "killed run" in done.stderr
    assert kept(engine, [run]) == []


@pytest.mark.thorough  # tests/core/run/test_runner.py fills a disk without a container
def test_a_full_disk_keeps_the_steps(benchmark: Benchmark) -> None:
    benchmark.runs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(benchmark.runs)])
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        done = benchmark.run(*LONG)
        assert done.returncode == 3
        assert "storage" in done.stderr and trainings(benchmark.runs) == {}
        subprocess.run(["mount", "-o", "remount,size=4m", str(benchmark.runs)], check=True)
        assert benchmark.run("evidence", "collect", "latest").returncode == 0
        assert benchmark.result()["steps_done"] >= 3
    finally:
        subprocess.run(["umount", str(benchmark.runs)], check=True)


def test_a_device_that_is_taken(benchmark: Benchmark) -> None:
    first = benchmark.start(*LONG)
    for rank in (0, 1):
        benchmark.wait_for_step(first, 3, rank)
    holder = benchmark.only_run()
    done = benchmark.run(*LONG)
    (second,) = [p.parent for p in benchmark.runs.glob("*/result.json") if p.parent != holder]
    assert done.returncode == 3
    message = " ".join(done.stderr.split())
    assert "device fake-0" in message and f"run {holder.name}" in message
    assert '"word": "not-run"' in (second / "result.json").read_text()
    assert len(trainings(benchmark.runs)) == 2, "the first goes on"
    first.send_signal(signal.SIGINT)
    assert finished(first).returncode == 130


def test_two_runs_at_once_do_not_meet(benchmark: Benchmark, engine: DockerClient, tmp_path: Path) -> None:
    other = Benchmark(tmp_path / "other", Path(benchmark.variables["XDG_CACHE_HOME"]), FAKE_DEVICES="2")
    one = benchmark.start(*LONG)
    two = other.start(*LONG, "--env", "FAKE_FAULT=die")
    benchmark.wait_for_step(one, 50)
    assert finished(two).returncode == 3
    assert len(trainings(benchmark.runs)) == 2, "the fault of one is not the other's"
    one.send_signal(signal.SIGINT)
    assert finished(one).returncode == 130
    assert kept(engine, [other.only_run().name]) == []


def test_no_engine_is_said_with_what_to_do(benchmark: Benchmark) -> None:
    benchmark.variables["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
    done = benchmark.run(*LONG)
    assert done.returncode == 3
    assert "at unix:///nowhere/docker.sock" in " ".join(done.stderr.split())


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert holds()


@pytest.mark.parametrize("platform_is_killed", [False, True])
def test_a_detached_run_is_watched_and_cancelled_with_its_containers(
    platform_is_killed: bool, benchmark: Benchmark, engine: DockerClient
) -> None:
    done = benchmark.run(*LONG, "--detach")
    run_id = done.stdout.split()[1]
    assert done.returncode == 0, done.stderr
    until_step(benchmark.runs, 5)
    status = json.loads(benchmark.run("run", "status", run_id, "--json").stdout)
    assert status["state"] == "running" and status["step"] >= 5 and kept(engine, [run_id])
    assert "training 20000 steps" in " ".join(benchmark.run("run", "log", run_id).stderr.split())
    if platform_is_killed:  # its ranks end within seconds, and its container stays
        os.kill(status["platform"]["process"], signal.SIGKILL)
    done = benchmark.run("run", "cancel", run_id)
    assert done.returncode == 0 and kept(engine, [run_id]) == [] and trainings(benchmark.runs) == {}, done.stderr
    failure = "platform" if platform_is_killed else "interrupted"
    assert (benchmark.result()["status"]["failure"], benchmark.result()["steps_done"] >= 5) == (failure, True)
