"""Checks that a run's facts are complete and consistent. Each rule returns reasons; a valid run has none.

Comparisons are written so that NaN fails them: `not x < limit`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from levelfield.measure.raw_facts import (
    CHECKSUM_MODULUS,
    NANOSECONDS,
    StepRecord,
    WeightSlice,
    by_rank,
    by_step,
    coordinates,
    curve_of,
)
from levelfield.measure.throughput import sequence_reasons
from levelfield.measure.weights import weight_reasons
from levelfield.specs.case import Acceptance, Schedule, Training, Window, Work
from levelfield.specs.layout import Layout
from levelfield.worker.job import namespace
from levelfield.worker.schedule import learning_rate

# An all-reduced mean is the same number on every rank, except for the last bits of float32.
LOSS_AGREEMENT = 1e-6
MOST_REASONS = 1_000  # of ranks, which may be a million
_SHOWN = 5
# Relative. A framework may keep the rate in float32, which rounds by 6e-8 at most.
RATE_AGREEMENT = 1e-6


class Reason(NamedTuple):
    """A broken rule and what was found; as text, a sentence."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def check(
    records: Iterable[StepRecord], weights: Iterable[WeightSlice], work: Work, layout: Layout
) -> tuple[Reason, ...]:
    """Return every reason why the run is not valid, in the order of the layers; empty for a valid run.

    The ranks are those of `layout`. A rank without a record lacks all its steps.
    """
    kept = tuple(records)
    rules = {
        "steps": step_reasons(kept, work.training, layout),
        "finite": finite_reasons(kept, work.training),
        "tokens": token_reasons(kept, work.training, layout),
        "loss": loss_reasons(kept),
        "schedule": schedule_reasons(kept, work.training.schedule),
        "data": checksum_reasons(kept, layout),
        "clock": clock_reasons(kept, work.window),
        "weights": weight_reasons(weights, work, layout),
        "acceptance": acceptance_reasons(kept, work.acceptance),
    }
    return tuple(Reason(rule, detail) for rule, details in rules.items() for detail in details)


def step_reasons(records: Sequence[StepRecord], training: Training, layout: Layout) -> list[str]:
    """Check that every rank ends every step once, in order, each later than the previous step."""
    ranks = by_rank(records)
    strangers = sorted(set(ranks) - set(range(layout.world_size)))
    found = [f"rank {rank} is not one of the layout's {layout.world_size}" for rank in strangers]
    for rank in range(layout.world_size):
        if len(found) >= MOST_REASONS:
            return [*found, f"ranks from {rank} on are not listed"]
        own = ranks.get(rank, ())
        reasons = sequence_reasons([r.step for r in own], range(1, training.steps + 1))
        backward = [b.step for a, b in pairwise(own) if b.step > a.step and not b.end_ns > a.end_ns]
        found += [f"rank {rank}: {reason}" for reason in reasons]
        found += [f"rank {rank}: step {step} took no time or less" for step in backward]
    return found


def finite_reasons(records: Sequence[StepRecord], training: Training) -> list[str]:
    """Check that losses and gradient norms are finite. In fp16 a skipped step has no norm: its gradients overflowed."""
    found = []
    for r in records:
        where = f"step {r.step}, rank {r.rank}"
        if r.loss is not None and not math.isfinite(r.loss):
            found.append(f"{where}: loss is {r.loss}")
        if r.grad_norm is not None and not r.skipped and not (math.isfinite(r.grad_norm) and r.grad_norm >= 0):
            found.append(f"{where}: gradient norm is {r.grad_norm}")
        if r.skipped and training.precision != "fp16":
            found.append(f"{where}: the optimizer skipped it; only fp16 may")
    return shortened(found)


def token_reasons(records: Sequence[StepRecord], training: Training, layout: Layout) -> list[str]:
    """Check that each owner of tokens reports its share of the global batch, and every other rank none."""
    share, rest = divmod(training.tokens_per_step, layout.data)
    if rest:
        return [f"{training.tokens_per_step} tokens a step cannot be shared by {layout.data} data ranks"]
    found = []
    for r in records:
        expected = share if coordinates(r.rank, layout).owns_tokens else 0
        if r.tokens != expected:
            found.append(f"step {r.step}, rank {r.rank}: {r.tokens} tokens, expected {expected}")
    return shortened(found)


def loss_reasons(records: Sequence[StepRecord]) -> list[str]:
    """Check that every step has a loss, and that all ranks with a loss agree within 1e-6 of it."""
    found = []
    for step, group in by_step(records).items():
        losses = {r.rank: r.loss for r in group if r.loss is not None}
        if not losses:
            found.append(f"step {step}: no rank reports a loss")
        elif not _spread(list(losses.values())) <= LOSS_AGREEMENT:
            found.append(f"step {step}: ranks disagree: " + _listed(losses))
        if len({r.skipped for r in group}) > 1:
            found.append(f"step {step}: only some ranks skipped it")
    return shortened(found)


