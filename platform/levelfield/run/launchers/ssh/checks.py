"""Checks what a hosts file says: whether each host is reached, its Python, interface, folder, room, clock and index,
and whether it reaches the first host at its address. All hosts are checked at once.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from levelfield import installer
from levelfield.contracts.command import run_bounded
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
from levelfield.run.launchers.ssh.connection import (
    Connection,
    explain_failure,
    last_line,
    printable_text,
    wait_for_output,
)
from levelfield.run.launchers.ssh.remote_node import ssh_argv
from levelfield.specs.site import Host, LaunchPlan
from levelfield.specs.variables import MASK, SECRET_VALUE
from levelfield.user_folders import user_name

MAX_CONNECTIONS = 16
ANSWER_SECONDS = 40.0  # beside the seconds that the connection may take
MAX_CLOCK_OFFSET_SECONDS = 60.0  # certificates and file servers begin to fail; Levelfield compares no two clocks
# Runs on the first host, as the rendezvous of a run: it listens on a port, prints it, and sends a word to each caller.
# It ends when its standard input does.
_LISTEN_SCRIPT = r"""
import random, select, socket, sys, time
word, first, last, end = sys.argv[1].encode(), int(sys.argv[2]), int(sys.argv[3]), time.time() + float(sys.argv[4])
def listen(port):
    for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            listener = socket.socket(family)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((place, port)); listener.listen(64)
            return listener
        except OSError:
            continue
server = None
for port in random.sample(range(first, last + 1), min(50, last + 1 - first)):
    server = server or listen(port)
if server is None:
    sys.exit("none of 50 ports of %d to %d is free" % (first, last))
print(server.getsockname()[1]); sys.stdout.flush()
while time.time() < end:
    ready = select.select([server, sys.stdin], [], [], 1)[0]
    if sys.stdin in ready:
        break
    if ready:
        caller = server.accept()[0]
        try:
            caller.sendall(word)
        except OSError:
            pass
        caller.close()
"""
# Runs on every host: it calls the address that a run's ranks are given.
_CALL_SCRIPT = r"""
import json, socket, sys
address, port, word, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), float(sys.argv[4])
answer = {"addresses": [], "error": ""}
try:
    answer["addresses"] = sorted({info[4][0] for info in socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)})
    call, received = socket.create_connection((address, port), seconds), b""
    while len(received) < len(word):
        part = call.recv(len(word) - len(received))
        if not part:
            break
        received += part
    call.close()
    if received != word:
        answer["error"] = "another program answers there"
except OSError as error:
    answer["error"] = error.strerror or str(error) or "no answer"
print(json.dumps(answer))
"""
CALL_SECONDS, LISTEN_SECONDS = 10.0, 600.0
QUIET_SHELL_ADVICE = "let its start files, such as .bashrc, print only where the shell is interactive"


def ssh_findings(launch: LaunchPlan) -> Iterator[SiteFinding]:
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
    with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
        for host, findings in zip(launch.hosts, pool.map(partial(_host_findings, launch), launch.hosts), strict=True):
            yield from findings
            reached_hosts += [host] if findings[0].word == "ok" else []
    if len(reached_hosts) > 1 and reached_hosts[0] == launch.hosts[0]:
        yield from _rendezvous_findings(launch, reached_hosts)


def _host_findings(launch: LaunchPlan, host: Host) -> list[SiteFinding]:
    site = launch.site
    folder = site.ssh.folder.replace("{user}", host.user or user_name())
    argv = ssh_argv(launch, host, [host.python, "-c", PROBE_SCRIPT, folder, site.python or ""])
    begin_time = time.time()
    try:
        completed = run_bounded(argv, site.ssh.connect_seconds + ANSWER_SECONDS)
    except subprocess.TimeoutExpired as error:
        return [
            missing_finding(
                host.name, f"no answer within {error.timeout:g} s", "check that it runs and is not overloaded"
            )
        ]
    except OSError as error:
        return [
            missing_finding(
                host.name, f"{argv[0]}: {error.strerror}", "install OpenSSH's client, or correct ssh.command"
            )
        ]
    noise, _, line = completed.stdout.strip().rpartition("\n")
    answer = parse_probe_answer(line, "time", (int, float))
    if completed.returncode or answer is None:
        reason = _failure_reason(host, completed)
        if key := re.search(r"Offending .*key in (\S+:\d+)", completed.stderr):
            reason += f"; the old key is in {printable_text(key[1], 200)}"
        config = ("-F", site.ssh.config) if site.ssh.config else ()
        port, user = (("-p", str(host.port)) if host.port else ()), (("-l", host.user) if host.user else ())
        command = shlex.join((*site.ssh.command, *config, *port, *user, host.name))
        return [missing_finding(host.name, reason, f"mend that; `{command}` shows more")]
    if noise:
        return [
            missing_finding(
                host.name, f"its shell prints {printable_text(noise, 60)!r}, which ends a run", QUIET_SHELL_ADVICE
            )
        ]
    index = ok_finding(host.name, f"packages come from {SECRET_VALUE.sub(MASK, str(answer.get('index')))[:200]}")
    if not isinstance(answer.get("index"), str):
        says, advice = "it has no pip; packages then have to be carried over", "set LEVELFIELD_WHEELS here"
        index = unknown_finding(host.name, says, advice)
    return [
        *_python_findings(host, site.python, answer),
        *interface_findings(host.name, host.interface or site.interface, answer),
        folder_finding(host.name, folder, "ssh.folder", answer),
        _clock_finding(host, answer, begin_time, time.time()),
        index,
    ]


def _failure_reason(host: Host, completed: subprocess.CompletedProcess[str]) -> str:
    """Return why a command of ssh failed, without the host's name, which a finding has."""
    return explain_failure(host.name, completed.returncode, completed.stderr).removeprefix(f"{host.name}: ")


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
        says = f"the site's `python`, {python}, does not serve: {reason}, expected Python 3.8 or newer"
        yield missing_finding(host.name, says, advice)


