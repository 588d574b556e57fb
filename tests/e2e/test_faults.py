"""What goes wrong in runs: each fault has its own word, evidence and exit code, and leaves no process behind.

The training only pretends, but the command, its processes and the signals are real. One fault is tried with torch too,
whose ranks wait for each other; `make thorough` tries all of them with it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driving import LONG, TORCH_HERE, Benchmark, all_ended, begun, finished, trainings

PLUGINS = Path(__file__).parent / "plugins"

pytestmark = pytest.mark.e2e
TORCH = ("--case", "drill:torch:cpu:1:2", "--plugins", str(PLUGINS), "--threads", "1", *TORCH_HERE)
LATER = pytest.param(TORCH, marks=pytest.mark.thorough)
with_torch_now = pytest.mark.parametrize("command", [LONG, TORCH], ids=["pretending", "torch"])
with_torch_later = pytest.mark.parametrize("command", [LONG, LATER], ids=["pretending", "torch"])


def broken(benchmark: Benchmark, command: tuple[str, ...], number: int) -> tuple[int, dict[str, Any]]:
    """Send a signal to one rank after some steps, and see the run end."""
    process = begun(benchmark, command)
    trainings(benchmark.runs)[1].send_signal(number)
    done = finished(process)
    assert trainings(benchmark.runs) == {}
    return done.returncode, benchmark.result()


@with_torch_now
def test_a_killed_rank_is_named_and_the_steps_done_are_kept(benchmark: Benchmark, command: tuple[str, ...]) -> None:
    code, result = broken(benchmark, command, signal.SIGKILL)
    assert code == 3
    assert (result["status"]["word"], result["status"]["failure"]) == ("failed", "killed")
    assert "rank 1" in result["status"]["evidence"] and "SIGKILL" in result["status"]["evidence"]
    assert result["steps_done"] >= 5
    assert result["throughput"] is None


@with_torch_later
def test_a_stopped_rank_is_a_hang_told_by_its_heartbeat(benchmark: Benchmark, command: tuple[str, ...]) -> None:
    code, result = broken(benchmark, command, signal.SIGSTOP)
    assert code == 3
    assert result["status"]["word"] == "timeout"
    assert "rank 1" in result["status"]["evidence"] and "heartbeat" in result["status"]["evidence"]
    assert result["steps_done"] >= 5


@pytest.mark.thorough  # tests/models has a loss of nan in torch, tests/core what the platform says of one
def test_a_loss_that_is_not_finite_makes_the_run_invalid(benchmark: Benchmark) -> None:
    done = benchmark.run("--case", "explodes:torch:cpu:1:2", *TORCH[2:])
    result = benchmark.result()
    assert done.returncode == 3
    assert (result["status"]["word"], result["status"]["failure"]) == ("invalid", "non-finite")
    assert "loss is" in result["status"]["reasons"][0]
    assert result["loss"]["first"] is not None


@with_torch_later
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_an_interrupt_stops_everything_and_is_a_result(
    benchmark: Benchmark, command: tuple[str, ...], number: int
) -> None:
    process = begun(benchmark, command)
    process.send_signal(number)
    done = finished(process)
    assert done.returncode == 130
    assert trainings(benchmark.runs) == {}
    assert benchmark.result()["status"]["failure"] == "interrupted"
    assert benchmark.result()["steps_done"] >= 5


@with_torch_later
def test_a_killed_platform_leaves_no_training_behind(benchmark: Benchmark, command: tuple[str, ...]) -> None:
    process = begun(benchmark, command)
    process.kill()
    process.communicate()
    assert all_ended(benchmark.runs)
    assert benchmark.run("evidence", "collect", "latest").returncode == 0
    assert (benchmark.result()["status"]["word"], benchmark.result()["status"]["failure"]) == ("failed", "platform")
    assert benchmark.result()["steps_done"] >= 5


def test_a_run_directory_that_cannot_be_written(benchmark: Benchmark) -> None:
    benchmark.runs.write_text("a file where the folder should be")
    done = benchmark.run(*LONG)
    assert done.returncode == 2
    assert "not-run" in done.stderr and str(benchmark.runs) in done.stderr


def test_a_damaged_corpus_is_refused_before_the_run(benchmark: Benchmark, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("so it goes. " * 5000)
    prefix = tmp_path / "corpus"
    prepared = benchmark.run("data", "prepare", "--input", str(text), "--tokenizer", "bytes", "--output", str(prefix))
    assert prepared.returncode == 0, prepared.stderr
    whole = prefix.with_suffix(".bin").read_bytes()
    prefix.with_suffix(".bin").write_bytes(whole[: len(whole) // 2])
    done = benchmark.run(*TORCH, "--data", str(prefix))
    assert done.returncode == 2
    assert "corpus.bin" in done.stderr and "expected" in done.stderr
    assert not list(benchmark.runs.glob("*"))


def test_a_missing_framework_package(benchmark: Benchmark, tmp_path: Path) -> None:
    bare = tmp_path / "bare" / "bin" / "python"
    bare.parent.mkdir(parents=True)
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # -S: no site-packages, so nothing is installed
    bare.chmod(0o755)
    done = benchmark.run(*(str(bare) if word == sys.executable else word for word in TORCH))
    status = benchmark.result()["status"]
    assert done.returncode == 3
    assert (status["word"], status["failure"]) == ("failed", "environment")
    assert "ModuleNotFoundError" in status["evidence"]


@pytest.mark.drill
@pytest.mark.thorough  # tests/core/run/test_runner.py fills a disk under the same training
@with_torch_later
def test_a_full_disk_keeps_the_steps_and_says_how_to_go_on(benchmark: Benchmark, command: tuple[str, ...]) -> None:
    benchmark.runs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(benchmark.runs)])
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        done = benchmark.run(*command)
        assert done.returncode == 3
        assert "failed (storage)" in done.stderr and "collect" in done.stderr
        assert trainings(benchmark.runs) == {}
        subprocess.run(["mount", "-o", "remount,size=2m", str(benchmark.runs)], check=True)
        assert benchmark.run("evidence", "collect", "latest").returncode == 0
        status = benchmark.result()["status"]
        assert (status["word"], status["failure"]) == ("failed", "storage")
        assert benchmark.result()["steps_done"] >= 3
    finally:
        subprocess.run(["umount", str(benchmark.runs)], check=True)
