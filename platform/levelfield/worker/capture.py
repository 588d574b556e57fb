"""The tensors of one step by canonical name. `diagnose` compares them to find the first one that differs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .faults import JobError, StorageError, Unsupported
from .job import Job

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Capture:
    """Writes the tensors of step job.capture.step to job.capture.folder; nothing when job.capture is None.

    Tensors of the step's first micro-batch: embedding, layers.N (the output of block N) and final_norm
    [micro-batch, sequence, hidden], and logits [micro-batch, sequence, vocabulary]. Tensors of the whole step:
    gradient.<parameter>, before clipping and without the loss scale, in the parameter's canonical shape.
    Raises Unsupported for more than one process, because each process then holds only a part of a tensor.
    """

    def __init__(self, job: Job) -> None:
        self._request = job.capture
        if self._request is not None and job.world_size > 1:
            raise Unsupported(f"capture with {job.world_size} processes; tensors are captured in one process only")

    def wants(self, step: int) -> bool:
        """Return whether the tensors of `step` are to be written."""
        return self._request is not None and step == self._request.step

    def keep(self, name: str, array: NDArray[np.float32]) -> None:
        """Write one tensor, as float32. Raises StorageError when it cannot be written."""
        if self._request is None:
            raise JobError("no step of this job is captured")
        path = Path(self._request.folder) / f"{name}.npy"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.asarray(array, dtype=np.float32), allow_pickle=False)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
