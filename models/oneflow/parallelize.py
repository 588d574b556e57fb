"""The model as the layout wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoder import Decoder
from stages import Stage

if TYPE_CHECKING:
    from levelfield.worker.job import Job


def build(job: Job) -> tuple[Decoder, list[Stage]]:
    """Build the decoder, and return it with its pipeline stages."""
    stages = [Stage(job, index) for index in range(job.layout.pipeline)]
    is_recomputed = job.tuning.recompute == "full"
    training = job.training
    return Decoder(job.model, training.sequence_length, stages, is_recomputed, training.precision), stages
