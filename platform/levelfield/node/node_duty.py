"""The work of one node, from its checks to its last record. The node's agent (node_agent.py) starts it."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple

from levelfield.node import rank_processes
from levelfield.node.assignment import Assignment
from levelfield.node.code_digest import code_digest
from levelfield.node.control_groups import MemoryKillWatch
from levelfield.node.device_files import DeviceInUse, DeviceLocks, lock_device, lock_folder
from levelfield.node.heartbeat_watch import HeartbeatWatch, WatchedTime
from levelfield.node.node_facts import host_counters, lockable_memory_bytes, network_counters, node_facts, tool_output
from levelfield.node.node_setup import SetupError, stage_environment
from levelfield.node.numa_domains import rank_cores
from levelfield.node.peer_calls import NoInterface, interface_variables
from levelfield.node.process_identity import end_leftover_ranks, new_mark
from levelfield.node.rank_processes import Ranks, StopRequest
from levelfield.node.regular_files import read_regular
from levelfield.node.sampling import Sampler
from levelfield.node.step_draw import StepDraw

RESOLVE_SECONDS = 20.0  # the longest wait until the first node's name resolves
THREADS_VARIABLE = "OMP_NUM_THREADS"  # without it each of eight ranks starts a thread for every core
STOP_FILE = "nodes/stop"  # a node whose engine has lost it ends when the platform writes this file
LAST_RECORD_BYTES = 64 * 1024  # for the last record, which has the ends of up to 1,024 ranks
Fields = Dict[str, Any]


class Ending(NamedTuple):
    """How the node's work ended."""

    cause: str
    # the exit code: 0 all ranks ended with 0; 1 a rank failed or could not start; 3 stopped from outside; 4 code or
    # environment differ; 5 the port is taken, or the first node has no address here; 6 a device is taken; 7 no
    # heartbeat in time
    code: int
    evidence: str | None = None


class PlatformConnection:
    """Reads the platform's lines on standard input, one each second. Its end, or a long silence, stops this node."""

    def __init__(self, stop: StopRequest, limit_seconds: float) -> None:
        self._stop, self._limit = stop, limit_seconds
        self._line_count = 0
        self._last_change = (0, 0.0)  # the last new count that was seen, and the watched seconds then
        threading.Thread(target=self._read, daemon=True, name="platform").start()

    def silence_evidence(self, watched_seconds: float) -> str | None:
        """Return the evidence of a silence that is too long; None without one."""
        if self._line_count != self._last_change[0]:
            self._last_change = self._line_count, watched_seconds
        silence = watched_seconds - self._last_change[1]
        if silence > self._limit:
            return f"the platform sent nothing for {silence:.0f} s (limit {self._limit:g} s)"
        return None

    def _read(self) -> None:
        while sys.stdin.buffer.readline(65536):
            self._line_count += 1
        self._stop.request("standard input was closed: the platform ended, or its connection did")


