"""The first program of a pod: it unpacks Levelfield's code, finds the first node, and becomes the node's agent.

    python3 start.py --code FILE --folder DIR --work FILE --peer-seconds N [--first-node NAME] [--stream]

The work is what all nodes have in common, and what single ones add to it by their number, which is
JOB_COMPLETION_INDEX. A name of the cluster's DNS appears a moment after its pod. The ranks get the address, because
some frameworks take no name. It needs only the standard library of Python 3.8.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tarfile
import time
from pathlib import Path

RETRY_SECONDS = 1.0
SPARE_SECONDS = 10.0  # beyond the limit: the platform, which knows why a pod is missing, ends the run first
COMMON_FILE = "common.json"  # what all nodes have in common (node/common_work.py)
EXIT_NO_WORK = 2  # the exit code where the number of this node is not known
EXIT_NO_ADDRESS = 8  # the exit code where the first node's name has no address


def main(arguments: list[str]) -> int:
    """Become the node's agent. Return an exit code only where that is not possible."""
    parser = argparse.ArgumentParser(prog="start.py")
    for name in ("--code", "--folder", "--work"):
        parser.add_argument(name, required=True)
    parser.add_argument("--peer-seconds", type=float, required=True)
    parser.add_argument("--first-node")
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args(arguments)
    code = Path(options.folder) / "code"
    with tarfile.open(options.code) as archive:
        archive.extractall(code)
    number = os.environ.get("JOB_COMPLETION_INDEX", "")
    if not number.isdecimal():
        print(f"levelfield: JOB_COMPLETION_INDEX: found '{number}', expected this node's number", file=sys.stderr)
        return EXIT_NO_WORK
    content = json.loads(Path(options.work).read_text(encoding="utf-8"))
    rest = {"common": COMMON_FILE, "node_rank": int(number), **content["nodes"].get(number, {})}
    work = Path(options.folder) / f"node{number}.json"
    work.write_text(json.dumps(rest), encoding="utf-8")
    work.with_name(COMMON_FILE).write_text(json.dumps(content["common"]), encoding="utf-8")
    agent = str(code / "platform" / "levelfield" / "node" / "node_agent.py")
    argv = [sys.executable, agent, "run", str(work), *(["--stream"] if options.stream else [])]
    if options.first_node:
        limit_seconds = options.peer_seconds + SPARE_SECONDS
        address = wait_for_address(options.first_node, limit_seconds)
        if address is None:
            print(f"levelfield: {options.first_node}: found no address for {limit_seconds:g} s", file=sys.stderr)
            return EXIT_NO_ADDRESS
        argv += ["--first-node", address]
    sys.stdout.flush()
    os.execv(sys.executable, argv)


def wait_for_address(name: str, limit_seconds: float) -> str | None:
    """Return the address of a name as soon as it has one; None after the limit."""
    deadline = time.monotonic() + limit_seconds
    while True:
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