def _clock_finding(host: Host, answer: Mapping[str, Any], begin_time: float, end_time: float) -> SiteFinding:
    """Return how far the host's clock is off, as exactly as the round trip of the answer allows."""
    offset_seconds = max(begin_time - answer["time"], answer["time"] - end_time, 0.0)
    if not offset_seconds <= MAX_CLOCK_OFFSET_SECONDS:
        return unknown_finding(
            host.name, f"its clock is {offset_seconds:.0f} s off; runs do not need it", "start its time service"
        )
    return ok_finding(host.name, f"its clock is at most {offset_seconds + end_time - begin_time:.0f} s off")


def _rendezvous_findings(launch: LaunchPlan, hosts: Sequence[Host]) -> list[SiteFinding]:
    """Let the first host listen as a run's first node does, and every host call its address. No process is left."""
    first, token = hosts[0], secrets.token_hex(8)
    arguments = (token, *map(str, launch.site.ports), str(LISTEN_SECONDS))
    listener = Connection(first.name, ssh_argv(launch, first, [first.python, "-c", _LISTEN_SCRIPT, *arguments]))
    output, deadline = b"", time.monotonic() + launch.site.ssh.connect_seconds + ANSWER_SECONDS
    try:
        while True:
            output += listener.read() or b""
            if b"\n" in output or listener.is_at_end or time.monotonic() >= deadline:
                break
            wait_for_output([listener], 0.1)
        port = output.partition(b"\n")[0].decode(errors="replace").strip()
        if not port.isdecimal():
            reason = last_line(listener.complaint) or port or "it told no port"
            says = f"it does not listen for the others: {printable_text(reason, 200)}"
            return [missing_finding(first.name, says, "name other `ports` in the site's file, or look at the machine")]
        with ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
            return list(pool.map(lambda host: _call_finding(launch, host, first, port, token), hosts))
    finally:
        listener.close_input()
        deadline = time.monotonic() + CALL_SECONDS
        while not listener.has_ended() and time.monotonic() < deadline:
            wait_for_output([listener], 0.1)
        listener.end()


def _call_finding(launch: LaunchPlan, host: Host, first: Host, port: str, token: str) -> SiteFinding:
    """Return whether a host reaches the first one at the address that a run gives to every rank."""
    argv = ssh_argv(launch, host, [host.python, "-c", _CALL_SCRIPT, first.peer_address, port, token, str(CALL_SECONDS)])
    target = "itself" if host == first else first.name
    unknown_text = f"whether it reaches {target} at {first.peer_address} is not known"
    try:
        completed = run_bounded(argv, launch.site.ssh.connect_seconds + ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return unknown_finding(host.name, f"{unknown_text}: no answer")
    answer = parse_probe_answer(completed.stdout.strip().rpartition("\n")[2], "error", str)
    if answer is None:
        return unknown_finding(host.name, f"{unknown_text}: {_failure_reason(host, completed)}")
    addresses = ", ".join(map(str, answer.get("addresses") or ()))[:100]
    resolved = f" ({addresses})" if addresses and addresses != first.peer_address else ""
    rendezvous = f"{first.peer_address}{resolved}, port {port}"
    if not answer["error"]:
        return ok_finding(host.name, f"it reaches {target} at {rendezvous}")
    low, high = launch.site.ports
    advice = f"correct `address` of {first.name} in the hosts file, or let the nodes reach its ports {low} to {high}"
    return missing_finding(
        host.name, f"it cannot reach {target} at {rendezvous}: {printable_text(answer['error'], 200)}", advice
    )
