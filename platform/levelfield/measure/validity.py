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
    coordinates,
    records_by_rank,
    records_by_step,
    values_by_step,
)
from levelfield.measure.throughput import sequence_reasons
from levelfield.measure.weights import weight_reasons
from levelfield.specs.case import Acceptance, Schedule, Training, Window, Work
from levelfield.specs.layout import Layout
from levelfield.worker.job import Schedule as WorkerSchedule
from levelfield.worker.job import parse
from levelfield.worker.schedule import learning_rate

# An all-reduced mean is the same number on every rank, except for the last bits of float32.
LOSS_AGREEMENT = 1e-6
MAX_REASONS = 1_000  # of ranks, which may be a million
_MAX_LISTED = 5
# Relative. A framework may keep the rate in float32, which rounds by 6e-8 at most.
RATE_AGREEMENT = 1e-6


class Reason(NamedTuple):
    """A broken rule; as text, a sentence."""

    rule: str
    detail: str  # what was found

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def validity_reasons(
    records: Iterable[StepRecord], weights: Iterable[WeightSlice], work: Work, layout: Layout
) -> tuple[Reason, ...]:
    """Return every reason why the run is not valid, in the order of the layers; empty for a valid run.

    The ranks are those of `layout`. A rank without a record lacks all its steps.
    """
    all_records = tuple(records)
    rules = {
        "steps": step_reasons(all_records, work.training, layout),
        "finite": finite_reasons(all_records, work.training),
        "tokens": token_reasons(all_records, work.training, layout),
        "loss": loss_reasons(all_records),
        "schedule": schedule_reasons(all_records, work.training.schedule),
        "data": checksum_reasons(all_records, layout),
        "clock": clock_reasons(all_records, work.window),
        "weights": weight_reasons(weights, work, layout),
        "acceptance": acceptance_reasons(all_records, work.acceptance),
    }
    return tuple(Reason(rule, detail) for rule, details in rules.items() for detail in details)


def step_reasons(records: Sequence[StepRecord], training: Training, layout: Layout) -> list[str]:
    """Check that every rank ends every step once, in order, each later than the previous step."""
    ranks = records_by_rank(records)
    unknown_ranks = sorted(set(ranks) - set(range(layout.world_size)))
    reasons = [f"rank {rank} is not one of the layout's {layout.world_size}" for rank in unknown_ranks]
    for rank in range(layout.world_size):
        if len(reasons) >= MAX_REASONS:
            return [*reasons, f"ranks from {rank} on are not listed"]
        steps = ranks.get(rank, ())
        faults = sequence_reasons([record.step for record in steps], range(1, training.steps + 1))
        backward = [b.step for a, b in pairwise(steps) if b.step > a.step and not b.end_ns > a.end_ns]
        reasons += [f"rank {rank}: {fault}" for fault in faults]
        reasons += [f"rank {rank}: step {step} took no time or less" for step in backward]
    return reasons


def finite_reasons(records: Sequence[StepRecord], training: Training) -> list[str]:
    """Check that losses and gradient norms are finite. In fp16 a skipped step has no norm: its gradients overflowed."""
    reasons = []
    for r in records:
        where = f"step {r.step}, rank {r.rank}"
        if r.loss is not None and not math.isfinite(r.loss):
            reasons.append(f"{where}: loss is {r.loss}")
        if r.grad_norm is not None and not r.skipped and not (math.isfinite(r.grad_norm) and r.grad_norm >= 0):
            reasons.append(f"{where}: gradient norm is {r.grad_norm}")
        if r.skipped and training.precision != "fp16":
            reasons.append(f"{where}: the optimizer skipped it; only fp16 may")
    return shorten_reasons(reasons)


def token_reasons(records: Sequence[StepRecord], training: Training, layout: Layout) -> list[str]:
    """Check that each owner of tokens reports its share of the global batch, and every other rank none."""
    share, rest = divmod(training.tokens_per_step, layout.data)
    if rest:
        return [f"{training.tokens_per_step} tokens a step cannot be shared by {layout.data} data ranks"]
    reasons = []
    for r in records:
        expected = share if coordinates(r.rank, layout).owns_tokens else 0
        if r.tokens != expected:
            reasons.append(f"step {r.step}, rank {r.rank}: {r.tokens} tokens, expected {expected}")
    return shorten_reasons(reasons)


def loss_reasons(records: Sequence[StepRecord]) -> list[str]:
    """Check that every step has a loss, and that all ranks with a loss agree within 1e-6 of it."""
    reasons = []
    for step, group in records_by_step(records).items():
        losses = {r.rank: r.loss for r in group if r.loss is not None}
        if not losses:
            reasons.append(f"step {step}: no rank reports a loss")
        else:
            values = losses.values()
            difference = math.nan if any(map(math.isnan, values)) else max(values) - min(values)
            if not difference / max(1e-30, *map(abs, values)) <= LOSS_AGREEMENT:
                reasons.append(f"step {step}: ranks disagree: " + _describe_values(losses))
        if len({r.skipped for r in group}) > 1:
            reasons.append(f"step {step}: only some ranks skipped it")
    return shorten_reasons(reasons)


