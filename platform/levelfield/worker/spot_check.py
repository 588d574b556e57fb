"""A few numbers of one step of the window, from which the platform computes its products and its update again.

The platform draws the step and a rank of each node while the training runs, and tells the rank by a file with the seed
of what is sampled (node/step_draw.py). The first rank of a node that was told nothing samples the window's last step.
Samples are kept in memory and written after the last step, to <events_dir>/rank<rank>.spot_check.jsonl: writing takes
longer than a small step.
"""

from __future__ import annotations

import base64
import json
import os
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from .faults import StorageError
from .job import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.floating[Any]]

ROWS = 16  # of a product's input, and the columns of its output
UPDATED = 16  # numbers of each parameter
# Of all products: more layers than fit are left out, but one stays. A layer of 4,096 has about 5 MB.
MAX_BYTES = 4 * 2**20


class SpotCheck:
    """Samples what `job` asks for. Every method but `wants` is called in the step that is sampled alone."""

    def __init__(self, job: Job) -> None:
        self._job = job
        path = str(Path(job.events_dir) / f"rank{job.rank}.spot_check")
        self._request, self._path = path, path + ".jsonl"
        self._random: random.Random | None = None
        self.step: int | None = None
        self._lines: dict[str, dict[str, Any]] = {}
        self._rows: dict[int, list[int]] = {}

    def wants(self, step: int) -> bool:
        """Return whether `step` is the one to sample. Asked once at the start of each step."""
        window = self._job.window
        if self.step is not None or not self._job.spot_check or window is None:
            return False
        if not window.first_step <= step <= window.last_step:
            return False
        told = _read(self._request)
        if told is None and not (step == window.last_step and self._job.local_rank == 0):
            return False
        self.step, self._random = step, random.Random(told or os.urandom(8).hex())
        self._lines["step"] = {"event": "sampled", "step": step, "told": told is not None}
        return True

    def places(self, count: int, size: int) -> list[int]:
        """Return `count` different numbers below `size`, in order; all where there are fewer."""
        return sorted(self._drawn.sample(range(size), min(count, size)))

    def rows(self, count: int) -> list[int]:
        """Return which of `count` tokens are sampled: the same of every operation, so that one leads to the next."""
        if count not in self._rows:
            self._rows[count] = self.places(ROWS, count)
        return self._rows[count]

    @property
    def has_whole_sequences(self) -> bool:
        """Whether this rank attends to whole sequences."""
        return self._job.layout.context == 1

    @property
    def _drawn(self) -> random.Random:
        assert self._random is not None
        return self._random

    def layers(self, held: Sequence[int]) -> list[int]:
        """Return the layers to sample of those that this rank holds: as many as MAX_BYTES hold, at least one."""
        model = self._job.model
        # inputs and weights of ROWS: query, key, value, output, up and gate have the hidden size, down has the other
        numbers = 2 * ROWS * (6 * model.hidden_size + model.ffn_hidden_size)
        return [held[place] for place in self.places(max(1, MAX_BYTES // (4 * numbers)), len(held))]

    def has(self, name: str) -> bool:
        """Return whether `name` was sampled. What runs again, as in recomputation, is sampled once."""
        return name in self._lines

    def product(
        self,
        name: str,
        inputs: Numbers,
        weight: Numbers,
        bias: Numbers | None,
        output: Numbers,
        columns: Sequence[int] = (),
    ) -> None:
        """Keep inputs [rows, in], weight [columns, in], bias [columns] and output [rows, columns] of a linear layer.

        weight, bias: the parameters that the optimizer updates, in their own precision, not the layer's copies.
        columns: which ones of the output, where this is the layer's whole output and its rows are those of `rows`.
        """
        arrays = {"inputs": inputs, "weight": weight, "bias": bias, "output": output}
        self._keep("product", name, arrays, places=list(columns))

    def input_gradient(self, name: str, gradient: Numbers, weight: Numbers, output: Numbers) -> None:
        """Keep gradients of a linear layer's output [rows, out] and of its input [rows, columns] in the backward pass.

        weight: [columns, out], the columns of the parameter that these numbers of the input meet.
        """
        arrays = {"inputs": gradient, "weight": weight, "output": output}
        self._keep("input gradient", f"{name} backward", arrays)

    def norm(self, name: str, inputs: Numbers, weight: Numbers, bias: Numbers | None, output: Numbers) -> None:
        """Keep inputs and output [rows, hidden], weight and bias [hidden] of a normalisation."""
        self._keep("norm", name, {"inputs": inputs, "weight": weight, "bias": bias, "output": output})

    def attention(
        self, name: str, places: Sequence[int], query: Numbers, key: Numbers, value: Numbers, output: Numbers
    ) -> None:
        """Keep one head of one sequence: query and output [places, D] at these positions, key and value [sequence, D].

        Keys are those that the queries are multiplied by: after a rotation.
        """
        arrays = {"query": query, "key": key, "value": value, "output": output}
        self._keep("attention", name, arrays, places=list(places))

    def update(self, name: str, dimensions: int, before: Sequence[Numbers], after: Sequence[Numbers]) -> None:
        """Keep some numbers of a parameter before the step and after it.

        before: (value, gradient, mean, square). after: (value, mean, square). gradient: as for Recorder.gradients.
        mean, square: AdamW's moments.
        """
        names = "value", "gradient", "mean", "square", "new_value", "new_mean", "new_square"
        self._keep("update", name, dict(zip(names, (*before, *after))), dimensions=dimensions)

    def _keep(self, event: str, name: str, arrays: dict[str, Any], **fields: Any) -> None:
        # copies: a framework's array may be the memory of a parameter, which changes
        packed = {key: None if array is None else np.array(array, np.float32) for key, array in arrays.items()}
        self._lines[name] = {"event": event, "name": name, **fields, **packed}

    def write(self) -> None:
        """Write what was kept. Raises StorageError."""
        if self.step is None:
            return
        text = "".join(json.dumps(_packed(line), separators=(",", ":")) + "\n" for line in self._lines.values())
        try:
            Path(self._path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def _packed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: pack_array(value) if isinstance(value, np.ndarray) else value for key, value in line.items()}


def pack_array(array: NDArray[np.float32]) -> dict[str, Any]:
    """Return {shape, data}: the float32 numbers in little-endian order, by zlib, in base64."""
    data = zlib.compress(np.ascontiguousarray(array, "<f4").tobytes(), 1)
    return {"shape": list(array.shape), "data": base64.b64encode(data).decode()}


def unpack_array(packed: dict[str, Any], most: int) -> NDArray[np.float64]:
    """Return the array that `pack_array` packed. Raises ValueError for another one, or more than `most` numbers."""
    shape = [int(size) for size in packed["shape"]]
    count = 1
    for size in shape:
        if size < 0:
            raise ValueError(f"shape {shape}")
        count *= size
    if count > most:
        raise ValueError(f"shape {shape}: expected at most {most} numbers")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(packed["data"], validate=True), 4 * count + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(data) != 4 * count:
        raise ValueError(f"shape {shape}: found {len(data)} bytes, expected {4 * count}")
    return np.frombuffer(data, "<f4").astype(np.float64).reshape(shape)


def _read(path: str) -> str | None:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(64) or None
    except OSError:
        return None
