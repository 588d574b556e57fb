"""The learning rate of every step, held against the case's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelfield.measure.raw_facts import StepRecord, by_rank
from levelfield.specs.case import Schedule
from levelfield.worker.job import namespace
from levelfield.worker.schedule import learning_rate

# Relative. A framework may keep the rate in float32, which rounds by 6e-8 at most.
AGREEMENT = 1e-6


def schedule_reasons(records: Sequence[StepRecord], schedule: Schedule) -> list[str]:
    """Check that each reported learning rate is the schedule's. A rank that reports one reports one for every step.

    A rank without any passes: the rate of a parameter is the same on all ranks that hold it.
    """
    return [reason for own in by_rank(records).values() for reason in _rank_reasons(own, schedule)]


def _rank_reasons(own: Sequence[StepRecord], schedule: Schedule) -> Iterator[str]:
    if all(record.learning_rate is None for record in own):
        return
    known = namespace(schedule.model_dump())
    for record in own:
        found, expected = record.learning_rate, learning_rate(known, record.step)
        if found is None or not abs(found - expected) <= AGREEMENT * expected:
            said = "no learning rate" if found is None else f"learning rate {found:.9g}"
            yield f"step {record.step}, rank {record.rank}: {said}, expected {expected:.9g}"