def checksum_reasons(records: Sequence[StepRecord], layout: Layout) -> list[str]:
    """Check that ranks of one data rank read the same tokens, and that different data ranks read different ones."""
    found = []
    for step, group in by_step(records).items():
        read: dict[int, dict[int, int]] = {}
        for r in group:
            if r.tokens_checksum is not None:
                read.setdefault(coordinates(r.rank, layout).data, {})[r.rank] = r.tokens_checksum
        silent = next((rank for rank in range(layout.data) if rank not in read), None)
        if silent is not None:
            found.append(f"step {step}: no token checksum from data rank {silent}")
        found += [f"step {step}, data rank {d}: ranks read different tokens: {_listed(read[d])}" for d in _split(read)]
        firsts = [next(iter(sums.values())) for sums in read.values()]
        if len(set(firsts)) < len(firsts):
            found.append(f"step {step}: two data ranks read the same tokens")
    return shortened(found)


def clock_reasons(records: Sequence[StepRecord], window: Window) -> list[str]:
    """Check that the windows of all ranks last equally long, within two of the window's longest steps."""
    times = {rank: _window_seconds(own, window) for rank, own in by_rank(records).items()}
    walls = {rank: sum(seconds) for rank, seconds in times.items() if seconds}
    if not walls:
        return []
    longest = sorted(max(seconds) for seconds in times.values() if seconds)[len(walls) // 2]
    if not max(walls.values()) - min(walls.values()) <= 2 * longest:
        return [f"ranks' windows last differently, in seconds: {_listed(walls)}"]
    return []


def acceptance_reasons(records: Sequence[StepRecord], acceptance: Acceptance) -> list[str]:
    """Check that the mean loss of the last `tail_steps` is below the accepted fraction of the first loss."""
    curve = loss_curve(records)
    if len(curve) <= acceptance.tail_steps:
        return [f"{len(curve)} losses, expected more than {acceptance.tail_steps}"]
    losses = list(curve.values())
    tail, limit = _mean(losses[-acceptance.tail_steps :]), losses[0] * acceptance.final_loss_below_fraction
    if not tail < limit:
        return [f"mean loss of the last {acceptance.tail_steps} steps is {tail:.4f}, expected below {limit:.4f}"]
    return []


def loss_curve(records: Iterable[StepRecord]) -> dict[int, float]:
    """Return the loss of each step, by ascending step, from the lowest rank that has it."""
    return curve_of(records, lambda record: record.loss)


def tokens_checksum(records: Iterable[StepRecord], layout: Layout) -> int | None:
    """Return the checksum of all tokens of the run: the sum over steps and data ranks modulo 2**64.

    It is the same in every layout. None when a data rank lacks the checksum of a step.
    """
    read = {
        (r.step, coordinates(r.rank, layout).data): r.tokens_checksum for r in records if r.tokens_checksum is not None
    }
    steps = {step for step, _ in read}
    return sum(read.values()) % CHECKSUM_MODULUS if read and len(read) == len(steps) * layout.data else None


def _window_seconds(own: Sequence[StepRecord], window: Window) -> list[float]:
    """Return the step times of the window on one rank's clock; empty when a step is missing."""
    ends = {r.step: r.end_ns for r in own}
    steps = range(window.first_step - 1, window.last_step + 1)
    if not all(step in ends for step in steps):
        return []
    return [(ends[b] - ends[a]) / NANOSECONDS for a, b in pairwise(steps)]


def _split(read: dict[int, dict[int, int]]) -> list[int]:
    return [data for data, sums in sorted(read.items()) if len(set(sums.values())) > 1]


def _spread(values: Sequence[float]) -> float:
    """Return the largest relative difference; NaN when a value is NaN."""
    scale = max(max(abs(v) for v in values), 1e-30)
    return math.nan if any(math.isnan(v) for v in values) else (max(values) - min(values)) / scale


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


def _listed(values: Mapping[int, float]) -> str:
    return ", ".join(f"{value!r} on rank {rank}" for rank, value in list(values.items())[:_SHOWN])


def shortened(found: list[str]) -> list[str]:
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]


def schedule_reasons(records: Sequence[StepRecord], schedule: Schedule) -> list[str]:
    """Check that each reported learning rate is the schedule's. A rank that reports one reports one for every step.

    A rank without any passes: the rate of a parameter is the same on all ranks that hold it.
    """
    known, reasons = namespace(schedule.model_dump()), []
    for own in by_rank(records).values():
        for record in own if any(r.learning_rate is not None for r in own) else ():
            found, expected = record.learning_rate, learning_rate(known, record.step)
            if found is None or not abs(found - expected) <= RATE_AGREEMENT * expected:
                said = "no learning rate" if found is None else f"learning rate {found:.9g}"
                reasons.append(f"step {record.step}, rank {record.rank}: {said}, expected {expected:.9g}")
    return shortened(reasons)
