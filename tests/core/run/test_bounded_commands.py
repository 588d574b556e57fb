"""Short commands of the platform: each wait has an end, also where SIGKILL does not end the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from levelfield.contracts.command import ask, run_bounded
from levelfield.node import bounded_command as command
from levelfield.plan.environment import _unfit_reason
from levelfield.run import provenance
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from stand_ins import stand_in

HANGS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing ends a command, as one that its driver or a file server holds in the kernel."""
    left: list[int] = []
    monkeypatch.setattr(command, "_kill", lambda process: left.append(process.pid))
    monkeypatch.setattr(command, "KILL_WAIT_SECONDS", 0.2)
    yield
    assert left
    for process in set(left):
        os.killpg(process, signal.SIGKILL)


def test_a_command_gives_its_output_and_exit_code() -> None:
    done = run_bounded([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"], 60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "err\n")


@pytest.mark.parametrize("wait", [run_bounded, ask], ids=["run_bounded", "ask"])
def test_a_command_that_cannot_be_ended_is_left(unkillable: None, wait: Callable[..., object]) -> None:
    before = time.monotonic()
    if wait is run_bounded:
        with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.3 seconds"):
            run_bounded(HANGS, 0.3)
    else:
        assert "0.3 s" in ask(HANGS, 0.3).reason
    assert time.monotonic() - before < 10


def test_a_git_that_cannot_be_ended_keeps_no_run(
    unkillable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "git", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "GIT_SECONDS", 0.3)
    assert provenance.source_state(tmp_path)["commit"] is None


def test_an_interpreter_that_cannot_be_ended_is_refused(
    unkillable: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.plan.environment.ANSWER_SECONDS", 0.3)
    hangs = stand_in(tmp_path / "python3.10", "exec sleep 600")
    assert "(TimeoutExpired)" in str(_unfit_reason(hangs, "3.10"))


def test_a_probe_that_cannot_be_ended_keeps_no_run(unkillable: None) -> None:
    with pytest.raises(subprocess.SubprocessError):
        ProcessRuntime().output(None, HANGS, {}, 0.3)  # type: ignore[arg-type]
