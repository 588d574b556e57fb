"""The model as the layout wants it."""

from decoder import Decoder
from stages import Stage


def build(job):
    """(the decoder, its pipeline stages)."""
    stages = [Stage(job, index) for index in range(job.layout.pipeline)]
    recomputed = job.tuning.recompute == "full"
    return Decoder(job.model, job.training.sequence_length, stages, recomputed), stages
