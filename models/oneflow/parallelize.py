"""The model as the layout wants it."""

from decoder import Decoder
from stages import Stage


def build(job):
    """(the decoder, its pipeline stages)."""
    stages = [Stage(job, index) for index in range(job.layout.pipeline)]
    recomputed = job.tuning.recompute == "full"
    training = job.training
    return Decoder(job.model, training.sequence_length, stages, recomputed, training.precision), stages
