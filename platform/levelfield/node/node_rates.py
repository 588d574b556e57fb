"""Rates of a node's memory, processors and disk: the same fixed work everywhere, repeated, without any framework.

Every usable core has its own worker, and all of them work in the same windows of time. A rate is the sum over them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

from levelfield.node.file_stream import write_all
from levelfield.node.node_facts import available_bytes

WINDOWS = 5
START_SECONDS = 0.3  # for all workers to be ready; they touch their memory meanwhile
MOST_COPIED = 2**24  # bytes of a worker's buffer; with the other one it exceeds a core's share of any cache
LEAST_COPIED = 2**20
HASHED = 2**18
COUNTED = 2000
DISK_REPEATS = 3
Fields = Dict[str, Any]
Work = Callable[[], None]


def copying(window: float) -> Fields:
    """Return bytes/s read and written by copies of large buffers, on all usable cores together."""
    cores = len(os.sched_getaffinity(0))
    size = min(MOST_COPIED, (available_bytes() or 2**30) // (8 * cores))
    if size < LEAST_COPIED:
        return {"reason": f"too little memory is free for {cores} buffers"}
    rates = on_every_core(lambda: _copy(size), window)
    return _rates("memory copy", "B/s", [2 * size * count for count in rates])


def counting(window: float) -> Fields:
    """Return steps/s of a fixed loop of integers and floats, on all usable cores together."""
    return _rates("integer loop", "1/s", [COUNTED * count for count in on_every_core(lambda: _count, window)])


def hashing(window: float) -> Fields:
    """Return bytes/s of SHA-256 on all usable cores together."""
    return _rates("hash", "B/s", [HASHED * count for count in on_every_core(_hash, window)])


def _rates(name: str, unit: str, values: list[float]) -> Fields:
    return {"rates": {name: {"unit": unit, "values": values}}}


def _copy(size: int) -> Work:
    source, target = memoryview(bytearray(b"\1") * size), memoryview(bytearray(size))

    def work() -> None:
        target[:] = source

    return work


def _count() -> None:
    whole, part = 1, 0.5
    for number in range(COUNTED):
        whole = (whole * 1103515245 + number) & 0x7FFFFFFF
        part = part * 0.999 + 1.0 / (number + 1)


def _hash() -> Work:
    data = b"\1" * HASHED
    return lambda: hashlib.sha256(data).update(b"")


def on_every_core(prepare: Callable[[], Work], window: float) -> list[float]:
    """Return how often a second all workers together did the work, for each window. Raises OSError when one ends early.

    prepare: makes the work in its worker, before the first window.
    """
    start = time.monotonic() + START_SECONDS
    readers = [_worker(core, prepare, start, window) for core in sorted(os.sched_getaffinity(0))]
    counted = [_counts(reader) for reader in readers]
    return [sum(rates) for rates in zip(*counted)]


def _worker(core: int, prepare: Callable[[], Work], start: float, window: float) -> int:
    """Start a worker on a core. Return the descriptor that its rates can be read from."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return reader
    try:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})
        os.write(writer, json.dumps(list(_windows(prepare(), start, window))).encode())
    finally:
        os._exit(0)


def _windows(work: Work, start: float, window: float) -> Iterator[float]:
    """Return the rate of each window: repeats that begin in it, over the time until the last of them has ended."""
    work()
    time.sleep(max(0.0, start - time.monotonic()))
    for number in range(1, WINDOWS + 1):
        began, count = time.monotonic(), 0
        while time.monotonic() < start + number * window or not count:
            work()
            count += 1
        yield count / (time.monotonic() - began)


def _counts(reader: int) -> list[float]:
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.wait()
    if not content:
        raise OSError("a worker ended before its last window: memory or a limit on processes")
    return list(json.loads(content.decode()))


def disk(folder: str, size: int) -> Fields:
    """Return bytes/s of writing a file to the disk and of reading it, with the room that the folder has."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    facts = {"free_bytes": free, "free_files": room.f_favail, "size_bytes": size}
    if free < 4 * size:
        return {"facts": facts, "reason": f"only {free} bytes are free, too few for a file of {size} bytes"}
    path = Path(folder) / f"preflight-{os.urandom(4).hex()}.tmp"
    try:
        pairs = [_write_and_read(path, os.urandom(2**20) * (size // 2**20)) for _ in range(DISK_REPEATS)]
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    found = {"disk write": [size / writing for writing, _ in pairs], "disk read": [size / read for _, read in pairs]}
    return {"facts": facts, "rates": {name: {"unit": "B/s", "values": values} for name, values in found.items()}}


def _write_and_read(path: Path, data: bytes) -> tuple[float, float]:
    """Return the seconds of a write with fsync and of a read. Raises OSError when other bytes are read."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        began = time.monotonic()
        write_all(file, data)
        os.fsync(file)
        written = time.monotonic()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # a request: the kernel may still read its cache
        os.lseek(file, 0, os.SEEK_SET)
        reading = time.monotonic()
        found = _read(file)
        ended = time.monotonic()
    finally:
        os.close(file)
    if b"".join(found) != data:
        raise OSError("the disk gave other bytes than were written")
    return written - began, ended - reading


def _read(file: int) -> list[bytes]:
    return list(iter(lambda: os.read(file, 2**20), b""))
