"""The agent of a node in a run: it checks the node, locks its devices, samples, starts the ranks and ends them.

    python3 node_agent.py run FILE|- [--stream] [--node-rank K] [--first-node ADDRESS]
    python3 node_agent.py fetch

FILE holds the node's work as JSON; `{node_rank}` in its name becomes the rank that the engine gave this node. With `-`
the work is the first line of standard input, or the first two (node/common_work.py), and the end of standard input ends
all ranks. It needs the standard library of Python 3.8 and the folders worker/ and node/ beside it. The exit codes are
those of node_duty.Ending.

`fetch` sends what the platform lacks of a node's files, after the run or after its connection was lost. Standard input
has one JSON line: {"root", "node_rank", "ranks", "offsets": {name: bytes that arrived}}. The answer is the frames of
node/file_stream.py. Files that the stream does not carry (weights, captured tensors) are no part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # started by path: make the package importable, and let this folder shadow no module
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from levelfield.node.assignment import NODE_RANK_VARIABLE, Assignment, AssignmentError, parse_assignment
from levelfield.node.file_stream import FileStream
from levelfield.node.node_duty import NodeDuty, PlatformConnection
from levelfield.node.rank_processes import StopRequest

EXIT_INVALID_WORK = 2
MAX_ASSIGNMENT_BYTES = 64 * 2**20


def main(arguments: list[str]) -> int:
    """Run or fetch, as the command line says. Return the exit code."""
    parser = argparse.ArgumentParser(prog="node_agent.py")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch")
    run_parser = commands.add_parser("run")
    run_parser.add_argument("work", metavar="FILE|-")
    run_parser.add_argument("--stream", action="store_true")
    run_parser.add_argument("--node-rank", type=int)
    run_parser.add_argument("--first-node")
    options = parser.parse_args(arguments)
    if options.command == "fetch":
        return _fetch()
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, frame: stop.request(f"signal {n} from outside"))
    try:
        work_folder = None
        if options.work == "-":
            text = _input_line()
        else:
            # the engine's variables name the rank where no option does
            values = [os.environ.get(name, "") for name in ("SLURM_NODEID", "JOB_COMPLETION_INDEX", NODE_RANK_VARIABLE)]
            node_rank = next((int(value) for value in values if value.isdecimal()), "")
            node_rank = node_rank if options.node_rank is None else options.node_rank
            path = Path(options.work.replace("{node_rank}", str(node_rank)))
            text, work_folder = path.read_text(encoding="utf-8"), path.parent
        assignment = parse_assignment(text, partial(_common_text, work_folder), options.node_rank, options.first_node)
        os.umask(assignment.content.get("umask", 0o022))
        for folder in ("events", "logs", "nodes", "telemetry", "weights"):
            (assignment.root / folder).mkdir(parents=True, exist_ok=True)
        exit_code = _run(assignment, options, stop)
    except AssignmentError as error:
        print(f"levelfield: {options.work}: {error}", file=sys.stderr, flush=True)
        return EXIT_INVALID_WORK
    except OSError as error:
        print(f"levelfield: {error.filename or options.work}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    return exit_code


def _common_text(folder: Path | None, name: str) -> str:
    """Return what all nodes have in common, from a file of the folder. Without a folder it is the next line."""
    return _input_line() if folder is None else (folder / name).read_text(encoding="utf-8")


def _input_line() -> str:
    return sys.stdin.buffer.readline(MAX_ASSIGNMENT_BYTES).decode(errors="replace")


def _run(assignment: Assignment, options: argparse.Namespace, stop: StopRequest) -> int:
    """Do the node's work, with frames on standard output if they are requested. Return the exit code."""
    silence_seconds = assignment.part("limits").get("platform_seconds", max(assignment.heartbeat_seconds, 30))
    platform = PlatformConnection(stop, silence_seconds) if options.work == "-" else None
    duty = NodeDuty(assignment, stop, platform)
    # this process's own errors go to the node's log from here on
    log = os.open(
        assignment.root / f"logs/node{assignment.node_rank}.log",
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
        0o666,
    )
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    if not options.stream:
        return duty.run()
    closed_reason = "standard output was closed: the receiver is gone"
    output = sys.stdout.fileno()
    stream = FileStream(
        assignment.root, assignment.node_rank, assignment.ranks, output, lambda: stop.request(closed_reason)
    )
    exit_code = 1
    try:
        exit_code = duty.run()
    finally:
        sys.stderr.flush()
        stream.end(exit_code)
    return exit_code


def _fetch() -> int:
    """Send the files that standard input requests. Return the exit code."""
    request = json.loads(sys.stdin.buffer.readline())
    root = Path(request["root"])
    if not root.is_dir():
        print(f"levelfield: {root}: no such folder", file=sys.stderr, flush=True)
        return 1
    offsets = {str(name): int(size) for name, size in request["offsets"].items()}
    stream = FileStream(root, request["node_rank"], request["ranks"], sys.stdout.fileno(), lambda: os._exit(1), offsets)
    stream.end(0, wait_seconds=None)
    return 0


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(exit_code)  # a thread that waits for a hanging tool, or for a receiver, holds nothing up
