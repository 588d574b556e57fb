"""A few numbers of two steps of the window, from which the platform computes them again.

The platform draws the first step and a rank of each node while the training runs, and tells the rank by a file with the
seed of what is sampled (node/step_draw.py). The first rank of a node that was told nothing samples the window's last
step. What is wrong in every other step shows in one of two that follow each other. Samples are kept in memory and
written after the last step, to <events_dir>/rank<rank>.spot_check.jsonl: writing takes longer than a small step.
"""

from __future__ import annotations

import base64
import json
import os
import random
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Protocol, Sequence, Union

import numpy as np

from .faults import StorageError
from .job import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .batches import Batch

    class OnDevice(Protocol):
        """Numbers that stay on a device until they are written, so that no step waits for them."""

        def numbers(self) -> NDArray[Any]: ...

    Numbers = Union[NDArray[Any], OnDevice]

ROWS = 16  # of a product's input, and the columns of its output
UPDATED = 16  # numbers of each parameter
WHOLE_ROWS = 4  # tokens whose logits of the whole vocabulary are sampled
TOKEN_COLUMNS = 4  # of what is sampled at every token of a micro-batch
PREFIX = 64  # tokens: an attention of all heads is that of a token before this one
# Of all products of a step: more layers than fit are left out, but one stays. A layer of 4,096 has about 7 MB.
MAX_BYTES = 2**21


