"""Runs that go on without their shell: cancelled, killed, looked at by another user, a suite, and a refusal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from driving import LONG, PRETENDING, Benchmark, all_ended, until_step

pytestmark = pytest.mark.e2e
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture
def open_benchmark(cache: Path) -> Iterator[Benchmark]:
    """Runs in a folder that every user can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    started = Benchmark(folder / "runs", cache, FAKE_DEVICES="2")
    yield started
    started.run("run", "cancel", "latest")
    assert all_ended(started.runs)
    shutil.rmtree(folder)


def detached(benchmark: Benchmark, *arguments: str) -> str:
    """Start a detached run, and return its id once it has done some steps."""
    done = benchmark.run(*arguments, "--detach")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[1]
    until_step(benchmark.runs, 5)
    return run_id


def platform_of(benchmark: Benchmark, run_id: str) -> int:
    content = json.loads((benchmark.runs / "detached" / run_id / "call.json").read_text())
    return int(content["platform"]["process"])


def test_a_detached_run_is_watched_cancelled_and_judged(open_benchmark: Benchmark) -> None:
    """Another user can watch it, and not end it."""
    benchmark = open_benchmark
    run_id = detached(benchmark, *LONG)
    assert os.getsid(platform_of(benchmark, run_id)) == platform_of(benchmark, run_id)
    attached = benchmark.start("run", "attach", run_id)
    status = json.loads(benchmark.run("run", "status", run_id, "--json").stdout)
    assert status["state"] == "running" and status["step"] >= 5 and status["exit_code"] is None
    assert run_id in benchmark.run("run", "status").stdout
    if os.geteuid() == 0:
        command = [*AS_NOBODY, *attached.args[:2], "run"]  # type: ignore[index]
        for word, code in (("status", 0), ("cancel", 2)):
            done = subprocess.run(
                [*command, word, run_id], env=benchmark.variables, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == code, done.stderr
        assert "user root; only root" in " ".join(done.stderr.split())
    cancelled = benchmark.run("run", "cancel", run_id)
    assert cancelled.returncode == 0 and "exit code 130" in cancelled.stdout
    out, err = attached.communicate(timeout=60)
    assert attached.returncode == 130 and "step 1/" in err and "interrupted" in out
    assert all_ended(benchmark.runs)
    assert benchmark.run("run", "attach", run_id).returncode == 130
    assert "step 1/" in benchmark.run("run", "log", run_id).stderr


@pytest.mark.thorough  # tests/core has each part of it
def test_a_killed_platform_is_said_and_its_run_judged(open_benchmark: Benchmark) -> None:
    benchmark = open_benchmark
    run_id = detached(benchmark, *LONG)
    os.kill(platform_of(benchmark, run_id), signal.SIGKILL)
    assert all_ended(benchmark.runs)
    status = benchmark.run("run", "status", run_id).stdout
    assert "killed" in status and "run attach" in status
    done = benchmark.run("run", "attach", run_id)
    assert done.returncode == 3 and "failed (platform)" in done.stdout
    assert json.loads(benchmark.run("run", "status", run_id, "--json").stdout)["exit_code"] == 3


@pytest.mark.thorough
def test_who_leaves_a_detached_run_does_not_end_it(open_benchmark: Benchmark) -> None:
    benchmark = open_benchmark
    run_id = detached(benchmark, *LONG)
    attached = benchmark.start("run", "attach", run_id)
    assert attached.stderr and "levelfield" in attached.stderr.readline()
    attached.send_signal(signal.SIGINT)
    assert attached.wait(60) == 130
    assert json.loads(benchmark.run("run", "status", run_id, "--json").stdout)["state"] == "running"


@pytest.mark.thorough  # tests/core/run/test_run_control.py has a call of several runs
def test_a_suite_has_one_id_and_a_refusal_comes_before_it(open_benchmark: Benchmark, tmp_path: Path) -> None:
    benchmark = open_benchmark
    refused = benchmark.run("--case", "nothing:fake", *PRETENDING, "--detach")
    assert refused.returncode == 2 and "nothing" in refused.stderr and not benchmark.runs.exists()
    suite = tmp_path / "pair.json"
    entries = [{"name": name, "case": "tiny:fake:fake:1:1"} for name in ("first", "second")]
    suite.write_text(json.dumps({"schema": "levelfield.suite/1", "title": "Two", "entries": entries}))
    done = benchmark.run("--suite", str(suite), *PRETENDING, *LONG[-2:], "--scale", "smoke", "--detach")
    assert done.returncode == 0, done.stderr
    call_id = done.stdout.split()[1]
    assert "_pair_" in call_id
    attached = benchmark.run("run", "attach", call_id)
    assert attached.returncode == 0 and "first" in attached.stdout and "second" in attached.stdout
    content = json.loads(benchmark.run("run", "status", call_id, "--json").stdout)
    assert content["exit_code"] == 0 and content["planned_runs"] == content["started_runs"]
