"""The frames in which a node sends its files: one JSON object on each line. Sender and receiver share these limits.

{"file": "events/rank0.jsonl", "at": 0, "data": "text"}   what was appended at this offset ("base64": no UTF-8)
{"file": "events/rank0.alive", "at": 0, "data": "17"}     the whole content of a heartbeat
{"beat": 3}                                               each second
{"end": 0}                                                the last frame: the exit code
"""

from __future__ import annotations

import base64
import json
from typing import Any, Iterable

MOST_LINE_BYTES = 64 * 1024
MOST_FILE_BYTES = 256 * 2**20  # of one file; what is more stays on the node, and is fetched at the end
PART_BYTES = 10 * 1024  # as JSON at most six times as long
BEAT_SECONDS = 1.0

_OF_NODE = (
    "nodes/node{node}.facts.json",
    "nodes/node{node}.record.jsonl",
    "telemetry/node{node}.raw.jsonl",
    "logs/node{node}.log",
)
_OF_RANK = ("events/rank{rank}.jsonl", "events/rank{rank}.choices.jsonl", "logs/rank{rank}.log")
_HEARTBEAT = "events/rank{rank}.alive"


def appended_files(node: int, ranks: Iterable[int]) -> list[str]:
    """Return the names of a node's files that only grow."""
    return [name.format(node=node) for name in _OF_NODE] + [n.format(rank=r) for r in ranks for n in _OF_RANK]


def heartbeat_files(ranks: Iterable[int]) -> list[str]:
    """Return the names of the files that a frame replaces whole."""
    return [_HEARTBEAT.format(rank=rank) for rank in ranks]


def frame_line(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode("ascii")


def file_frame(name: str, offset: int, part: bytes) -> tuple[bytes, int]:
    """Return the frame of a part of a file, and how many of its bytes the frame has.

    Less than all: the part ends within a character, which the next frame begins with.
    """
    try:
        text, size = part.decode(), len(part)
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start == 0 or len(part) < PART_BYTES:
            encoded = base64.b64encode(part).decode("ascii")
            return frame_line({"file": name, "at": offset, "base64": encoded}), len(part)
        text, size = part[: error.start].decode(), error.start
    return frame_line({"file": name, "at": offset, "data": text}), size
