"""Samples in a thread: one line each interval, until it is ended. Its errors do not stop the run.

The first lines are written before the training starts (`before`), and the last one after it has ended. Each line also
has the load of the host's processors.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Callable, Mapping

from levelfield.node.bounded_command import end_tools

BEFORE_SECONDS = 0.3  # of load before the training: thirty ticks of the kernel's clock on each core
FIRST_READ_SECONDS = 10.0  # the longest wait for the first reading; a slower tool does not delay the training further
MIN_REST_SECONDS = 1.0  # between two readings, also where a tool takes longer than the interval
END_WAIT_SECONDS = 4.0  # the longest wait for a slow tool at the end of a run, before the tool is ended

Reading = Mapping[str, object]  # what all tools showed at one time


class Sampler:
    """Samples during a block, in a thread.

    read_tools: returns what the tools show now. empty_reading: a reading without tools, for the first line. read_host:
    returns the host's counters, or None; its argument is True until the training starts.
    """

    def __init__(
        self,
        path: Path,
        interval_seconds: float,
        read_tools: Callable[[], Reading],
        empty_reading: Reading,
        read_host: Callable[[bool], Any],
    ) -> None:
        self._path, self._interval = path, interval_seconds
        self._read_tools, self._empty_reading, self._read_host = read_tools, empty_reading, read_host
        # the first reading was taken; the training has started; the last reading is due; the thread is left behind,
        # because a tool hangs
        self._first_read, self._has_started, self._stop_event, self._abandoned = (threading.Event() for _ in range(4))
        self._write_lock = threading.Lock()  # nothing is written after the end: the file is sealed then
        self._thread = threading.Thread(target=self._sample_until_stopped, daemon=True, name="telemetry")

    def __enter__(self) -> Sampler:
        """Return after the first reading."""
        self._thread.start()
        try:
            self._first_read.wait(FIRST_READ_SECONDS)
        except BaseException:  # the user interrupted it
            self.__exit__()
            raise
        self._has_started.set()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Take the last reading. A tool that hangs is ended after a while, and its reading is not written."""
        self._stop_event.set()
        self._thread.join(END_WAIT_SECONDS)
        if self._thread.is_alive():
            with self._write_lock:
                self._abandoned.set()
            end_tools(self._thread.ident or 0)

    def _sample_until_stopped(self) -> None:
        try:
            with self._path.open("a", encoding="utf-8", buffering=1) as file:
                file.write(json.dumps(self._sample_line(lambda: self._empty_reading)) + "\n")
                time.sleep(BEFORE_SECONDS)
                while not self._abandoned.is_set():
                    started = time.monotonic()
                    is_last, line = self._stop_event.is_set(), self._sample_line(self._read_tools)
                    with self._write_lock:
                        if not self._abandoned.is_set():
                            file.write(json.dumps(line) + "\n")
                    self._first_read.set()
                    if is_last:
                        return
                    rest = self._interval - (time.monotonic() - started)
                    self._stop_event.wait(max(rest, min(self._interval, MIN_REST_SECONDS)))
        except OSError:
            return  # a full disk: the run's own files report it, and the samples so far stay
        finally:
            self._first_read.set()

    def _sample_line(self, read_tools: Callable[[], Reading]) -> dict[str, object]:
        """Return one line of samples. Its time is the middle of the reading, on the clock of the events.

        wall_ns: the time of day, for readers; no figure is computed from it."""
        before_ns = time.monotonic_ns()
        values = read_tools()
        line = {"time_ns": (before_ns + time.monotonic_ns()) // 2, "wall_ns": time.time_ns(), **values}
        is_before_training = not self._has_started.is_set()
        counters = self._read_host(is_before_training)
        return {**line, **({"before": True} if is_before_training else {}), **({"host": counters} if counters else {})}
