"""The events of a training process: one JSON line each, written as soon as the event happens.

A line is one write to the file. So the file of a killed process holds every step that the process finished.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Sequence, Tuple

import numpy as np

from .checksum import checksum_slice
from .faults import NonFinite, StorageError
from .heartbeat import start_heartbeat
from .job import Job
from .sketch import sketch_slice
from .slices import Slices, bounds_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # (canonical name, whole shape, slices of this rank, its float32 values)
    LocalArray = Tuple[str, Sequence[int], Slices, NDArray[np.float32]]

Fields = Dict[str, Any]
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Recorder:
    """Appends this rank's events to <events_dir>/rank<rank>.jsonl and starts its heartbeat.

    Every method raises StorageError when its event cannot be written whole. Earlier events stay in the file.
    """

    def __init__(self, job: Job) -> None:
        path = str(Path(job.events_dir) / f"rank{job.rank}.jsonl")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._file).st_size
            start_heartbeat(str(Path(path).with_suffix(".alive")))
        except OSError as error:
            raise StorageError(f"{path}: cannot be opened for events: {error.strerror}") from error
        self._path = path

    def framework(self, name: str, version: str, device: str, details: Fields | None = None) -> None:
        """Record the framework and the device that this process really uses. `details` may hold any fields."""
        self._write(
            {"event": "framework", "name": name, "version": version, "device": device, "details": details or {}}
        )

    def weights(self, parameters: Iterable[LocalArray]) -> None:
        """Record checksums of this rank's initial weights: (name, whole shape, slices, local float32 values)."""
        rows = []
        for name, shape, slices, array in parameters:
            total = checksum_slice(name, array, shape, slices)
            rows.append([name, list(shape), [list(bound) for bound in bounds_of(shape, slices)], f"{total:016x}"])
        self._write({"event": "weights", "parameters": rows})

    def begin(self) -> None:
        """Record that step 1 starts now. A step lasts from the previous event to its own event."""
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
        before_exchange_seconds: float | None = None,
        auxiliary_loss: float | None = None,
        compile_seconds: float | None = None,
    ) -> None:
        """Record that step `step`, counted from 1, has ended now.

        loss: the mean over the whole global batch, unscaled; None on a rank that does not have it. It is the loss of
        the tokens alone: auxiliary_loss is what a mixture's router adds to it, with its coefficients, in the same way.
        tokens: the targets that this rank counts; of ranks with equal data only one counts them.
        memory: allocated_peak_bytes and reserved_peak_bytes.
        before_exchange_seconds: how long this rank worked by itself, as OwnWork measures it; None where it does not.
        compile_seconds: what the framework's compiler has taken in this process since its start; None without one.
        Raises NonFinite, after writing the event, when the loss is NaN or infinite.
        """
        event = {"event": "step", "step": step, "end_ns": time.monotonic_ns()}
        event.update(loss=_number(loss), grad_norm=_number(grad_norm), tokens=tokens, learning_rate=learning_rate)
        event.update(tokens_checksum=tokens_checksum, memory=memory, loss_scale=_number(loss_scale), skipped=skipped)
        if before_exchange_seconds is not None:
            event["before_exchange_seconds"] = _number(before_exchange_seconds)
        if auxiliary_loss is not None:
            event["auxiliary_loss"] = _number(auxiliary_loss)
        if compile_seconds is not None:
            event["compile_seconds"] = _number(compile_seconds)
        self._write(event)
        if loss is not None and not math.isfinite(loss):
            raise NonFinite(f"step {step}: the loss is {float(loss)}")

    def gradients(self, step: int, squares: Iterable[tuple[str, float]]) -> None:
        """Record this rank's share of each parameter's squared gradient norm in `step`, by canonical name.

        The gradient is that of the global batch's mean loss, before clipping and without the loss scale. The shares
        of all ranks add up to the norm of the whole parameter: each of n replicas gives 1/n. Each routed expert has its
        own, such as `layers.1.mlp.experts.up.weight[3]`, also where no token chose it. Call this before `step`.
        """
        self._write({"event": "gradients", "step": step, "squares": {name: _number(value) for name, value in squares}})

    def experts(self, step: int, tokens: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Record this rank's share of the routing in `step`: (layer, the number of tokens that chose each expert).

        Layers count from 0 in the whole model. The counts of all ranks add up to those of the global batch: of ranks
        with equal tokens one counts them. A token counts once for each expert that it chooses, also where the expert's
        capacity then leaves it out. Call this before `step`.
        """
        counts = {str(layer): [int(count) for count in loads] for layer, loads in tokens}
        self._write({"event": "experts", "step": step, "tokens": counts})

    def final_weights(self, parameters: Iterable[LocalArray]) -> None:
        """Record a sketch of this rank's weights after the last step, given as for `weights`."""
        rows = []
        for name, shape, slices, array in parameters:
            sums = [_number(value) for value in sketch_slice(name, array, shape, slices)]
            rows.append([name, list(shape), [list(bound) for bound in bounds_of(shape, slices)], sums])
        self._write({"event": "final_weights", "parameters": rows})

    def measured(self, name: str, values: Fields) -> None:
        """Record what a preflight measured. A training never calls this."""
        self._write({"event": "measured", "name": name, "values": values})

    def error(self, error_class: str, message: str, type_name: str) -> None:
        """Record the error that stops this process; faults.classify gives its `error_class`."""
        self._write({"event": "error", "class": error_class, "message": message, "type": type_name})

    def close(self) -> None:
        """Record that the training is complete, and close the file. No event follows."""
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
    """Return `value` for JSON: a value that is not finite becomes the word nan, inf or -inf."""
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else str(value)
