"""Ranks as processes of this machine's kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agents import send_many, wait_until
from levelfield.node import device_files, process_identity, rank_processes
from levelfield.node.process_identity import end_leftover_ranks, identify_process, live_rank_processes, new_mark
from levelfield.node.rank_processes import OOM_SCORE_ADJUSTMENT, Ranks, marked_processes, process_state
from plans import ROOT

STARTING = """
import sys
from pathlib import Path
from levelfield.node.rank_processes import Ranks

own, log = sys.argv[1:]
Path("/proc/self/oom_score_adj").write_text(own)
ranks = Ranks()
ranks.start(0, ["sleep", "60"], {"PATH": "/usr/bin:/bin"}, log)
try:
    print(Path(f"/proc/{ranks.processes()[0]}/oom_score_adj").read_text().strip())
    print(Path("/proc/self/oom_score_adj").read_text().strip())
finally:
    ranks.stop()
"""


@pytest.mark.parametrize(("platform", "rank"), [(0, OOM_SCORE_ADJUSTMENT), (900, 900)])
def test_the_kernel_ends_a_rank_before_the_platform_when_memory_ends(tmp_path: Path, platform: int, rank: int) -> None:
    command = [sys.executable, "-c", STARTING, str(platform), str(tmp_path / "rank0.log")]
    environment = {"PYTHONPATH": str(ROOT / "platform")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert [int(line) for line in done.stdout.split()] == [rank, platform]


# -- what leaves a rank's group, and what a killed platform leaves

PLATFORM = """
import sys, time
from pathlib import Path
from levelfield.node.process_identity import new_mark
from levelfield.node.rank_processes import Ranks