def checksum_reasons(records: Sequence[StepRecord], layout: Layout) -> list[str]:
    """Check that ranks of one data rank read the same tokens, and that different data ranks read different ones."""
    reasons = []
    for step, group in records_by_step(records).items():
        checksums_by_data_rank: dict[int, dict[int, int]] = {}
        for r in group:
            if r.tokens_checksum is not None:
                checksums_by_data_rank.setdefault(coordinates(r.rank, layout).data, {})[r.rank] = r.tokens_checksum
        missing_data_rank = next((rank for rank in range(layout.data) if rank not in checksums_by_data_rank), None)
        if missing_data_rank is not None:
            reasons.append(f"step {step}: no token checksum from data rank {missing_data_rank}")
        for data, sums in sorted(checksums_by_data_rank.items()):
            if len(set(sums.values())) > 1:
                reasons.append(f"step {step}, data rank {data}: ranks read different tokens: {_describe_values(sums)}")
        firsts = [next(iter(sums.values())) for sums in checksums_by_data_rank.values()]
        if len(set(firsts)) < len(firsts):
            reasons.append(f"step {step}: two data ranks read the same tokens")
    return shorten_reasons(reasons)


def clock_reasons(records: Sequence[StepRecord], window: Window) -> list[str]:
    """Check that the windows of all ranks last equally long, within two of the window's longest steps."""
    step_seconds = {}  # of the ranks that have every step of the window
    window_steps = range(window.first_step - 1, window.last_step + 1)
    for rank, steps in records_by_rank(records).items():
        ends = {record.step: record.end_ns for record in steps}
        if all(step in ends for step in window_steps):
            step_seconds[rank] = [(ends[b] - ends[a]) / NANOSECONDS for a, b in pairwise(window_steps)]
    window_seconds = {rank: sum(seconds) for rank, seconds in step_seconds.items()}
    if not window_seconds:
        return []
    longest = sorted(map(max, step_seconds.values()))[len(window_seconds) // 2]
    if not max(window_seconds.values()) - min(window_seconds.values()) <= 2 * longest:
        return [f"ranks' windows last differently, in seconds: {_describe_values(window_seconds)}"]
    return []


def acceptance_reasons(records: Sequence[StepRecord], acceptance: Acceptance) -> list[str]:
    """Check that the mean loss of the last `tail_steps` is below the accepted fraction of the first loss."""
    curve = loss_curve(records)
    if len(curve) <= acceptance.tail_steps:
        return [f"{len(curve)} losses, expected more than {acceptance.tail_steps}"]
    losses = list(curve.values())
    tail, limit = losses[-acceptance.tail_steps :], losses[0] * acceptance.final_loss_below_fraction
    mean = math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan
    if not mean < limit:
        return [f"mean loss of the last {acceptance.tail_steps} steps is {mean:.4f}, expected below {limit:.4f}"]
    return []


def loss_curve(records: Iterable[StepRecord]) -> dict[int, float]:
    """Return the loss of each step, by ascending step, from the lowest rank that has it."""
    return values_by_step(records, lambda record: record.loss)


def tokens_checksum(records: Iterable[StepRecord], layout: Layout) -> int | None:
    """Return the checksum of all tokens of the run: the sum over steps and data ranks modulo 2**64.

    It is the same in every layout. None when a data rank lacks the checksum of a step.
    """
    checksums = {
        (r.step, coordinates(r.rank, layout).data): r.tokens_checksum for r in records if r.tokens_checksum is not None
    }
    steps = {step for step, _ in checksums}
    is_complete = bool(checksums) and len(checksums) == len(steps) * layout.data
    return sum(checksums.values()) % CHECKSUM_MODULUS if is_complete else None


def _describe_values(values: Mapping[int, float]) -> str:
    """Return the first few values with their ranks, for a sentence."""
    return ", ".join(f"{value!r} on rank {rank}" for rank, value in list(values.items())[:_MAX_LISTED])


def shorten_reasons(reasons: list[str]) -> list[str]:
    """Return the first few reasons, and how many more there are."""
    if len(reasons) <= _MAX_LISTED:
        return reasons
    return [*reasons[:_MAX_LISTED], f"and {len(reasons) - _MAX_LISTED} more"]


def schedule_reasons(records: Sequence[StepRecord], schedule: Schedule) -> list[str]:
    """Check that each reported learning rate is the schedule's. A rank that reports one reports one for every step.

    A rank without any passes: the rate of a parameter is the same on all ranks that hold it.
    """
    fields, reasons = parse(WorkerSchedule, schedule.model_dump(), "schedule"), []
    for steps in records_by_rank(records).values():
        for record in steps if any(step.learning_rate is not None for step in steps) else ():
            rate, expected = record.learning_rate, learning_rate(fields, record.step)
            if rate is None or not abs(rate - expected) <= RATE_AGREEMENT * expected:
                text = "no learning rate" if rate is None else f"learning rate {rate:.9g}"
                reasons.append(f"step {record.step}, rank {record.rank}: {text}, expected {expected:.9g}")
    return shorten_reasons(reasons)