class NodeDuty:
    """The work of one node, from its checks to its last record."""

    def __init__(self, assignment: Assignment, stop: StopRequest, platform: PlatformConnection | None) -> None:
        self._assignment, self._stop, self._platform = assignment, stop, platform
        self._ranks, self._parent = Ranks(new_mark()), os.getppid()
        self._device_locks = DeviceLocks(())
        self._kill_watch = MemoryKillWatch()
        self._counters_at_start = network_counters()
        self._cores = rank_cores(assignment.ranks, assignment.part("binding"))
        self._record = NodeRecord(assignment.root / f"nodes/node{assignment.node_rank}.record.jsonl")

    def run(self) -> int:
        """Do the work, and return the exit code. No rank runs any more then, unless SIGKILL did not end it."""
        ending, refusal = Ending("fault", 1, "the node's own part failed; see its log"), None
        with ExitStack() as stack:
            try:
                self._record.write(
                    "started", node_rank=self._assignment.node_rank, name=self._assignment.name, process=os.getpid()
                )
                if stage := self._assignment.part("stage"):  # the site's file names a folder of this node's own disk
                    started, folder, archive = time.monotonic(), Path(stage["folder"]), Path(stage["archive"])
                    is_new = stage_environment(archive, folder, stage["digest"], lambda: self._record.write("staging"))
                    seconds = time.monotonic() - started
                    self._record.write("staged", folder=str(folder), is_new=is_new, seconds=seconds)
                refusal = self._refusal()
                if refusal is None:
                    end_leftover_ranks()
                    run_id, devices = self._assignment.run_id, self._assignment.content.get("locks", ())
                    files = [stack.enter_context(lock_device(lock_folder(), device, run_id)) for device in devices]
                    self._device_locks = DeviceLocks(files)
                    ending = self._train()
            except DeviceInUse as error:
                refusal = Ending("device-taken", 6, str(error))
            except (SetupError, NoInterface) as error:
                refusal = Ending("launch-error", 1, str(error))
            except OSError as error:
                ending = Ending("launch-error", 1, f"{error.filename or 'process'}: {error.strerror}")
            finally:
                if refusal:
                    ending = refusal
                    self._record.write("refused", cause=refusal.cause, evidence=refusal.evidence)
                self._ranks.stop()
                ends = self._ranks.ends()
                self._device_locks.hold_for([end["process"] for end in ends if "process" in end])
                kills = self._kill_watch.kills(self._ranks.processes())
                extra_fields: Fields = {}
                if kills.number:
                    extra_fields.update(oom_kills=kills.number, oom_evidence=kills.evidence)
                counters_before = self._counters_at_start
                growth = {
                    n: count - counters_before[n] for n, count in network_counters().items() if n in counters_before
                }
                extra_fields["network"] = growth
                expected = self._assignment.part("expected")
                if ending.cause == "exited" and expected.get("code"):
                    extra_fields["code"] = _local_code_digest(expected)
                self._record.write_last(
                    "ended", cause=ending.cause, evidence=ending.evidence, ends=ends, **extra_fields
                )
        return ending.code

    def _refusal(self) -> Ending | None:
        """Return why this node must not train; None where it may. Nothing was started yet."""
        if refusal := check_digests(self._assignment.part("expected")):
            return refusal
        port, first_node = self._assignment.content.get("port"), self._assignment.content.get("first_node")
        if self._assignment.node_rank == 0 and port is not None:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that lingers does not count
                try:
                    probe.bind(("", port))
                except OSError as error:
                    return Ending("port-taken", 5, f"port {port} of this node is taken: {error.strerror}")
        if self._assignment.node_rank == 0 or first_node is None:
            return None
        # in a cluster a name may come a little after its node
        deadline = time.monotonic() + self._assignment.part("limits").get("resolve_seconds", RESOLVE_SECONDS)
        while True:
            try:
                socket.getaddrinfo(first_node, None)
                return None
            except OSError as error:
                if time.monotonic() >= deadline or self._stop.wait(1.0):
                    reason = (
                        f"the first node's name {first_node} does not resolve here: {error.strerror}; give its address"
                    )
                    return Ending("name-unknown", 5, reason)

    def _train(self) -> Ending:
        """Write the node's facts, and start and watch the ranks while the node is sampled."""
        node_rank = self._assignment.node_rank
        write_files(self._assignment.root, self._assignment.part("files"))
        facts = node_facts(node_rank, self._assignment.part("facts"))
        # the ranks inherit the limit: they may lock all memory that the system permits
        _, hard_limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard_limit, hard_limit))
        expected = self._assignment.part("expected")
        run_facts = {
            "code": expected.get("code"),
            "environment": {"digest": expected.get("environment")},
            "binding": self._cores.facts(),
            "locked_memory_bytes": lockable_memory_bytes(),
        }
        text = json.dumps({**facts, **run_facts}, indent=2) + "\n"
        write_files(self._assignment.root, {f"nodes/node{node_rank}.facts.json": text})
        samples = self._assignment.part("samples")
        commands = list(samples.get("commands", ()))

        def read_tools() -> Fields:
            return {"outputs": [tool_output(list(c["argv"]), c["timeout_seconds"]) for c in commands]}

        path = self._assignment.root / f"telemetry/node{node_rank}.raw.jsonl"
        interval_seconds = samples.get("interval_seconds", 1.0)
        with Sampler(path, interval_seconds, read_tools, {"outputs": []}, lambda _: host_counters()):
            try:
                return self._supervise()
            finally:
                self._ranks.stop()

    def _supervise(self) -> Ending:
        """Start the ranks and watch them until all have ended, or one reason ends them."""
        if self._stop.wait(0):
            return Ending("stopped", 3, self._stop.reason)
        variables = interface_variables(self._assignment.content.get("peer"))
        for process in self._assignment.processes:
            rank = process["rank"]
            rank_environment = {**variables, **self._assignment.rank_environment(process, os.environ)}
            rank_environment.setdefault(THREADS_VARIABLE, str(self._cores.thread_count(rank)))
            with self._cores.bind(rank):
                self._ranks.start(rank, list(process["argv"]), rank_environment, process["log"])
        self._record.write("ranks-started", processes=self._ranks.processes(), variables=variables)
        self._device_locks.hold_for(self._ranks.processes())
        clock = WatchedTime(lambda: time.monotonic())
        heartbeats = HeartbeatWatch(self._assignment.events, self._assignment.heartbeat_seconds)
        draw = StepDraw(self._assignment.events)
        recorded_ranks: set[int] = set()
        while True:
            alive, failed = self._ranks.alive(), self._ranks.first_failed()
            for end in self._ranks.ends():
                if (end["exit_code"], end["signal"]) != (None, None) and end["rank"] not in recorded_ranks:
                    recorded_ranks.add(end["rank"])
                    self._record.write("rank-ended", **end)
            if failed is not None or not alive:
                break
            draw.look(alive)
            watched_seconds = clock.watched_seconds()
            if evidence := heartbeats.silence_evidence(alive, watched_seconds):
                self._record.write("hang", evidence=evidence)
                return Ending("hang", 7, evidence)
            if self._platform and (evidence := self._platform.silence_evidence(watched_seconds)):
                self._stop.request(evidence)
            if os.getppid() != self._parent and (self._assignment.root / STOP_FILE).exists():
                self._stop.request("the platform ended the run, and the engine's process of this node was gone")
            if self._stop.wait(rank_processes.POLL_SECONDS):
                return Ending("stopped", 3, self._stop.reason)
        if failed is None:
            return Ending("exited", 0)
        self._ranks.wait(rank_processes.SETTLE_SECONDS)  # the others may end by themselves and write their errors
        end = next(end for end in self._ranks.ends() if end["rank"] == failed)
        end_text = f"signal {end['signal']}" if end["signal"] is not None else f"exit code {end['exit_code']}"
        return Ending("rank-failed", 1, f"rank {failed} ended with {end_text}")


