"""The ranks of a small training, as processes of this machine that are always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.run.launchers.launched_ranks import find_free_port

TIME_LIMIT_SECONDS = 600.0
SETTLE_SECONDS = 30.0  # for the other ranks, after one has failed
POLL_SECONDS = 0.02
MAX_OUTPUT_BYTES = 3000
Watch = Callable[[Sequence["subprocess.Popen[bytes]"]], None]


@dataclass(frozen=True)
class RankProgram:
    """How a framework's ranks are started. argv and the values of `environment` may have placeholders.

    folder: the framework's. python: the interpreter.
    """

    argv: tuple[str, ...]
    folder: Path
    python: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class SmallRank:
    """How a rank ended, and what it recorded."""

    exit_code: int  # negative for a signal
    events: tuple[dict[str, Any], ...]
    output: str  # the end of what it printed

    @property
    def error(self) -> dict[str, Any] | None:
        """Return the rank's error event, if it recorded one."""
        return next((event for event in self.events if event["event"] == "error"), None)

    def events_named(self, name: str) -> list[dict[str, Any]]:
        """Return the rank's events of this name."""
        return [event for event in self.events if event["event"] == name]


@dataclass(frozen=True)
class SmallRun:
    """A small training that has ended."""

    ranks: tuple[SmallRank, ...]
    was_stopped: bool  # whether ranks had to be ended
    outlived_ranks: int  # ranks with processes that outlived them
    seconds_between_ends: float  # from the first end of a rank to the last one


def run_small(
    program: RankProgram,
    job: Mapping[str, Any],
    folder: Path,
    *,
    rank_jobs: Mapping[int, Mapping[str, Any]] | None = None,
    only_ranks: Sequence[int] | None = None,
    watch: Watch | None = None,
    limit_seconds: float = TIME_LIMIT_SECONDS,
) -> SmallRun:
    """Run a job in one process for each rank, with its files in `folder`, and return how all ended.

    rank_jobs: the jobs of ranks that differ from it. only_ranks: the ranks to start; by default all. watch: called
    repeatedly with the processes while they run.
    """
    layout = job["layout"]
    world_size = layout["data"] * layout.get("context", 1) * layout["tensor"] * layout["pipeline"]
    started_ranks = list(range(world_size)) if only_ranks is None else list(only_ranks)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in started_ranks:
            path = folder / f"job{rank}.json"
            path.write_text(json.dumps({**(rank_jobs or {}).get(rank, job), "events_dir": str(folder)}))
            processes.append(_start(program, rank, world_size, {**address, "LEVELFIELD_JOB": str(path)}, folder))
        stopped, seconds = _wait(processes, watch, limit_seconds)
    finally:
        outlived_ranks = 0
        for process in processes:  # each has a group of its own
            outlived = process.poll() is not None  # the rank has ended, and a process of its group may not have
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                outlived = False
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            outlived_ranks += outlived
    ranks = []
    for rank, process in zip(started_ranks, processes, strict=True):
        output = (folder / f"rank{rank}.log").read_bytes()[-MAX_OUTPUT_BYTES:].decode(errors="replace")
        ranks.append(SmallRank(process.returncode, tuple(read_events(folder / f"rank{rank}.jsonl")), output))
    return SmallRun(tuple(ranks), stopped, outlived_ranks, seconds)


def _start(
    program: RankProgram, rank: int, world_size: int, job_variables: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    """Start a rank in a process group of its own, so that all that it starts can be ended."""
    values = {"python": program.python, "folder": str(program.folder), "rank": rank, "local_rank": rank}
    values |= {"node_rank": 0, "world_size": world_size}
    variables = {key: text.format_map(values) for key, text in program.environment.items()}
    rank_variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "NODE_RANK": 0,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **variables, **job_variables}
    environment |= {"PYTHONPATH": str(checkout() / "platform")} | {
        key: str(value) for key, value in rank_variables.items()
    }
    argv = [text.format_map(values) for text in program.argv]
    with (folder / f"rank{rank}.log").open("wb") as log:
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _wait(
    processes: Sequence[subprocess.Popen[bytes]], watch: Watch | None, limit_seconds: float
) -> tuple[bool, float]:
    """Wait for all ranks. Return whether some had to be stopped, and the seconds from the first end to the last."""
    deadline, first_end = time.monotonic() + limit_seconds, None
    while any(process.poll() is None for process in processes):
        if watch is not None:
            watch(processes)
        now = time.monotonic()
        if first_end is None and any(process.poll() is not None for process in processes):
            first_end = now
        if any(process.poll() for process in processes):
            deadline = min(deadline, now + SETTLE_SECONDS)
        if now > deadline:
            return True, now - (first_end or now)
        time.sleep(POLL_SECONDS)
    return False, 0.0 if first_end is None else time.monotonic() - first_end


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of events; none of a missing file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
