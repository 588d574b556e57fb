"""The learning rate: linear warm-up, then cosine decay (Loshchilov and Hutter, 2017, without restarts)."""

from __future__ import annotations

import math

from .faults import Unsupported
from .job import Schedule


def learning_rate(schedule: Schedule, step: int) -> float:
    """Return the learning rate of `step`, counted from 1.

    The rate is peak * step / warmup up to the last warm-up step. Then it follows a half cosine from peak down to
    min_lr, which it reaches at decay_steps and keeps. Raises Unsupported for another style than cosine.
    """
    if schedule.style != "cosine":
        raise Unsupported(f"training.schedule.style: found '{schedule.style}', expected 'cosine'")
    if step <= schedule.warmup_steps:
        return float(schedule.peak_lr * step / schedule.warmup_steps)
    if step >= schedule.decay_steps:
        return float(schedule.min_lr)
    progress = (step - schedule.warmup_steps) / (schedule.decay_steps - schedule.warmup_steps)
    return float(schedule.min_lr + (schedule.peak_lr - schedule.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress)))
