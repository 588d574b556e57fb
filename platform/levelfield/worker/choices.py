"""The choices of experts of a mixture: written down, or those of a recorded training in their place.

A router takes the best experts of each token. Where two are nearly equal, rounding decides, and from there on two right
trainings part. So a training that is compared with a reference follows the reference's choices, and reports how its
own would differ. What a rank reports lies in <events_dir>/rank<rank>.choices.jsonl.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from .architecture import is_mixture
from .faults import JobError, StorageError
from .job import Job, coordinates, load_job

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Chosen = NDArray[np.integer[Any]]


class ChoiceRecord:
    """One rank's part of the choices of all mixtures. `job.choices` says whether to follow known ones.

    places: of this rank's tokens in each sequence, [part of the sequence]. is_whole: this rank has the whole batch.
    accumulation: the micro-batches of a step. tensor_rank: this rank's place under tensor parallelism.
    Raises JobError where the known choices are not those of this work.
    """

    def __init__(self, job: Job) -> None:
        if job.model.experts is None or job.choices is None:
            raise JobError("choices of experts: expected a model with experts, and the key 'choices'")
        self._job, self._place, self._experts = job, coordinates(job), job.model.experts
        self.places = own_places(job.training.sequence_length, job.layout.context, self._place.context)
        self.is_whole, self.tensor_rank = job.world_size == 1, self._place.tensor
        self.accumulation = job.accumulation
        self._known: Chosen | None = None
        if job.choices.known is not None:
            self._known = unpacked(job.choices.known, self._shape(), self._experts.count)
        self._path = str(Path(job.events_dir) / f"rank{job.rank}.choices.jsonl")
        self._file: int | None = None
        follows = None if job.choices.known is None else digest_of(job.choices.known)
        self._write({"event": "choices", "follows": follows})

    def _shape(self) -> tuple[int, ...]:
        training = self._job.training
        return training.steps, len(self.layers), training.global_batch, training.sequence_length, self._experts.chosen

    @property
    def layers(self) -> list[int]:
        """The mixtures of the whole model, counted from 0."""
        return [layer for layer in range(self._job.model.layers) if is_mixture(self._job.model, layer)]

    def known(self, step: int, layer: int) -> Chosen | None:
        """Return the choices to follow, the best expert first: [accumulation, micro-batch, part of the sequence,
        chosen] of this rank's tokens; None where it makes its own."""
        if self._known is None:
            return None
        job = self._job
        whole = self._known[step - 1, self.layers.index(layer)]
        batches = whole.reshape(job.accumulation, job.layout.data, job.tuning.micro_batch, *whole.shape[1:])
        return batches[:, self._place.data][:, :, self.places].astype(np.int64)  # type: ignore[no-any-return]

    def compared(self, step: int, layer: int, choices: int, changed: int, margin: float, gates: float) -> None:
        """Record how many of this rank's own `choices` differ from the known ones, and the widest margin of a token.

        The margin is what the own experts' scores have more than the known ones', as a part of their sum. gates: the
        mean over tokens of the sum of their gates. Of ranks with equal tokens one records them.
        """
        self._write({"event": "compared", "step": step, "layer": layer, "choices": choices, "changed": changed,
                     "margin": _number(margin), "gates": _number(gates)})  # fmt: skip

    def chosen(self, step: int, layer: int, experts: Chosen) -> None:
        """Record all choices of a layer in one step, the best expert first: [global batch, sequence, chosen]."""
        text = packed(experts, self._experts.count)
        self._write({"event": "chosen", "step": step, "layer": layer, "experts": text})

    def _write(self, event: dict[str, Any]) -> None:
        line = (json.dumps(event, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error


@lru_cache(maxsize=None)
def choice_record() -> ChoiceRecord | None:
    """Return the record of this process's training; None where its job asks for none.

    The job is that of this process (LEVELFIELD_JOB). So only a mixture's own code has to know of the record.
    """
    if not os.environ.get("LEVELFIELD_JOB"):
        return None  # a layer by itself, as in a test
    job = load_job()
    return ChoiceRecord(job) if job.choices is not None else None


def own_places(length: int, ranks: int, rank: int) -> NDArray[np.intp]:
    """Return the places of a context-parallel rank's tokens in a sequence: a piece from the front, one from the back.

    Of 2 x ranks equal pieces, rank r has piece r and the r-th from the end.
    """
    if ranks == 1:
        return np.arange(length)
    pieces = np.arange(length).reshape(2 * ranks, -1)
    return np.concatenate((pieces[rank], pieces[2 * ranks - 1 - rank]))


def packed(experts: Chosen, count: int) -> str:
    """Return choices among `count` experts as text: compressed, one or two bytes each."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(experts, _kind(count)).tobytes(), 9)).decode("ascii")


def unpacked(text: str, shape: tuple[int, ...], count: int) -> Chosen:
    """Return what `packed` was given, of this shape. Raises JobError for another size, or for an expert of no number
    below `count`."""
    kind = _kind(count)
    size = int(np.prod(shape)) * kind.itemsize
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise JobError(f"recorded choices of experts: damaged: {error}") from None
    if len(raw) <= size and not stream.eof:
        raise JobError("recorded choices of experts: damaged: the end is missing")
    if len(raw) != size:
        raise JobError(
            f"recorded choices of experts: found {'more than ' if len(raw) > size else ''}{min(len(raw), size)} bytes, "
            f"expected {size} for {' x '.join(map(str, shape))}"
        )
    experts = np.frombuffer(raw, kind).reshape(shape)
    if size and int(experts.max()) >= count:
        raise JobError(f"recorded choices of experts: found expert {int(experts.max())}, expected below {count}")
    return experts


def joined(parts: Sequence[str], shape: tuple[int, ...], count: int) -> str:
    """Return the packed choices of all steps and layers from those of each, of this shape. Raises JobError."""
    return packed(np.stack([unpacked(part, shape, count) for part in parts]), count)


def digest_of(text: str) -> str:
    """Return the digest by which a run and a reference name the choices."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _kind(count: int) -> np.dtype[Any]:
    return np.dtype("u1" if count <= 256 else "<u2")
