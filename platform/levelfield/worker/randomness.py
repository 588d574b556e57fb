"""The seed of a step's random numbers, for dropout."""

from __future__ import annotations

import hashlib

from .job import Coordinates, Job


def dropout_seed(job: Job, place: Coordinates, step: int) -> int:
    """Return the seed of this rank's random numbers in `step`, below 2**63. place: the rank's `coordinates`.

    The ranks of a tensor-parallel group have the same seed, because they hold the same hidden state. Under sequence
    parallelism each has its own part of the sequence, and then its own seed.
    """
    stream = place.tensor if job.layout.sequence_parallel else 0
    text = f"dropout {job.training.seed} {step} {place.data} {place.pipeline} {stream}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
