"""Telemetry of a run: appends the vendor's raw samples once a second. Its errors do not stop the run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from levelfield.contracts.vendor import Device, Vendor

INTERVAL_SECONDS = 1.0
LEAVE_SECONDS = 2.0  # the longest wait for a slow tool at the end of a run


@contextmanager
def watching(vendor: Vendor, devices: Sequence[Device], path: Path) -> Iterator[None]:
    """Sample in a thread until the block ends. A tool that is slow, missing or failing leaves a reason in the file."""
    stop = threading.Event()
    thread = threading.Thread(target=_sample_until, args=(stop, vendor, devices, path), daemon=True, name="telemetry")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LEAVE_SECONDS)


def _sample_until(stop: threading.Event, vendor: Vendor, devices: Sequence[Device], path: Path) -> None:
    try:
        with path.open("a", encoding="utf-8", buffering=1) as file:
            while True:
                file.write(json.dumps(_reading(vendor, devices)) + "\n")
                if stop.wait(INTERVAL_SECONDS):
                    return
    except OSError:
        return  # a full disk: the run's own files report it, and the samples so far stay


def _reading(vendor: Vendor, devices: Sequence[Device]) -> dict[str, object]:
    """Return one line of samples. Its time is the middle of the reading, on the clock of the events."""
    before = time.monotonic_ns()
    try:
        samples = [asdict(s) for s in vendor.sample(devices)]
        line: dict[str, object] = {"samples": samples}
    except Exception as error:  # an adapter may raise anything, and the run must go on
        line = {"samples": [], "error": f"{type(error).__name__}: {error}"}
    return {"time_ns": (before + time.monotonic_ns()) // 2, **line}
