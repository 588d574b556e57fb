"""Ends the processes of containers that their engine did not remove, because it is gone or does not answer.

An engine of this machine is not needed for that: its containers are processes here. One of another machine is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import NodeWork, Outcome, ProcessEnd, Request
from levelfield.node.process_identity import identity_of, is_alive
from levelfield.node.rank_processes import KILL_SECONDS, SETTLE_SECONDS, TERMINATE_SECONDS, state_of
from levelfield.run.launchers.launched_ranks import written_ends

STOP_SECONDS = SETTLE_SECONDS + TERMINATE_SECONDS + 2
POLL_SECONDS = 0.1


def ended_by_process(request: Request, outcome: Outcome, names: Collection[str]) -> Outcome:
    """End what runs of these containers. Return the outcome with the ranks' ends as they are then, and a warning.

    A later run on the engine removes what is left of them there.
    """
    nodes = [node for node in request.nodes if node.container is not None and node.container.name in names]
    first = {node.node_rank: process for node in nodes if (process := _first_process(node)) is not None}
    _end(list(first.values()))
    ends, running = {end.rank: end for end in outcome.ends}, []
    for node in nodes:
        ends.update({end.rank: end for end in written_ends(node) if _is_known(end) or end.rank not in ends})
        process = first.get(node.node_rank)
        is_held = process is not None and state_of(process) not in "ZX?"
        unknown = [ends[work.rank] for work in node.processes if not _is_known(ends[work.rank])]
        if is_held or (unknown and process is None):
            running.append(_name(node))
        if process is not None:
            ends.update({end.rank: _ended(end, process if is_held else None) for end in unknown})
    said = _sentences(sorted(set(names) - set(running)), running)
    return replace(outcome, ends=tuple(ends[rank] for rank in sorted(ends)), warnings=(*outcome.warnings, *said))


def _is_known(end: ProcessEnd) -> bool:
    return (end.exit_code, end.signal) != (None, None)


def _name(node: NodeWork) -> str:
    assert node.container is not None, "a node of this launcher is a container"
    return node.container.name


def _ended(end: ProcessEnd, held: int | None) -> ProcessEnd:
    """Return the end of a rank whose end nobody wrote. held: its container's first process, if that still runs."""
    if held is not None:
        return replace(end, process=held, state=state_of(held))
    return replace(end, signal=int(signal.SIGKILL), stopped_by_us=True)


def _sentences(ended: list[str], running: list[str]) -> list[str]:
    said = []
    if running:
        said.append(
            f"the container engine did not remove {', '.join(running)}, which may still train: start the engine, then "
            f"run `docker rm --force {' '.join(running)}`. The next run on this engine does the same"
        )
    if ended:
        said.append(
            f"the container engine did not remove {', '.join(ended)}: no process of it is left, and the next run on "
            "this engine removes the rest"
        )
    return said


def _first_process(node: NodeWork) -> int | None:
    """Return the first process of a node's container, by its command line, which has the run's path; None: not here."""
    assert node.container is not None, "a node of this launcher is a container"
    wanted = "\0".join(node.container.argv[1:]).encode() + b"\0"
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if place.read_bytes().partition(b"\0")[2] == wanted:
                return int(place.parent.name)
    return None


def _end(processes: list[int]) -> None:
    """End first processes: on SIGTERM they end their ranks; SIGKILL ends every process of the container."""
    known = [identity for process in processes if (identity := identity_of(process)) is not None]
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        known = [identity for identity in known if is_alive(identity)]
        for identity in known:
            with suppress(OSError):
                os.kill(identity.process, number)
        deadline = time.monotonic() + seconds
        with suppress(KeyboardInterrupt):  # the user does not want to wait: SIGKILL is next
            while any(is_alive(identity) for identity in known) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
