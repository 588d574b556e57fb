"""Events: what a training process says happened, one JSON line each, written before the next thing happens.

A line is one write to the file: a process that is killed keeps every step that it finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Dict, Iterable, Sequence, Tuple

import numpy as np

from .checksum import checksum_slice
from .faults import NonFinite, StorageError
from .heartbeat import start_heartbeat
from .slices import Slices, bounds_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Held = Tuple[str, Sequence[int], Slices, NDArray[np.float32]]

Fields = Dict[str, Any]
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Recorder:
    """Appends this rank's events to <events_dir>/rank<rank>.jsonl and keeps its heartbeat.

    Every method raises StorageError when its event cannot be written whole; what was written before stays.
    """

    def __init__(self, job: SimpleNamespace) -> None:
        path = str(Path(job.events_dir) / f"rank{job.rank}.jsonl")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._file).st_size
            start_heartbeat(str(Path(path).with_suffix(".alive")))
        except OSError as error:
            raise StorageError(f"{path}: cannot be opened for events: {error.strerror}") from error
        self._path = path

    def framework(self, name: str, version: str, device: str, details: Fields | None = None) -> None:
        """Which framework and device this process really uses; `details` is free."""
        self._write(
            {"event": "framework", "name": name, "version": version, "device": device, "details": details or {}}
        )

    def weights(self, parameters: Iterable[Held]) -> None:
        """Checksums of the initial weights this rank holds: (name, whole shape, slices, local float32 values)."""
        rows = []
        for name, shape, slices, array in parameters:
            total = checksum_slice(name, array, shape, slices)
            rows.append([name, list(shape), [list(bound) for bound in bounds_of(shape, slices)], f"{total:016x}"])
        self._write({"event": "weights", "parameters": rows})

    def begin(self) -> None:
        """Step 1 starts now; a step lasts from the event before it to its own."""
        self._write({"event": "begin", "end_ns": time.monotonic_ns()})

    def step(
        self,
        step: int,
        *,
        loss: float | None = None,
        grad_norm: float | None = None,
        tokens: int = 0,
        learning_rate: float | None = None,
        tokens_checksum: int | None = None,
        memory: Fields | None = None,
        loss_scale: float | None = None,
        skipped: bool = False,
    ) -> None:
        """Step `step`, counted from 1, has ended now.

        loss: the mean over the whole global batch, unscaled; None on a rank that does not have it. tokens: the
        targets this rank contributed as an owner of data. memory: allocated_peak_bytes and reserved_peak_bytes.
        Raises NonFinite, after writing the event, when the loss is NaN or infinite.
        """
        event = {"event": "step", "step": step, "end_ns": time.monotonic_ns()}
        event.update(loss=_number(loss), grad_norm=_number(grad_norm), tokens=tokens, learning_rate=learning_rate)
        event.update(tokens_checksum=tokens_checksum, memory=memory, loss_scale=_number(loss_scale), skipped=skipped)
        self._write(event)
        if loss is not None and not math.isfinite(loss):
            raise NonFinite(f"step {step}: the loss is {float(loss)}")

    def gradients(self, step: int, squares: Iterable[tuple[str, float]]) -> None:
        """This rank's share of each parameter's squared gradient norm in `step`, by canonical name.

        Of the gradient of the global batch's mean loss, before clipping and without the loss scale; the shares of
        all ranks add up to the whole parameter's: each of n replicas gives an n-th. Before the step's own event.
        """
        self._write({"event": "gradients", "step": step, "squares": {name: _number(value) for name, value in squares}})

    def error(self, error_class: str, message: str, type_name: str) -> None:
        """This process stops for an error of `error_class` (see faults.classify)."""
        self._write({"event": "error", "class": error_class, "message": message, "type": type_name})

    def close(self) -> None:
        """All is done and everything was written; nothing follows."""
        self._write({"event": "end"})
        os.close(self._file)

    def _write(self, event: Fields) -> None:
        line = (_encode(event) + "\n").encode()
        try:
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            self._drop_partial_line()
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        self._size += len(line)

    def _drop_partial_line(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)


def _number(value: float | None) -> float | str | None:
    """As JSON can say it: the words nan, inf and -inf for what is not finite."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)
