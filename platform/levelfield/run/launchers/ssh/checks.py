"""Checks what a hosts file says: whether each host is reached, its Python, interface, folder, room, clock and index,
and whether all hosts reach each other. All hosts are checked at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelfield import installer
from levelfield.contracts.execution import Say
from levelfield.errors import UsageError
from levelfield.run.launchers.node_content import wheel_files
from levelfield.run.launchers.site_findings import (
    PROBE_SCRIPT,
    SiteFinding,
    folder_finding,
    interface_findings,
    missing_finding,
    ok_finding,
    parse_probe_answer,
    unknown_finding,
)
from levelfield.run.launchers.ssh.connection import ConnectionStarts, printable_text
from levelfield.run.launchers.ssh.host_tasks import HostTask, wait_for_tasks
from levelfield.run.launchers.ssh.peer_paths import find_peer_paths, path_problems
from levelfield.specs.site import Host, LaunchPlan
from levelfield.specs.variables import MASK, SECRET_VALUE
from levelfield.user_folders import user_name

MAX_CLOCK_OFFSET_SECONDS = 60.0  # certificates and file servers begin to fail; Levelfield compares no two clocks
# The first line shows that the host was reached, before the rest takes its seconds.
_PROGRAM = f"import sys; sys.stdout.write(chr(10)); sys.stdout.flush()\n{PROBE_SCRIPT}"
QUIET_SHELL_ADVICE = "let its start files, such as .bashrc, print only where the shell is interactive"


def ssh_findings(launch: LaunchPlan, say: Say) -> Iterator[SiteFinding]:
    """Try every host, in the order of the hosts file, and the wheels that would be brought to them."""
    if not launch.hosts:
        yield missing_finding("hosts", "found no hosts", "give --hosts hosts.yaml, or `hosts` in the site's file")
        return
    if not launch.site.python:
        try:
            if folder := installer.wheels_folder():
                yield ok_finding("wheels", f"{len(wheel_files(folder))} file(s) of {folder} are brought to each host")
        except (UsageError, OSError) as error:
            yield missing_finding("wheels", str(error), f"name another folder, or unset {installer.WHEELS}")
    reached_hosts: list[Host] = []
    starts = ConnectionStarts()
    tasks = [_probe_task(launch, host, starts) for host in launch.hosts]
    try:
        for task in wait_for_tasks(tasks, lambda task: task.has_ended, say, "the hosts are probed"):
            findings = _host_findings(launch, task)
            yield from findings
            reached_hosts += [task.host] if findings[0].word == "ok" else []
    finally:
        for task in tasks:
            task.connection.end()
    if len(reached_hosts) > 1:
        yield from _peer_findings(launch, reached_hosts, say)


def _probe_task(launch: LaunchPlan, host: Host, starts: ConnectionStarts) -> HostTask:
    return HostTask(launch, host, _PROGRAM, (_folder(launch, host), launch.site.python or ""), starts)


def _folder(launch: LaunchPlan, host: Host) -> str:
    return launch.site.ssh.folder.replace("{user}", host.user or user_name())


def _host_findings(launch: LaunchPlan, task: HostTask) -> list[SiteFinding]:
    """Return what a host's probe shows."""
    site, host, folder = launch.site, task.host, _folder(launch, task.host)
    *noise, line = [line for line in task.lines if line.strip()] or [""]
    answer = parse_probe_answer(line)
    if task.failure or answer is None:
        reason = task.failure or f"it printed {printable_text(line, 60)!r}, expected an answer as JSON"
        reason = reason.removeprefix(f"{host.name}: ")
        if key := re.search(r"Offending .*key in (\S+:\d+)", task.connection.complaint):
            reason += f"; the old key is in {printable_text(key[1], 200)}"
        config = ("-F", site.ssh.config) if site.ssh.config else ()
        port, user = (("-p", str(host.port)) if host.port else ()), (("-l", host.user) if host.user else ())
        command = shlex.join((*site.ssh.command, *config, *port, *user, host.name))
        return [missing_finding(host.name, reason, f"mend that; `{command}` shows more")]
    if noise:
        return [
            missing_finding(
                host.name, f"its shell prints {printable_text(noise[0], 60)!r}, which ends a run", QUIET_SHELL_ADVICE
            )
        ]
    index = ok_finding(host.name, f"packages come from {SECRET_VALUE.sub(MASK, str(answer.get('index')))[:200]}")
    if not isinstance(answer.get("index"), str):
        message, advice = "it has no pip; packages then have to be carried over", "set LEVELFIELD_WHEELS here"
        index = unknown_finding(host.name, message, advice)
    return [
        *_python_findings(host, site.python, answer),
        *interface_findings(host.name, launch.interface_of(host), answer),
        folder_finding(host.name, folder, "ssh.folder", answer),
        _clock_finding(host, answer, *task.round_trip),
        index,
    ]


def _python_findings(host: Host, python: str | None, answer: Mapping[str, Any]) -> Iterator[SiteFinding]:
    """Yield whether the host's Python can be used, and the site's `python`, with which no environment is made."""
    version = str(answer.get("python"))[:20]
    if answer.get("is_too_old"):
        yield missing_finding(
            host.name, f"Python {version}, expected 3.8 or newer", "name another as `python` of the host"
        )
    else:
        yield ok_finding(host.name, f"reached, Python {version}")
        if not answer.get("has_venv"):
            advice = "install its package, such as python3-venv, or give `python` of the site an interpreter with the "
            yield missing_finding(host.name, "its Python makes no environments", f"{advice}framework")
    version, reason = (printable_text(str(answer.get(key)), 200) for key in ("site_python", "site_python_error"))
    if python is not None and answer.get("site_python"):
        yield ok_finding(host.name, f"the site's `python` is Python {version}")
    elif python is not None:
        advice = "correct `python` in the site's file, or bring that interpreter to the host"
        message = f"the site's `python`, {python}, does not serve: {reason}, expected Python 3.8 or newer"
        yield missing_finding(host.name, message, advice)


def _clock_finding(host: Host, answer: Mapping[str, Any], begin_time: float, end_time: float) -> SiteFinding:
    """Return how far the host's clock is off, as exactly as the round trip of the answer allows."""
    offset_seconds = max(begin_time - answer["time"], answer["time"] - end_time, 0.0)
    if not offset_seconds <= MAX_CLOCK_OFFSET_SECONDS:
        return unknown_finding(
            host.name, f"its clock is {offset_seconds:.0f} s off; runs do not need it", "start its time service"
        )
    return ok_finding(host.name, f"its clock is at most {offset_seconds + end_time - begin_time:.0f} s off")


def _peer_findings(launch: LaunchPlan, hosts: Sequence[Host], say: Say) -> Iterator[SiteFinding]:
    """Yield for each host whether it reaches the first one, and every other one as collectives do."""
    for host in hosts:
        if problem := launch.loopback_problem(host):
            yield missing_finding(host.name, problem, "correct it in the hosts file or in the site's file")
    for paths in find_peer_paths(launch, hosts, say):
        for message, advice in path_problems(launch, paths, hosts[0]):
            yield missing_finding(paths.host.name, message, advice)
        if not paths.problem and not paths.rendezvous_problem:
            target = "itself" if paths.host == hosts[0] else hosts[0].name
            yield ok_finding(paths.host.name, f"it reaches {target} at {paths.rendezvous}")
        if not paths.problem and not paths.unreached:
            interface = f" by {paths.interface}" if paths.interface else ""
            message = f"it reaches the {len(hosts) - 1} other(s){interface} ({paths.address}) on ports of collectives"
            yield ok_finding(paths.host.name, message)
