"""Sends what the platform lacks of a node's files, after the run or after its connection was lost.

One JSON line on standard input: {"root", "node_rank", "ranks", "offsets": {name: bytes that arrived}}. The answer is
the frames of node/stream_frames.py. Files of the run that the stream does not carry (weights, captured tensors) are no
part of it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":  # by path: this folder's modules shadow nothing, and the package is found
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from levelfield.node.file_stream import FileStream


def main() -> int:
    """Send the frames that are missing, and return 0."""
    asked = json.loads(sys.stdin.buffer.readline())
    root = Path(asked["root"])
    if not root.is_dir():
        print(f"levelfield: {root}: no such folder", file=sys.stderr, flush=True)
        return 1
    offsets = {str(name): int(size) for name, size in asked["offsets"].items()}
    stream = FileStream(root, asked["node_rank"], asked["ranks"], sys.stdout.fileno(), lambda: os._exit(1), offsets)
    stream.start()
    stream.end(0, wait_seconds=None)
    return 0


if __name__ == "__main__":
    os._exit(main())
