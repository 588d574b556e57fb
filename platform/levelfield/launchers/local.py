"""Launcher `local`: all ranks on this machine, watched until the last has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from levelfield.contracts.execution import (
    PORT_CHOSEN_AT_START,
    NodeWork,
    Outcome,
    ProcessEnd,
    ProcessWork,
    Request,
    Runtime,
    Watch,
)
from levelfield.launchers.progress import Liveness
from levelfield.runtimes.process import REMOVED_VARIABLES, inherited
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

POLL_SECONDS = 0.1
SETTLE_SECONDS = 3.0  # for the other ranks to write what they saw, after one has failed
TERMINATE_SECONDS = 2.0  # between asking and killing; with the above well under the five seconds of Ctrl-C


class LocalLauncher:
    name = "local"

    def request(self, plan: Plan, paths: RunPaths, runtime: Runtime) -> Request:
        """One node with every rank. Pure."""
        processes = tuple(runtime.process(plan, paths, rank) for rank in range(plan.world_size))
        limits = plan.work.limits
        return Request(
            launcher=self.name,
            runtime=runtime.name,
            nodes=(NodeWork(0, "127.0.0.1", processes),),
            events_dir=str(paths.events),
            start_seconds=limits.start_seconds,
            step_seconds=limits.step_seconds,
            heartbeat_seconds=limits.heartbeat_seconds,
            removed_variables=REMOVED_VARIABLES,
        )

    def execute(self, request: Request, watch: Watch) -> Outcome:
        """Start all ranks and wait. Ends every process group it started before it returns or raises."""
        port = _free_port()
        running: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for process in request.nodes[0].processes:
                running[process.rank] = _start(process, port)
            return _supervise(running, Liveness(request), watch)
        except OSError as error:
            stopped = _stop_all(running)
            return Outcome("launch-error", _ends(running, stopped), f"{error.filename or 'process'}: {error.strerror}")
        except KeyboardInterrupt:
            stopped = _stop_all(running)
            return Outcome("interrupted", _ends(running, stopped), "interrupted by the user")
        finally:
            _stop_all(running)


def _supervise(running: dict[int, subprocess.Popen[bytes]], liveness: Liveness, watch: Watch) -> Outcome:
    while any(p.poll() is None for p in running.values()):
        watch()
        failed = [rank for rank, p in running.items() if p.poll() not in (None, 0)]
        if failed:
            return _after_failure(running, failed[0], watch)
        if evidence := liveness.hang(alive=[rank for rank, p in running.items() if p.poll() is None]):
            stopped = _stop_all(running)
            return Outcome("hang", _ends(running, stopped), evidence)
        time.sleep(POLL_SECONDS)
    watch()
    failed = [rank for rank, p in running.items() if p.returncode]
    if failed:
        return Outcome("rank-failed", _ends(running, set()), _evidence(running, failed[0]))
    return Outcome("exited", _ends(running, set()))


def _after_failure(running: dict[int, subprocess.Popen[bytes]], rank: int, watch: Watch) -> Outcome:
    """A rank has failed: the others wait for it in vain, so give them a moment for their own words and stop them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline and any(p.poll() is None for p in running.values()):
        time.sleep(POLL_SECONDS)
    watch()
    evidence = _evidence(running, rank)
    stopped = _stop_all(running)
    return Outcome("rank-failed", _ends(running, stopped), evidence)


def _evidence(running: dict[int, subprocess.Popen[bytes]], rank: int) -> str:
    code = running[rank].returncode
    if code is not None and code < 0:
        return f"rank {rank} was ended by {_signal_name(-code)}"
    return f"rank {rank} ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _start(process: ProcessWork, port: int) -> subprocess.Popen[bytes]:
    """Its own session: Ctrl-C reaches the platform alone, and the whole group can be ended together."""
    added = {key: value.replace(PORT_CHOSEN_AT_START, str(port)) for key, value in process.environment.items()}
    with Path(process.log).open("wb") as log:
        return subprocess.Popen(
            process.argv,
            env={**inherited(), **added},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _stop_all(running: dict[int, subprocess.Popen[bytes]]) -> set[int]:
    """End every process group that is left: ask, wait, kill. Returns the ranks that had not ended by themselves."""
    left = {rank for rank, p in running.items() if p.poll() is None}
    for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process sees the request once it continues
        _signal_groups(running, left, number)
    deadline = time.monotonic() + TERMINATE_SECONDS
    while time.monotonic() < deadline and any(running[rank].poll() is None for rank in left):
        time.sleep(POLL_SECONDS / 2)
    _signal_groups(running, set(running), signal.SIGKILL)
    for rank in left:
        running[rank].wait()
    return left


def _signal_groups(running: dict[int, subprocess.Popen[bytes]], ranks: set[int], number: int) -> None:
    for rank in ranks:
        try:
            os.killpg(running[rank].pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _ends(running: dict[int, subprocess.Popen[bytes]], stopped: set[int]) -> tuple[ProcessEnd, ...]:
    return tuple(_end(rank, p.poll(), rank in stopped) for rank, p in sorted(running.items()))


def _end(rank: int, code: int | None, stopped: bool) -> ProcessEnd:
    if code is not None and code < 0:
        return ProcessEnd(rank, None, -code, stopped)
    return ProcessEnd(rank, code, None, stopped)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
