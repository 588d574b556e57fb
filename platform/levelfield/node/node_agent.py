"""A node's own part of a run: it checks the node, locks its devices, samples, starts the ranks and ends them.

    python3 node_agent.py run FILE|- [--stream] [--node-rank K] [--first-node ADDRESS]

FILE holds the node's work as JSON; `{node_rank}` in its name becomes the rank that the engine gave this node. With `-`
the work is the first line of standard input, and the end of standard input ends all ranks. It needs the standard
library of Python 3.8 and the folders worker/ and node/ beside it. The exit codes are those of `Ending`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, NamedTuple

if __name__ == "__main__":  # by path: this folder's modules shadow nothing, and the package is found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from levelfield.node import rank_processes
from levelfield.node.assignment import Assignment, AssignmentError, assignment_of, node_rank_here
from levelfield.node.device_files import DeviceInUse, DeviceLocks, device_locked, lock_folder
from levelfield.node.file_stream import FileStream
from levelfield.node.heartbeat_watch import HeartbeatWatch, WatchedTime
from levelfield.node.host_counters import host_counters
from levelfield.node.node_checks import Refusal, check_code, check_environment, check_name, check_port
from levelfield.node.node_facts import node_facts, tool_output
from levelfield.node.node_record import NodeRecord
from levelfield.node.platform_line import PlatformLine, Stop
from levelfield.node.rank_processes import Ranks
from levelfield.node.sampling import Sampler
from levelfield.node.written_files import write_files, write_json

WRONG_WORK, DIFFERS, NO_RENDEZVOUS, DEVICE_TAKEN = 2, 4, 5, 6
MOST_WORK_BYTES = 64 * 2**20
Fields = Dict[str, Any]


class Ending(NamedTuple):
    """How the node's work ended. code: 0 all ranks ended with 0; 1 a rank failed or could not start; 3 stopped from
    outside; 4 code or environment differ; 5 the port is taken, or the first node has no address
    here; 6 a device is taken; 7 no heartbeat in time."""

    cause: str
    code: int
    evidence: str | None = None


FAULT = Ending("fault", 1, "the node's own part failed; see its log")


class NodeAgent:
    """The work of one node, from its checks to its last record."""

    def __init__(self, assignment: Assignment, stop: Stop, platform: PlatformLine | None) -> None:
        self._work, self._stop, self._platform = assignment, stop, platform
        self._ranks = Ranks()
        self._noted: set[int] = set()
        self._record = NodeRecord(assignment.root / f"nodes/node{assignment.node_rank}.record.jsonl")

    def run(self) -> int:
        """Do the work, and return the exit code. Every rank has ended then that SIGKILL ends."""
        ending: Ending | None = None
        locks = DeviceLocks(())
        with ExitStack() as stack:
            try:
                ending = self._refusal()
                if ending is None:
                    locks = self._locks(stack)
                    ending = self._trained()
            except DeviceInUse as error:
                ending = self._refused(Refusal("device-taken", str(error)), DEVICE_TAKEN)
            except OSError as error:
                ending = Ending("launch-error", 1, f"{error.filename or 'process'}: {error.strerror}")
            finally:
                self._ranks.stop()
                ends = self._ranks.ends()
                locks.keep([end["process"] for end in ends if "process" in end])
                ending = ending or FAULT
                self._record.write("ended", cause=ending.cause, evidence=ending.evidence, ends=ends)
        return ending.code

    def _refusal(self) -> Ending | None:
        """Return why this node must not train, or None. Nothing was started yet."""
        self._record.write("started", node_rank=self._work.node_rank, name=self._work.name, process=os.getpid())
        expected = self._work.part("expected")
        for check, code in ((check_code, DIFFERS), (check_environment, DIFFERS)):
            refusal = check(expected)
            if refusal:
                return self._refused(refusal, code)
        port, first = self._work.content.get("port"), self._work.content.get("first_node")
        if self._work.node_rank == 0:
            refusal = check_port(port) if port is not None else None
        else:
            refusal = check_name(first) if first is not None else None
        return self._refused(refusal, NO_RENDEZVOUS) if refusal else None

    def _refused(self, refusal: Refusal, code: int) -> Ending:
        self._record.write("refused", cause=refusal.cause, evidence=refusal.evidence)
        return Ending(refusal.cause, code, refusal.evidence)

    def _locks(self, stack: ExitStack) -> DeviceLocks:
        devices, run = self._work.content.get("locks", ()), self._work.run_id
        return DeviceLocks([stack.enter_context(device_locked(lock_folder(), device, run)) for device in devices])

    def _trained(self) -> Ending:
        node = self._work.node_rank
        write_files(self._work.root, self._work.part("files"))
        facts = node_facts(node, self._work.part("facts"))
        expected = self._work.part("expected")
        identity = {"code": expected.get("code"), "environment": {"digest": expected.get("environment")}}
        write_json(self._work.root / f"nodes/node{node}.facts.json", {**facts, **identity})
        sampler = _sampler(self._work)
        sampler.start()
        try:
            sampler.wait_for_first_reading()
            return self._supervised()
        finally:
            self._ranks.stop()
            sampler.end()

    def _supervised(self) -> Ending:
        if self._stop.wait(0):
            return Ending("stopped", 3, self._stop.reason)
        for process in self._work.processes:
            environment = self._work.environment(process, os.environ)
            self._ranks.start(process["rank"], list(process["argv"]), environment, process["log"])
        self._record.write("ranks-started", processes=self._ranks.processes())
        clock = WatchedTime(lambda: time.monotonic())
        heartbeats = HeartbeatWatch(self._work.events, self._work.heartbeat_seconds)
        while alive := self._ranks.alive():
            self._note_ends()
            if self._ranks.failed() is not None:
                break
            watched = clock.look()
            if evidence := heartbeats.silent(alive, watched):
                self._record.write("hang", evidence=evidence)
                return Ending("hang", 7, evidence)
            if self._platform and (evidence := self._platform.silent(watched)):
                self._stop.request(evidence)
            if self._stop.wait(rank_processes.POLL_SECONDS):
                return Ending("stopped", 3, self._stop.reason)
        return self._ended()

    def _note_ends(self) -> None:
        """Record each rank that has ended: it gives no heartbeat any more."""
        for end in self._ranks.ends():
            if (end["exit_code"], end["signal"]) != (None, None) and end["rank"] not in self._noted:
                self._noted.add(end["rank"])
                self._record.write("rank-ended", **end)

    def _ended(self) -> Ending:
        self._note_ends()
        failed = self._ranks.failed()
        if failed is None:
            return Ending("exited", 0)
        self._ranks.settle()
        end = next(end for end in self._ranks.ends() if end["rank"] == failed)
        what = f"signal {end['signal']}" if end["signal"] is not None else f"exit code {end['exit_code']}"
        return Ending("rank-failed", 1, f"rank {failed} ended with {what}")


def _sampler(work: Assignment) -> Sampler:
    """Return the thread that runs the vendor's tools and reads the host's counters."""
    samples = work.part("samples")
    commands = list(samples.get("commands", ()))

    def reading() -> Fields:
        return {"outputs": [tool_output(list(c["argv"]), c["timeout_seconds"]) for c in commands]}

    path = work.root / f"telemetry/node{work.node_rank}.raw.jsonl"
    return Sampler(path, samples.get("interval_seconds", 1.0), reading, {"outputs": []}, lambda _: host_counters())


def main(arguments: list[str]) -> int:
    """Do the node's work. Return the exit code."""
    options = _options(arguments)
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, frame: stop.request(f"signal {n} from outside"))
    try:
        work = _work(options)
        os.umask(work.content.get("umask", 0o022))
        for folder in ("events", "logs", "nodes", "telemetry"):
            (work.root / folder).mkdir(parents=True, exist_ok=True)
        code = _run(work, options, stop)
    except AssignmentError as error:
        print(f"levelfield: {options.work}: {error}", file=sys.stderr, flush=True)
        return WRONG_WORK
    except OSError as error:
        print(f"levelfield: {error.filename or options.work}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    return code


def _run(work: Assignment, options: argparse.Namespace, stop: Stop) -> int:
    """Run the agent, with its frames on standard output if they are requested."""
    silence = work.part("limits").get("platform_seconds", max(work.heartbeat_seconds, 30))
    platform = PlatformLine(stop, silence) if options.work == "-" else None
    agent = NodeAgent(work, stop, platform)
    _keep_errors(work.root / f"logs/node{work.node_rank}.log")
    if not options.stream:
        return agent.run()

    def broken() -> None:
        stop.request("standard output was closed: the receiver is gone")

    stream = FileStream(work.root, work.node_rank, work.ranks(), sys.stdout.fileno(), broken)
    stream.start()
    code = 1
    try:
        code = agent.run()
    finally:
        sys.stderr.flush()
        stream.end(code)
    return code


def _keep_errors(log: Path) -> None:
    """Write this process's own errors to the node's log from here on."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)


def _work(options: argparse.Namespace) -> Assignment:
    rank = node_rank_here() if options.node_rank is None else options.node_rank
    if options.work == "-":
        text = sys.stdin.buffer.readline(MOST_WORK_BYTES).decode(errors="replace")
        return assignment_of(text, options.node_rank, options.first_node)
    path = Path(options.work.replace("{node_rank}", "" if rank is None else str(rank)))
    return assignment_of(path.read_text(encoding="utf-8"), options.node_rank, options.first_node)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="node_agent.py")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run")
    run.add_argument("work", metavar="FILE|-")
    run.add_argument("--stream", action="store_true")
    run.add_argument("--node-rank", type=int)
    run.add_argument("--first-node")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(exit_code)  # a thread that waits for a hanging tool, or for a receiver, holds nothing up
