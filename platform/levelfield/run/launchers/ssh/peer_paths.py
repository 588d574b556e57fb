"""Whether every host reaches every other one: on a port of the rendezvous, and on the ports that collectives choose.

A firewall that lets ssh and the rendezvous pass is the commonest one, and a training hangs behind it.
"""

from __future__ import annotations

import inspect
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from levelfield.contracts.execution import NodeEnd, NodesNotReady, Say
from levelfield.node import peer_calls
from levelfield.run.launchers.ssh.connection import ConnectionStarts, printable_text, wait_for_output
from levelfield.run.launchers.ssh.host_tasks import HostTask, name_list, wait_for_tasks
from levelfield.rundir.event_lines import object_or_none
from levelfield.specs.site import Host, LaunchPlan

END_SECONDS = 5.0  # for which a host may take to end its program


@dataclass(frozen=True)
class PeerPaths:
    """Which others one host reaches."""

    host: Host
    problem: str | None  # why it could not take part; None where it did
    address: str = ""  # the own address of its collectives
    interface: str | None = None
    port_range: str = ""  # from which the kernel chooses ports for collectives
    rendezvous: str = ""  # the address and the port of the first host that it called
    rendezvous_problem: str | None = None
    unreached: tuple[tuple[str, str], ...] = ()  # the other hosts that it cannot reach, with address, port and reason


def find_peer_paths(launch: LaunchPlan, hosts: Sequence[Host], say: Say) -> list[PeerPaths]:
    """Let all hosts listen and call each other at once. No process is left on them. hosts: the first node's first."""
    word = secrets.token_hex(8)
    with _listening(launch, hosts, word) as tasks:
        purpose = "the hosts try whether they reach each other"
        for _ in wait_for_tasks(tasks, lambda task: len(task.lines) > 0, say, purpose):
            pass
        answers = [_listen_answer(task) for task in tasks]
        rendezvous = (hosts[0].peer_address, answers[0].get("rendezvous"))
        targets = [(number, a["address"], a["port"]) for number, a in enumerate(answers) if "port" in a]
        for caller, _, _ in targets:
            calls = [rendezvous] if rendezvous[1] else []
            calls += [(address, port) for number, address, port in targets if number != caller]
            tasks[caller].connection.send(json.dumps(calls).encode() + b"\n")
        for _ in wait_for_tasks(
            [tasks[caller] for caller, _, _ in targets], lambda task: len(task.lines) > 1, say, purpose
        ):
            pass
        return [_paths(number, task, answers[number], targets, rendezvous, hosts) for number, task in enumerate(tasks)]


@contextmanager
def _listening(launch: LaunchPlan, hosts: Sequence[Host], word: str) -> Iterator[list[HostTask]]:
    program, starts, tasks = inspect.getsource(peer_calls), ConnectionStarts(), []
    try:
        for number, host in enumerate(hosts):
            task = HostTask(launch, host, program, (), starts)
            request = {
                "word": word,
                "interface": launch.interface_of(host),
                "peer": hosts[1 if number == 0 else 0].peer_address,
                "ports": launch.site.ports if number == 0 else None,
            }
            task.connection.send(json.dumps(request).encode() + b"\n")
            tasks.append(task)
        yield tasks
        deadline = time.monotonic() + END_SECONDS
        for task in tasks:
            task.connection.close_input()
        while (left := [task for task in tasks if not task.has_ended]) and time.monotonic() < deadline:
            wait_for_output([task.connection for task in left], 0.1)
            for task in left:
                task.poll()
    finally:
        for task in tasks:
            task.connection.end()


def _listen_answer(task: HostTask) -> dict[str, Any]:
    answer = object_or_none(task.lines[0] if task.lines else "") or {}
    types = {"address": str, "port": int, "range": str}
    if all(isinstance(answer.get(key), kind) for key, kind in types.items()):
        return answer
    if isinstance(answer.get("error"), str):
        return {"error": printable_text(answer["error"], 300)}
    line = printable_text(task.lines[0], 80) if task.lines else ""
    return {"error": task.failure or f"it printed {line!r}, expected an answer as JSON"}


def _paths(
    number: int,
    task: HostTask,
    answer: dict[str, Any],
    targets: Sequence[tuple[int, str, int]],
    rendezvous: tuple[str, Any],
    hosts: Sequence[Host],
) -> PeerPaths:
    """Return which others a host reaches, from its two answers."""
    host = task.host
    if "error" in answer:
        return PeerPaths(host, answer["error"].removeprefix(f"{host.name}: "))
    failed = (object_or_none(task.lines[1] if len(task.lines) > 1 else "") or {}).get("failed")
    if not isinstance(failed, list):
        return PeerPaths(host, (task.failure or "it did not call the others").removeprefix(f"{host.name}: "))
    reasons = {row[0]: printable_text(str(row[1]), 100) for row in failed if isinstance(row, list) and len(row) == 2}
    others = [target for target in targets if target[0] != number]
    offset = 1 if rendezvous[1] else 0
    unreached = (
        (hosts[other].name, f"{address}, port {port}: {reasons[offset + place]}")
        for place, (other, address, port) in enumerate(others)
        if offset + place in reasons
    )
    return PeerPaths(
        host,
        None,
        address=answer["address"],
        interface=answer.get("interface"),
        port_range=printable_text(answer["range"], 20),
        rendezvous=f"{rendezvous[0]}, port {rendezvous[1]}" if offset else "",
        rendezvous_problem=reasons.get(0) if offset else None,
        unreached=tuple(unreached),
    )


def path_problems(launch: LaunchPlan, paths: PeerPaths, first: Host) -> list[tuple[str, str]]:
    """Return what is wrong with a host's paths as sentences without its name, each with what to do."""
    if paths.problem:
        return [(paths.problem, "correct `address` or `interface` in the hosts file")]
    problems = []
    if paths.rendezvous_problem:
        target, (low, high) = "itself" if paths.host == first else first.name, launch.site.ports
        advice = (
            f"correct `address` of {first.name} in the hosts file, or let the nodes reach its ports {low} to {high}"
        )
        problems.append((f"it cannot reach {target} at {paths.rendezvous}: {paths.rendezvous_problem}", advice))
    if paths.unreached:
        names = name_list(name for name, _ in paths.unreached)
        advice = f"let the nodes reach each other on all TCP ports, at least {paths.port_range}, of which collectives "
        problems.append((f"it cannot reach {names} at {paths.unreached[0][1]}", f"{advice}choose theirs"))
    return problems


def require_peer_paths(launch: LaunchPlan, say: Say) -> None:
    """Raise NodesNotReady where a host of a run does not reach another one. It would hang later."""
    if len(launch.hosts) < 2:
        return
    ends, advices = [], []
    for rank, paths in enumerate(find_peer_paths(launch, launch.hosts, say)):
        if problems := path_problems(launch, paths, launch.hosts[0]):
            advices.append(problems[0][1])
            ends.append(NodeEnd(rank, paths.host.name, "unreachable", f"{paths.host.name}: {problems[0][0]}"))
    if ends:
        more = f"; likewise {name_list(end.name for end in ends[1:])}" if len(ends) > 1 else ""
        raise NodesNotReady("unreachable", f"{ends[0].detail}{more}; {advices[0]}", tuple(ends))