ranks = Ranks(new_mark())
ranks.start(0, ["sh", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin", "LEVELFIELD_JOB": "/the_run/job.json"}, sys.argv[2])
print(ranks.processes()[0], flush=True)
time.sleep(60)
"""
WITH_CHILD = "setsid sh -c 'echo $$ >&2; sleep 60; true' & sleep 0.2; {}"


@pytest.mark.parametrize("end", ["exit 0", "exit 3", "sleep 60"])
def test_a_child_in_a_session_of_its_own_ends_with_the_ranks(tmp_path: Path, end: str) -> None:
    log, ranks = tmp_path / "log", Ranks(new_mark())
    ranks.start(0, ["sh", "-c", WITH_CHILD.format(end)], {"PATH": os.environ["PATH"]}, str(log))
    assert wait_until(lambda: log.read_text().strip())
    child = int(log.read_text())
    assert child in live_rank_processes()
    wait_until(lambda: not ranks.alive() or "sleep" in end)
    ranks.stop()
    assert process_state(child) in ("?", "Z") and live_rank_processes() == []


def test_the_ranks_of_another_start_go_on(tmp_path: Path) -> None:
    first, second = Ranks(new_mark()), Ranks(new_mark())
    for ranks in (first, second):
        ranks.start(0, ["sleep", "60"], {"PATH": os.environ["PATH"]}, str(tmp_path / "log"))
    first.stop()
    assert (first.alive(), second.alive()) == ([], [0])
    second.stop()


def test_a_child_that_cannot_be_ended_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, ranks = tmp_path / "log", Ranks(new_mark())
    ranks.start(0, ["sh", "-c", WITH_CHILD.format("exit 0")], {"PATH": os.environ["PATH"]}, str(log))
    assert wait_until(lambda: log.read_text().strip())
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda process, number: None)
        patch.setattr(rank_processes, "KILL_SECONDS", 0.3)
        ranks.stop()
        begun = time.monotonic()
        ranks.stop()
        assert time.monotonic() - begun < 0.3
    os.kill(int(log.read_text()), signal.SIGKILL)


@pytest.mark.drill
def test_a_stopped_rank_of_a_killed_platform_is_ended_by_the_next_run(tmp_path: Path) -> None:
    """It does not notice that it is an orphan. Another test's run may be that next run."""
    argv = [sys.executable, "-c", PLATFORM, "sleep 60; true", str(tmp_path / "log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as platform:
        assert platform.stdout is not None
        rank = int(platform.stdout.readline())
        os.kill(rank, signal.SIGSTOP)
        sentences = end_leftover_ranks()  # its platform lives
        assert rank in marked_processes("") and not any(f"process {rank}," in sentence for sentence in sentences)
        platform.kill()
    assert all(sentence.endswith("was ended") for sentence in end_leftover_ranks())
    assert process_state(rank) in ("?", "Z")


def test_a_run_with_the_variables_of_a_rank_does_not_end_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who repeats a rank by hand has them in the shell: neither that shell nor the run is a left rank."""
    gone = subprocess.Popen(["true"])
    identity = identify_process(gone.pid)
    gone.wait()
    assert identity is not None
    ended: list[int] = []
    monkeypatch.setattr(process_identity, "marked_processes", lambda mark: [os.getpid(), os.getppid()])
    monkeypatch.setattr(
        process_identity, "process_variables", lambda process: {rank_processes.MARK_VARIABLE: f"{identity.to_text()}/0"}
    )
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append(process))
    monkeypatch.setattr(process_identity, "KILL_SECONDS", 0.1)
    assert (end_leftover_ranks(), ended) == ([], [])


def test_a_rank_that_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen(["true"])
    identity = identify_process(gone.pid)
    gone.wait()
    assert identity is not None
    variables = {rank_processes.MARK_VARIABLE: f"{identity.to_text()}/0", "LEVELFIELD_JOB": "/runs/the_run/job.json"}
    monkeypatch.setattr(process_identity, "marked_processes", lambda mark: [12345])
    monkeypatch.setattr(process_identity, "process_variables", lambda process: variables)
    monkeypatch.setattr(os, "kill", lambda process, number: None)
    monkeypatch.setattr(process_identity, "KILL_SECONDS", 0.1)
    [sentence] = end_leftover_ranks()
    for part in ("process 12345", "of the_run", "cannot be ended"):
        assert part in sentence


@pytest.mark.parametrize("is_others", [False, True])
def test_a_rank_that_lives_keeps_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_others: bool) -> None:
    """Its platform has named it in the lock when it started: after a kill nobody else can."""

    def kill(process: int, number: int) -> None:
        if is_others:
            raise PermissionError

    with device_files.lock_device(tmp_path / "locks", "fake-0", "the_run") as file:
        device_files.DeviceLocks([file]).hold_for([os.getpid()])
    monkeypatch.setattr(os, "kill", kill)
    reason = "which the killed platform of another user left" if is_others else "which SIGKILL did not end"
    holder = f"in use by process {os.getpid()}, {reason} .* belongs to run the_run"
    refused = pytest.raises(device_files.DeviceInUse, match=holder)
    with refused, device_files.lock_device(tmp_path / "locks", "fake-0", "next"):
        pytest.fail("it got a device that a process may still use")


def test_a_run_that_ends_well_keeps_nothing(tmp_path: Path) -> None:
    with device_files.lock_device(tmp_path / "locks", "fake-0", "the_run") as file:
        locks = device_files.DeviceLocks([file])
        locks.hold_for([os.getpid()])
        locks.hold_for([])
    content = (tmp_path / "locks/fake-0.lock").read_text()
    assert content.startswith("run the_run ") and device_files.HELD_PREFIX not in content


# Within any line of `request` the handler may call it again.
INTERRUPTING = """
import signal, time
from levelfield.node.rank_processes import StopRequest

stop = StopRequest()
signal.signal(signal.SIGALRM, lambda number, frame: stop.request("second"))
signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
deadline = time.monotonic() + 1
while time.monotonic() < deadline:
    stop.request("first")
print(stop.reason, stop.wait(0))
"""


def test_a_request_to_end_may_interrupt_another() -> None:
    command = [sys.executable, "-c", INTERRUPTING]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "platform")}, capture_output=True, timeout=20)
    assert done.stdout == b"first True\n", done.stderr


def test_many_signals_at_once_end_a_containers_first_process(tmp_path: Path) -> None:
    rank = {"rank": 0, "argv": ["sleep", "60"], "environment": {}, "log": str(tmp_path / "log")}
    ends, work = tmp_path / "ends.json", tmp_path / "node0.json"
    work.write_text(json.dumps({"processes": [rank], "ends": str(ends)}))
    first = subprocess.Popen([sys.executable, rank_processes.__file__, str(work)], stdin=subprocess.PIPE)
    try:
        assert wait_until(ends.exists)
        send_many(first, signal.SIGTERM)
        assert first.wait(30) == 1
        assert json.loads(ends.read_text())[0]["stopped_by_us"] is True
    finally:
        first.kill()
        first.communicate()
