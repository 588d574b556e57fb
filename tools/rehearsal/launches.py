"""Which part of a step each launch falls into: a rank's record of the host, and the stand-in's lines of its launches.

The stand-in's kernels take no time, so only their number counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelfield.measure.step_timeline import build_timeline

# By the stand-in's words: what a device would run. Its other kinds are calls that start nothing.
KERNELS, COPIES, MESSAGES = ("kernel", "product"), ("copy", "memset"), "collective"
SHORT = 1e-3  # microseconds


def launches_by_part(folder: Path, rank: int) -> dict[str, int] | None:
    """Return how many kernels, products, copies and messages of the recorded step each part has; None without one."""
    trace, calls = folder / f"rank{rank}.trace.json", folder / f"rank{rank}.calls"
    if not trace.exists() or not calls.exists():
        return None
    content: dict[str, Any] = json.loads(trace.read_text())
    content["traceEvents"] += events_of(calls.read_text(), int(content["baseTimeNanoseconds"]))
    timings = build_timeline(content)
    return dict(Counter(event.part for event in timings.kernels) + Counter(event.kind for event in timings.messages))


def events_of(calls: str, base_ns: int) -> Iterator[dict[str, Any]]:
    """Give each line as the launch on the host and the kernel on the device, as Kineto writes them."""
    for number, line in enumerate(calls.splitlines()):
        at, thread, kind, name = line.split(" ", 3)
        if kind not in (*KERNELS, *COPIES, MESSAGES):
            continue
        event = {"ph": "X", "ts": (int(at) - base_ns) / 1e3, "dur": SHORT, "args": {"correlation": number}}
        yield {**event, "cat": "cuda_runtime", "name": "launch", "tid": int(thread)}
        is_message = kind == MESSAGES
        kernel = f"nccl {name}" if is_message else name
        yield {**event, "cat": "gpu_memcpy" if kind in COPIES else "kernel", "name": kernel, "tid": 7, "pid": 0}