def check_digests(expected: Mapping[str, Any]) -> Ending | None:
    """Compare the digests of the node's code and of its environment with the plan's, where it has them.

    expected: `code` and `environment` are the planned digests, `folder` the code's folder on this node, and `stamp` the
    file with the digest of this node's environment.
    """
    pairs = [("code", _local_code_digest(expected), expected["code"])] if expected.get("code") else []
    planned_environment, stamp = expected.get("environment"), expected.get("stamp")
    if planned_environment and stamp:
        try:
            actual = str(json.loads(read_regular(stamp, "stamp").decode())["digest"])
        except (OSError, ValueError, TypeError, KeyError):
            actual = f"no stamp in {stamp}"
        pairs.append(("environment", actual, planned_environment))
    for subject, *digests in pairs:
        if digests[0] != digests[1]:
            local_text, planned_text = (digest[:19] if digest.startswith("sha256:") else digest for digest in digests)
            return Ending("node-differs", 4, f"the {subject} differs: found {local_text}, expected {planned_text}")
    return None


def _local_code_digest(expected: Mapping[str, Any]) -> str:
    """Return the digest of the node's code, or why it cannot be read."""
    try:
        return code_digest(Path(str(expected.get("folder"))))
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


class NodeRecord:
    """The record of a node, to which lines are appended. On a full disk lines may be lost, but not the last one: its
    space is reserved."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._file).st_size
        self._lock = threading.Lock()
        self._reserve = path.with_suffix(".reserve")
        with suppress(OSError):
            self._reserve.write_bytes(bytes(LAST_RECORD_BYTES))

    def write(self, event: str, **fields: Any) -> None:
        """Append a line; on a full disk it is left out."""
        line = (json.dumps({"time_ns": time.monotonic_ns(), "event": event, **fields}) + "\n").encode()
        with self._lock, suppress(OSError):
            if os.write(self._file, line) == len(line):
                self._size += len(line)
            else:
                os.ftruncate(self._file, self._size)  # no reader sees a part of a line

    def write_last(self, event: str, **fields: Any) -> None:
        """Write the last line, with the free space of the disk. The reserved space is freed for it."""
        free = None
        with suppress(OSError):
            disk = os.statvfs(str(self._reserve.parent))
            free = disk.f_bavail * disk.f_frsize
        with suppress(OSError):
            self._reserve.unlink()
        self.write(event, **fields, disk_free_bytes=free)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write texts below `root`, by name. Raises OSError."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two nodes may share the folder, and have the same process number in their containers.
        part = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
