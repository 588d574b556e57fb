"""One step's tensors by canonical name, for `diagnose`: which of them is the first to differ from another run's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from .faults import StorageError, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Capture:
    """Keeps the tensors of step job.capture.step in job.capture.folder; of no step where job.capture is None.

    Names: embedding, layers.N, final_norm [micro-batch, sequence, hidden] and logits [micro-batch, sequence,
    vocabulary] of the step's first micro-batch, layers.N being the output of block N; gradient.<parameter>, of the
    whole step, before clipping and without the loss scale, in the parameter's canonical shape.
    Raises Unsupported for more than one process: there the tensors are in parts.
    """

    def __init__(self, job: SimpleNamespace) -> None:
        self._asked = job.capture
        if self._asked is not None and job.world_size > 1:
            raise Unsupported(f"capture with {job.world_size} processes; tensors are captured in one process only")

    def wants(self, step: int) -> bool:
        return self._asked is not None and step == self._asked.step

    def keep(self, name: str, array: NDArray[np.float32]) -> None:
        """Write one tensor, as float32. Raises StorageError when it cannot be written."""
        path = Path(self._asked.folder) / f"{name}.npy"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.asarray(array, dtype=np.float32), allow_pickle=False)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
