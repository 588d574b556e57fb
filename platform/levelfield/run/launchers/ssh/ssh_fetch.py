"""Fetches by a second connection what a node's stream did not bring: after a failure too. What stays away is named."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from levelfield.run.launchers.node_stream import BrokenStream, NodeStream
from levelfield.run.launchers.ssh.connection import Connection, wait_for_output

SILENCE_SECONDS = 20.0
# What a node must have left for a whole result.
_EXPECTED = ("nodes/node{node}.record.jsonl", "nodes/node{node}.facts.json", "telemetry/node{node}.raw.jsonl")


def fetch(connection: Connection, root: Path, node_rank: int, remote: Path, stream: NodeStream) -> NodeStream:
    """Return the stream of what was missing. Where it is not complete, something stayed away."""
    ranks = stream.ranks
    asked = {"root": str(remote), "node_rank": node_rank, "ranks": ranks, "offsets": stream.received}
    connection.send((json.dumps(asked) + "\n").encode())
    again = NodeStream(root, node_rank, ranks, stream.received)
    last = time.monotonic()
    try:
        while time.monotonic() - last < SILENCE_SECONDS:
            wait_for_output([connection], 0.1)
            connection.flush()
            part = connection.read()
            if part is None:
                break
            if part:
                last = time.monotonic()
                again.receive(part)
    except BrokenStream:
        pass
    finally:
        connection.end()
    return again


def missing_of(node_rank: int, received: Mapping[str, int], is_complete: bool) -> tuple[str, ...]:
    """Return the names of a node's files that did not come; of an incomplete stream also those that may be short."""
    if is_complete:
        return ()
    absent = [name.format(node=node_rank) for name in _EXPECTED if not received[name.format(node=node_rank)]]
    return tuple([*absent, *(f"{name} (its end)" for name, size in sorted(received.items()) if size)])