class SpotCheck:
    """Samples what `job` asks for. Every method but `wants` is called in the step that is sampled alone."""

    def __init__(self, job: Job) -> None:
        self._job = job
        path = str(Path(job.events_dir) / f"rank{job.rank}.spot_check")
        self._request, self._path = path, path + ".jsonl"
        self._random: random.Random | None = None
        self._batch: Batch | None = None
        self._steps: list[dict[str, dict[str, Any]]] = []  # the lines of each sampled step, by name
        self._rows: dict[int, list[int]] = {}
        self._updated: dict[str, list[int]] = {}
        self._micro_batch = 0  # the one that is sampled
        self._is_drawn = True  # the micro-batch that runs is that one
        self._samples_step = False

    def begin(self, batch: Batch) -> None:
        """Take the batch of the step that begins: what the training reads is held to it."""
        self._batch = batch

    def wants(self, step: int) -> bool:
        """Return whether `step` is one to sample. Asked once at the start of each step."""
        self._samples_step = self._begins(step)
        return self._samples_step

    def _begins(self, step: int) -> bool:
        window = self._job.window
        if not self._job.spot_check or window is None or not window.first_step <= step <= window.last_step:
            return False
        if self._steps:
            if step != self._steps[0]["step"]["step"] + 1:
                return False
            told = self._steps[0]["step"]["told"]
        else:
            seed = _read(self._request)
            told = seed is not None
            if not told and not (step == window.last_step and self._job.local_rank == 0):
                return False
            self._random = random.Random(seed or os.urandom(8).hex())
        self._steps.append({"step": {"event": "sampled", "step": step, "told": told}})
        self._rows.clear()
        self._micro_batch, self._is_drawn = 0, True
        return True

    def micro_batches(self, count: int) -> Iterator[int]:
        """Yield the numbers of the step's `count` micro-batches. Of a sampled step one that is drawn is sampled.

        Where a training does not run them one after another, as in a pipeline, the first one is.
        """
        if self._samples_step:
            (self._micro_batch,) = self.places(1, count)
        for number in range(count):
            self._is_drawn = number == self._micro_batch
            yield number
        self._is_drawn = True

    def places(self, count: int, size: int) -> list[int]:
        """Return `count` different numbers below `size`, in order; all where there are fewer."""
        return sorted(self._drawn.sample(range(size), min(count, size)))

    def rows(self, count: int) -> list[int]:
        """Return which of `count` tokens are sampled: the same of every operation, so that one leads to the next."""
        if count not in self._rows:
            self._rows[count] = self.places(ROWS, count)
        return self._rows[count]

    def updated_places(self, name: str, size: int) -> list[int]:
        """Return which of the `size` numbers of parameter `name` are sampled: the same ones in both steps."""
        if name not in self._updated:
            self._updated[name] = self.places(UPDATED, size)
        return self._updated[name]

    def tokens(self, count: int) -> list[int]:
        """Return `count` different tokens that the sampled micro-batch reads; all where it has fewer."""
        different = np.unique(self._inputs)
        return [int(different[place]) for place in self.places(count, len(different))]

    @property
    def batch_tokens(self) -> int:
        """How many tokens a micro-batch has."""
        return len(self._inputs)

    def inputs_at(self, rows: Sequence[int]) -> list[int]:
        """Return the tokens that the sampled micro-batch has to read at `rows`."""
        return [int(token) for token in self._inputs[list(rows)]]

    @property
    def _inputs(self) -> NDArray[np.int64]:
        assert self._batch is not None
        inputs: NDArray[np.int64] = self._batch.inputs[self._micro_batch].reshape(-1)
        return inputs

    @property
    def has_rotary_positions(self) -> bool:
        return self._job.model.positions == "rope"

    @property
    def has_one_norm(self) -> bool:
        """Whether attention and MLP read the same tensor, whose gradient is then that of both."""
        return self._job.model.parallel_residual == "one_norm"

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
        # inputs and weights of ROWS: query, key, value, output, up and gate have the hidden size, down has the other;
        # of these seven also some numbers of every token
        tokens = self._job.tuning.micro_batch * self._job.training.sequence_length
        numbers = 2 * ROWS * (6 * model.hidden_size + model.ffn_hidden_size) + 7 * 2 * TOKEN_COLUMNS * tokens
        return [held[place] for place in self.places(max(1, MAX_BYTES // (4 * numbers)), len(held))]

    def has(self, name: str) -> bool:
        """Return whether `name` is not to be sampled now.

        It was, as what runs again in recomputation, or another micro-batch is the one that is sampled.
        """
        return not self._is_drawn or name in self._lines

    @property
    def _lines(self) -> dict[str, dict[str, Any]]:
        return self._steps[-1]

    def read(self, kind: str, tokens: Numbers) -> None:
        """Keep the checksum of a micro-batch's tokens, [micro-batch, sequence], as the training used them.

        kind: "inputs" or "targets". Called for the step's micro-batches in their order.
        """
        if kind not in self._lines:
            assert self._batch is not None
            expected = [_checksum(part) for part in getattr(self._batch, kind)]
            self._lines[kind] = {"event": "tokens", "name": kind, "read": [], "expected": expected}
        self._lines[kind]["read"].append(tokens)

    def embedding(self, table: Numbers, positions: Numbers | None, output: Numbers) -> None:
        """Keep the hidden state at `rows`, [rows, hidden], with the rows of the table that `inputs_at` names.

        positions: the learned ones at these rows.
        """
        self._keep("embedding", "embedding", {"table": table, "positions": positions, "output": output})

    def loss(
        self, token_numbers: tuple[Numbers, Numbers, Numbers], rows: Sequence[int], logits: Numbers, gradient: Numbers
    ) -> None:
        """Keep what the loss of the sampled micro-batch follows from.

        token_numbers: of each token [tokens]: the logarithm of the sum of its logits' exponentials, the logit of its
        target, and the gradient of the summed loss by that logit. logits, gradient: [rows, vocabulary], at these rows.
        """
        assert self._batch is not None
        targets = self._batch.targets[self._micro_batch].reshape(-1)[list(rows)]
        arrays = dict(zip(("normaliser", "target_logit", "target_gradient"), token_numbers))
        self._keep("loss", "loss", {**arrays, "logits": logits, "gradient": gradient, "targets": targets})

    def micro_batch_loss(self, loss: float | Numbers, factor: float) -> None:
        """Keep the mean loss of a micro-batch's tokens, and the factor that it has in the loss whose gradient is taken.

        Called for the step's micro-batches in their order.
        """
        line = self._lines.setdefault("losses", {"event": "losses", "name": "losses", "losses": [], "factors": []})
        line["losses"].append(loss)
        line["factors"].append(factor)

    def weight_gradient(
        self, name: str, outputs: Numbers, inputs: Numbers, gradient: Numbers, bias: Numbers | None = None
    ) -> None:
        """Keep what the sampled micro-batch adds to some numbers of a linear layer's weight gradient.

        outputs: gradients of some outputs, [rows, tokens]. inputs: some of its inputs, [columns, tokens]. gradient:
        [rows, columns]. bias: what it adds to the gradient of the bias at these rows.
        """
        arrays = {"inputs": outputs, "weight": inputs, "output": gradient, "bias_gradient": bias}
        self._keep("weight gradient", f"{name} weights", arrays)

    def table_gradient(
        self,
        name: str,
        tokens: Sequence[int],
        gradient: Numbers,
        hidden: Numbers | None,
        head: Sequence[Numbers] | None,
    ) -> None:
        """Keep what the sampled micro-batch adds to some numbers of a table's gradient, [tokens, columns].

        hidden: the gradient of the embedding's output at every token of the micro-batch, [all, columns]. head: the
        gradients of these tokens' logits, [all, tokens], and the head's inputs, [all, columns].
        """
        head_gradient, head_inputs = head or (None, None)
        arrays = {
            "output": gradient,
            "hidden": hidden,
            "read": None if hidden is None else self._inputs,
            "head_gradient": head_gradient,
            "head_inputs": head_inputs,
        }
        self._keep("table gradient", f"{name} weights", arrays, places=list(tokens))

    def product(
        self,
        name: str,
        inputs: Numbers,
        weight: Numbers,
        bias: Numbers | None,
        output: Numbers,
        columns: Sequence[int] = (),
        largest: Numbers | None = None,
    ) -> None:
        """Keep inputs [rows, in], weight [columns, in], bias [columns] and output [rows, columns] of a linear layer.

        weight, bias: the parameters that the optimizer updates, in their own precision, not the layer's copies.
        columns: which ones of the output, where this is the layer's whole output and its rows are those of `rows`.
        largest: [2], the largest absolute value of the whole input and of the whole weight. Only of a product of E4M3
        numbers with a scale from each, summed in float32: its output is held to the exact sum.
        """
        arrays = {"inputs": inputs, "weight": weight, "bias": bias, "output": output, "largest": largest}
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

    def norm_gradient(self, name: str, output: Numbers, inputs: Numbers) -> None:
        """Keep gradients of a norm's output, and of its input with all else that has this input: [rows, hidden]."""
        self._keep("norm gradient", f"{name} backward", {"output": output, "inputs": inputs})

    def activation_gradient(
        self, name: str, output: Numbers, up: Numbers, up_gradient: Numbers, gate: Sequence[Numbers] | None
    ) -> None:
        """Keep gradients at both sides of an MLP's activation, [rows, columns], and what it was computed from.

        output: the gradient of its output. up: the output of this layer. gate: (output, gradient) of the other, if any.
        """
        gate_output, gate_gradient = gate or (None, None)
        arrays = {"output": output, "up": up, "up_gradient": up_gradient}
        self._keep("activation gradient", name, {**arrays, "gate": gate_output, "gate_gradient": gate_gradient})

    def attention_gradient(
        self,
        name: str,
        rows: Sequence[Numbers],
        last: Sequence[Numbers],
        unrotated: Numbers | None,
    ) -> None:
        """Keep gradients of the head that `attention` has.

        rows: of its output and of its queries at the same positions, [places, D]. last: what the last position's key
        and value have from the queries there: these queries and the gradients of their outputs, both [queries of the
        group, D], and the key's and the value's gradient, [D]. unrotated: of the queries before their rotation.
        """
        names = "output", "query_gradient", "last_query", "last_output", "key_gradient", "value_gradient"
        arrays = dict(zip(names, (*rows, *last)))  # type: dict[str, Any]
        self._keep("attention gradient", f"{name} backward", {**arrays, "unrotated_gradient": unrotated})

    def attention(
        self,
        name: str,
        places: Sequence[int],
        query: Numbers,
        key: Numbers,
        value: Numbers,
        output: Numbers,
        unrotated: Sequence[Numbers] | None = None,
    ) -> None:
        """Keep one head of one sequence: query and output [places, D] at these positions, key and value [sequence, D].

        Keys are those that the queries are multiplied by: after a rotation. unrotated: queries and keys before it, both
        [places, D].
        """
        unrotated_query, unrotated_key = unrotated or (None, None)
        arrays = {
            "query": query,
            "key": key,
            "value": value,
            "output": output,
            "unrotated_query": unrotated_query,
            "unrotated_key": unrotated_key,
        }
        self._keep("attention", name, arrays, places=list(places))

    def heads(self, name: str, query: Numbers, key: Numbers, value: Numbers, output: Numbers) -> None:
        """Keep every head at one position: query and output [heads, D], key and value [kv_heads, position + 1, D]."""
        self._keep("heads", f"{name} heads", {"query": query, "key": key, "value": value, "output": output})

    def update(
        self,
        name: str,
        dimensions: int,
        before: Sequence[Numbers],
        after: Sequence[Numbers],
        micro_batches: Numbers | None = None,
    ) -> None:
        """Keep some numbers of a parameter before the step and after it, at `updated_places`.

        before: (value, gradient, mean, square). after: (value, mean, square). gradient: as for Recorder.gradients.
        mean, square: AdamW's moments. micro_batches: what each micro-batch adds to the gradient, where it is their sum,
        [micro-batches, places].
        """
        names = "value", "gradient", "mean", "square", "new_value", "new_mean", "new_square"
        arrays = dict(zip(names, (*before, *after)))  # type: dict[str, Any]
        arrays["micro_batches"] = micro_batches
        self._keep("update", name, arrays, dimensions=dimensions)

    def _keep(self, event: str, name: str, arrays: dict[str, Any], **fields: Any) -> None:
        self._lines[name] = {"event": event, "name": name, **fields, **{k: _copied(x) for k, x in arrays.items()}}

    def write(self) -> None:
        """Write what was kept. Raises StorageError."""
        if not self._steps:
            return
        lines: Iterable[dict[str, Any]] = (line for step in self._steps for line in step.values())
        text = "".join(json.dumps(_packed(line), separators=(",", ":")) + "\n" for line in lines)
        try:
            Path(self._path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


def _checksum(tokens: NDArray[np.int64]) -> int:
    return zlib.crc32(np.ascontiguousarray(tokens, "<i8").tobytes())


def _copied(array: Any) -> Any:
    """Return a copy: a framework's array may be the memory of a parameter, which changes."""
    return array if array is None or _is_on_device(array) else np.array(array, np.float32)


def _is_on_device(value: Any) -> bool:
    return hasattr(value, "numbers")


def _packed(line: dict[str, Any]) -> dict[str, Any]:
    if line["event"] == "tokens":
        return {**line, "read": [_checksum(_on_host(tokens)) for tokens in line["read"]]}
    if line["event"] == "losses":
        return {**line, "losses": [float(_on_host(loss)) for loss in line["losses"]]}
    return {key: pack_array(x) if isinstance(x := _on_host(value), np.ndarray) else x for key, value in line.items()}


def _on_host(value: Any) -> Any:
    return value.numbers() if _is_on_device(value) else value


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
