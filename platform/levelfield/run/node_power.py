"""The power of whole nodes while a run trains, printed by a command of the site, into node_power.jsonl.

See docs/node-power.md. What goes wrong becomes a line of the file and never stops the run.
"""

from __future__ import annotations

import json
import math
import platform
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from levelfield.contracts.command import ask, end_tools
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.site_findings import SiteFinding, missing_finding, ok_finding
from levelfield.rundir.event_lines import mapping
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.site import NodePowerSite
from levelfield.specs.variables import MASK, SECRET_VALUE

NO_NODE_POWER_ENVIRONMENT = {"LEVELFIELD_NODE_POWER": "none"}  # no node power is read, whatever the site's file says
COMMAND_SECONDS = 10.0
END_WAIT_SECONDS = 4.0  # the longest wait for the last reading, after the training
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*", re.ASCII)
MAX_FAILURES = 3  # before the first reading: a BMC may lock out a user whose password is wrong


class NodePowerError(Exception):
    """Why the command gave no reading of a node."""


def run_power_command(reader: NodePowerSite, host: str) -> str:
    """Return what the command prints. host: replaces {host}. Raises NodePowerError where it fails or hangs."""
    if reader.is_per_host and not _HOST_NAME.fullmatch(host):
        raise NodePowerError(f"found the host name {host[:40]!r}, which cannot be part of a command for sh")
    output = ask(("sh", "-c", reader.command.replace("{host}", host)), COMMAND_SECONDS)
    if output.text is None:
        raise NodePowerError(f"the site's command failed: {SECRET_VALUE.sub(MASK, output.reason)}")
    if not output.text.strip() and output.complaint.strip():  # a pipeline's exit code is that of its last command
        complaint = output.complaint.strip().partition("\n")[0][:120]
        raise NodePowerError(f"the site's command printed nothing: {SECRET_VALUE.sub(MASK, complaint)}")
    return output.text


def parse_watts(output: str, host: str, is_only_host: bool) -> float:
    """Return the watts of a host in lines `HOST WATTS`, or in a single number where the host is alone.

    Raises NodePowerError for everything else: several lines, no positive finite number, no line of the host.
    """
    lines = [line.split() for line in output.splitlines() if line.strip()]
    matches = [line[1] for line in lines if len(line) == 2 and line[0] == host]
    if len(lines) == 1 and len(lines[0]) == 1 and is_only_host:
        matches = lines[0]
    if len(matches) != 1:
        expected = f"one line '{host} WATTS'" + (" or one number" if is_only_host else "")
        first = f", the first {' '.join(lines[0])[:40]!r}" if lines else ""
        raise NodePowerError(f"the site's command printed {len(lines)} line(s){first}; expected {expected}")
    try:
        watts = float(matches[0])
    except ValueError:
        watts = math.nan
    if not (math.isfinite(watts) and watts > 0):
        raise NodePowerError(f"the site's command printed {matches[0][:20]!r}, expected a positive number of watts")
    return watts


def node_power_findings(reader: NodePowerSite, hosts: Sequence[str]) -> Iterator[SiteFinding]:
    """Run the command once for each host, and yield whether it gave the host's power."""
    for host in hosts:
        try:
            watts = parse_watts(run_power_command(reader, host), host, reader.is_per_host or len(hosts) == 1)
            yield ok_finding(f"power of {host}", f"{watts:g} W by {reader.source}")
        except NodePowerError as error:
            yield missing_finding(f"power of {host}", str(error), "correct `node_power`; runs go on without it")


def sample_node_power(plan: Plan, paths: RunPaths) -> AbstractContextManager[object]:
    """Return a context that reads the power of the plan's nodes; an empty one where the site has no command."""
    reader = plan.node_power and plan.node_power.reader
    return NodePowerSampler(plan, reader, paths) if reader else nullcontext()


class NodePowerSampler:
    """Runs the command in threads: one for each node, or one for all. The block does not wait for a first reading."""

    def __init__(self, plan: Plan, reader: NodePowerSite, paths: RunPaths) -> None:
        self._plan, self._reader, self._paths = plan, reader, paths
        self._stop_event, self._write_lock, self._is_closed = threading.Event(), threading.Lock(), False
        nodes = range(plan.hardware.nodes if plan.launch else 1)
        self._groups = [[node] for node in nodes] if reader.is_per_host else [list(nodes)]
        self._threads = [
            threading.Thread(target=self._sample, args=(group,), daemon=True, name="node-power")
            for group in self._groups
        ]

    def __enter__(self) -> NodePowerSampler:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Wait for the last readings. A command that hangs is ended, and what it prints later is dropped."""
        self._stop_event.set()
        deadline = time.monotonic() + END_WAIT_SECONDS
        for group, thread in zip(self._groups, self._threads, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            for node in group if thread.is_alive() else ():
                self._write(node, error="no answer before the end of the training")
        with self._write_lock:
            self._is_closed = True  # the file is sealed after this
        for thread in self._threads:
            if thread.is_alive():
                end_tools(thread.ident or 0)

    def _sample(self, group: Sequence[int]) -> None:
        """Run the command until the block ends, and once after that."""
        hosts: dict[int, str] = {}
        failures, has_reading, is_last = 0, False, False
        while not is_last and failures < MAX_FAILURES:
            is_last, begin_ns = self._stop_event.is_set(), time.monotonic_ns()
            for node in group:
                if node not in hosts and (host := _host_name(self._plan, self._paths, node)):
                    hosts[node] = host
                    self._write(node, source=self._reader.source)
            if hosts:
                has_reading = self._read(hosts, len(group) == 1) or has_reading
                failures = 0 if has_reading else failures + 1
            self._stop_event.wait(max(0.0, self._reader.seconds - (time.monotonic_ns() - begin_ns) / 1e9))

    def _read(self, hosts: dict[int, str], is_only_host: bool) -> bool:
        """Run the command once and write a line for each node. Return whether a node has a reading."""
        begin_ns = time.monotonic_ns()
        try:
            output = run_power_command(self._reader, next(iter(hosts.values())))
        except NodePowerError as error:
            for node in hosts:
                self._write(node, error=str(error))
            return False
        middle_ns, has_reading = (begin_ns + time.monotonic_ns()) // 2, False
        for node, host in hosts.items():
            try:
                self._write(node, middle_ns, watts=parse_watts(output, host, is_only_host))
                has_reading = True
            except NodePowerError as error:
                self._write(node, error=str(error))
        return has_reading

    def _write(self, node: int, time_ns: int | None = None, **content: Any) -> None:
        """Write a line. time_ns: the middle of the reading, on the clock of this machine's events; default: now."""
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        time_ns = now_ns if time_ns is None else time_ns
        line = {"time_ns": time_ns, "wall_ns": wall_ns - (now_ns - time_ns), "node": node, **content}
        with self._write_lock, suppress(OSError):  # of a full disk, which the run's own files report
            if not self._is_closed:
                with self._paths.node_power.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")


def _host_name(plan: Plan, paths: RunPaths, node: int) -> str | None:
    """Return the name of a node's machine: this machine's, the hosts file's, or the one that the node's agent wrote."""
    if plan.launch is None:
        return platform.node()
    if plan.launch.hosts:
        return plan.launch.hosts[node].name
    with suppress(OSError, ValueError):
        hostname = mapping(json.loads(read_regular(paths.node_facts(node), "facts"))).get("hostname")
        return str(hostname) if hostname else None
    return None
