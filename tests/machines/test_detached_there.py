"""Runs that were left, on a real Slurm and over ssh: attached, cancelled, and after their platform was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import LONG, answer, site, slurm_job_number
from driving import Benchmark, trainings, until_step
from fleet import Fleet

pytestmark = pytest.mark.machines


def detached(benchmark: Benchmark, *arguments: str) -> str:
    """Start a detached run, and return its id once it has done some steps."""
    done = benchmark.run(*arguments, "--detach")
    assert done.returncode == 0, done.stderr
    until_step(benchmark.runs, 3)
    return done.stdout.split()[1]


def status_of(benchmark: Benchmark, run_id: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(benchmark.run("run", "status", run_id, "--json").stdout)
    return content


def kill_platform(benchmark: Benchmark, run_id: str) -> None:
    os.kill(status_of(benchmark, run_id)["platform"]["process"], signal.SIGKILL)


def test_a_job_goes_on_without_its_platform_until_it_is_cancelled(benchmark: Benchmark, tmp_path: Path) -> None:
    """Who leaves the second platform leaves the job, too."""
    run_id = detached(benchmark, *LONG, *site(tmp_path))
    job = slurm_job_number(benchmark.only_run())
    status = status_of(benchmark, run_id)
    assert (status["state"], status["engine"]["job"]) == ("running", job)
    kill_platform(benchmark, run_id)
    status = status_of(benchmark, run_id)
    assert (status["state"], status["still_alive"]) == ("killed", f"Slurm job {job} is RUNNING")
    left = benchmark.start("run", "attach", run_id)
    assert left.stderr and "attached" in left.stderr.readline()
    left.send_signal(signal.SIGINT)
    left.communicate(timeout=60)
    assert left.returncode == 130
    assert status_of(benchmark, run_id)["still_alive"] == f"Slurm job {job} is RUNNING"
    is_cancelled(benchmark, run_id)


@pytest.mark.thorough  # the job above is cancelled too
def test_cancel_ends_the_job(benchmark: Benchmark, tmp_path: Path) -> None:
    is_cancelled(benchmark, detached(benchmark, *LONG, *site(tmp_path)))


def is_cancelled(benchmark: Benchmark, run_id: str) -> None:
    """Cancel the run. Assert that nothing of it is left, and that it was judged."""
    done = benchmark.run("run", "cancel", run_id)
    assert done.returncode == 0, done.stderr
    assert trainings(benchmark.runs) == {}
    assert "CANCELLED" in answer("squeue", "-h", "-t", "all", "-j", slurm_job_number(benchmark.only_run()), "-o", "%T")
    assert benchmark.result()["status"]["failure"] == "interrupted"
    assert status_of(benchmark, run_id)["exit_code"] == 130


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_over_ssh_the_nodes_end_with_the_platform(fleet: Fleet, killed: bool) -> None:
    run_id = detached(fleet, *fleet.command())
    if killed:
        kill_platform(fleet, run_id)
        assert status_of(fleet, run_id)["still_alive"] == "nothing of the training"
        done = fleet.run("run", "attach", run_id)
        assert done.returncode == 3 and "failed (platform)" in done.stdout
    else:
        assert fleet.run("run", "cancel", run_id).returncode == 0
        assert fleet.result()["status"]["failure"] == "interrupted"
    assert status_of(fleet, run_id)["exit_code"] == (3 if killed else 130)
    assert fleet.nothing_is_left()
