"""The throughput of the window, the spread of its step times, what outlying steps cost it, and the time to a loss.

An outlier lasts more than twice the median step. What it lasts beyond the median is lost to the window. See
docs/decisions/throughput-window.md and docs/decisions/disturbed-window.md.

A loss level is the reference's: the mean loss of the `tail` steps that end at three quarters of its steps, rounded up
to 0.01, so that it is a number to quote and no run ends beside it. A run's loss is averaged over as many steps back.
The place where that mean first is at the level lies between two steps; it is interpolated on a line, and so is the
time. Of an aligned run it is the reference's place, so aligned runs differ by their time alone.

What comes before the window (start, compilation, warm-up) has no measured time: the seconds begin with the window. The
tokens count from step 1. MLPerf's time to train (Mattson et al., 2020) is to a fixed quality as well, and counts all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median

import numpy as np

from levelfield.measure.other_use import HostUse
from levelfield.measure.raw_facts import NANOSECONDS, StepRecord, records_by_rank, records_by_step
from levelfield.measure.series import change_point, relative_iqr, trend
from levelfield.specs.result import StepTimes, Throughput

MIN_FOR_FLAGS = 10
MAX_P_VALUE = 0.01
MIN_CHANGE = 0.02
_MAX_NAMED = 5  # steps, in a reason
OUTLIER_MEDIANS = 2.0  # an outlier lasts more than so many median steps
# Telemetry reads once a second: what took less than two readings has no cause that it could show.
MIN_LOST_SECONDS = 2.0
# Where other programs use the part u of the cores, a program takes 1 / (1 - u) as long. Threads and ranks wait for the
# slowest of them, so a step may take up to the square of that.
LOCKSTEP_EXPONENT = 2
_LEVEL_POSITION = 0.75  # of the reference's steps
_LEVEL_ROUNDING = 0.01


@dataclass(frozen=True)
class StepEnd:
    """The end of a step on one rank's clock, and the step's target tokens over all ranks."""

    step: int
    end_ns: int
    tokens: int


@dataclass(frozen=True)
class StepSpan:
    """A step of the window, from the end of the step before it to its own end."""

    step: int
    begin_ns: int
    end_ns: int
    tokens: int = 0

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / NANOSECONDS


class WindowError(ValueError):
    """The window cannot be measured. `reasons` gives the causes."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def step_ends(records: Iterable[StepRecord], first_step: int, last_step: int) -> tuple[StepEnd, ...]:
    """Return the ends of steps on the clock of the rank with the longest window, with the tokens of all ranks.

    Clocks of different nodes are not compared: each rank's window uses its own clock. A rank without the first or
    the last step is skipped. If all ranks lack one, the lowest rank's steps are returned, and `window_spans` rejects
    them.
    """
    all_records = tuple(records)
    tokens = {step: sum(record.tokens for record in ranks) for step, ranks in records_by_step(all_records).items()}
    slowest = clock_rank(all_records, first_step, last_step)
    return tuple(StepEnd(r.step, r.end_ns, tokens[r.step]) for r in all_records if r.rank == slowest)


def clock_rank(records: Iterable[StepRecord], first_step: int, last_step: int) -> int:
    """Return the rank whose clock `step_ends` uses, which has the longest window; 0 without any record."""
    windows_ns = {}
    for rank, steps in records_by_rank(records).items():
        ends = {step.step: step.end_ns for step in steps}
        begin = ends.get(first_step - 1, ends.get(first_step))
        windows_ns[rank] = -1 if begin is None or last_step not in ends else ends[last_step] - begin
    return max(windows_ns, key=lambda rank: (windows_ns[rank], -rank), default=0)


def step_seconds_from_start(
    records: Iterable[StepRecord], begins: Mapping[int, int], first_step: int, last_step: int
) -> tuple[float, ...]:
    """Return the seconds of each step from step 1, on the same clock as `step_ends`, up to the first that is missing.

    begins: when step 1 began, by rank. Without the rank's begin there are no seconds.
    """
    all_records = tuple(records)
    slowest = clock_rank(all_records, first_step, last_step)
    steps = (record for record in all_records if record.rank == slowest)
    return tuple(ns / NANOSECONDS for ns in step_nanoseconds_from_start(steps, begins.get(slowest)))


def step_nanoseconds_from_start(steps: Iterable[StepRecord], begin: int | None) -> Iterator[int]:
    """Yield the time of each step of one rank, up to the first that is missing or ends before it begins.

    begin: the begin of step 1. Nothing is yielded without it.
    """
    ends = {record.step: record.end_ns for record in steps}
    for step in range(1, len(ends) + 1):
        if begin is None or step not in ends or not ends[step] > begin:
            return
        yield ends[step] - begin
        begin = ends[step]


def measure_window(
    steps: Sequence[StepEnd], begin_ns: int | None, first_step: int, last_step: int, devices: int
) -> Throughput:
    """Return the throughput and step times of a window; arguments as for `window_spans`. Raises WindowError."""
    spans = window_spans(steps, begin_ns, first_step, last_step, devices)
    wall_seconds = (spans[-1].end_ns - spans[0].begin_ns) / NANOSECONDS
    rate = sum(span.tokens for span in spans) / wall_seconds
    seconds = [span.seconds for span in spans]
    values, few, flags = np.asarray(seconds), len(seconds) < MIN_FOR_FLAGS, list[str]()
    if not few:  # a trend and a change point, where they are significant and material
        step_trend, step_change = trend(seconds), change_point(seconds)
        if step_trend.p < MAX_P_VALUE and abs(step_trend.drift) > MIN_CHANGE:
            flags.append(f"trend: step time drifts by {step_trend.drift:+.1%} over the window (p = {step_trend.p:.1g})")
        if step_change.p < MAX_P_VALUE and abs(step_change.shift) > MIN_CHANGE:
            shift = f"step time shifts by {step_change.shift:+.1%} at step {first_step + step_change.index}"
            flags.append(f"change point: {shift} (p = {step_change.p:.1g})")
    return Throughput(
        tokens_per_second=rate,
        tokens_per_second_per_device=rate / devices,
        wall_seconds=wall_seconds,
        step_seconds=StepTimes(
            steps=len(seconds),
            median=float(np.median(values)),
            mean=float(values.mean()),
            p90=float(np.quantile(values, 0.9)),
            minimum=float(values.min()),
            maximum=float(values.max()),
            spread=relative_iqr(seconds),
            flags=tuple(flags),
            unchecked=f"{len(seconds)} steps; trend and change point need {MIN_FOR_FLAGS}" if few else None,
        ),
    )


def window_spans(
    steps: Sequence[StepEnd], begin_ns: int | None, first_step: int, last_step: int, devices: int
) -> tuple[StepSpan, ...]:
    """Return steps first_step to last_step, both included. A step starts at the end of the previous step.

    begin_ns: the start of step 1 on the same clock; only a window from step 1 needs it. Raises WindowError.
    """
    if not 1 <= first_step <= last_step or devices < 1:
        raise WindowError((f"window {first_step}..{last_step} on {devices} devices is none",))
    start = () if begin_ns is None else (StepEnd(0, begin_ns, 0),)
    ends = tuple(s for s in (*start, *steps) if first_step - 1 <= s.step <= last_step)
    measured = [s for s in ends if s.step >= first_step]
    not_later = [b.step for a, b in pairwise(ends) if b.step > a.step and not b.end_ns > a.end_ns]
    reasons = (
        *sequence_reasons([s.step for s in ends], range(first_step - 1, last_step + 1)),
        *([f"{_numbered_steps(not_later, len(not_later))} took no time or less"] if not_later else []),
        *(f"step {s.step}: found {s.tokens} tokens, expected a positive number" for s in measured if not s.tokens > 0),
    )
    if reasons:
        raise WindowError(reasons)
    return tuple(StepSpan(b.step, a.end_ns, b.end_ns, b.tokens) for a, b in pairwise(ends))


def sequence_reasons(numbers: Sequence[int], expected: range) -> tuple[str, ...]:
    """Return the differences of `numbers` from `expected`: missing, repeated, out of order."""
    present = set(numbers)
    missing = len(expected) - sum(n in expected for n in present)
    first_missing = tuple(islice((n for n in expected if n not in present), _MAX_NAMED if missing else 0))
    repeated = sorted(n for n, times in Counter(numbers).items() if times > 1) if len(present) < len(numbers) else []
    disordered = [b for a, b in pairwise(numbers) if b < a]
    kinds: dict[str, tuple[Sequence[int], int]] = {
        "missing": (first_missing, missing),
        "repeated": (repeated, len(repeated)),
        "out of order": (disordered, len(disordered)),
    }
    return tuple(f"{_numbered_steps(steps, count)} {kind}" for kind, (steps, count) in kinds.items() if count)


def _numbered_steps(numbers: Sequence[int], count: int) -> str:
    """Return the first of `count` step numbers in words, and how many more there are."""
    more = f" and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""
    return f"step{'s' if count > 1 else ''} {', '.join(map(str, numbers[:_MAX_NAMED]))}{more}"


@dataclass(frozen=True)
class StepOutliers:
    """The outlying steps of a window, beside its slowest step, which is one of them if there are any."""

    slowest: StepSpan
    outliers: tuple[StepSpan, ...]
    median_seconds: float
    wall_seconds: float
    mean_seconds: float

    def over_median(self, span: StepSpan) -> float:
        """Return how many median steps a step lasted."""
        return span.seconds / self.median_seconds

    def lost_part(self, lost_spans: Sequence[StepSpan]) -> float:
        """Return the part of the window that these steps lasted beyond the median."""
        return sum(span.seconds - self.median_seconds for span in lost_spans) / self.wall_seconds

    def is_explained(self, span: StepSpan, use: HostUse) -> bool:
        """Return whether other programs used enough of the cores in a step to make it as long as it was.

        An unknown use explains nothing.
        """
        if use.other_cores is None or not use.cores:
            return False
        free = 1 - use.other_cores / use.cores
        return free <= 0 or self.over_median(span) * free**LOCKSTEP_EXPONENT <= 1


def step_outliers(spans: Sequence[StepSpan]) -> StepOutliers:
    """Return the outliers of a window of at least one step, each longer than zero."""
    seconds = [span.seconds for span in spans]
    middle = median(seconds)
    outliers = tuple(span for span in spans if span.seconds > OUTLIER_MEDIANS * middle)
    slowest = max(spans, key=lambda span: span.seconds)
    return StepOutliers(slowest, outliers, middle, sum(seconds), sum(seconds) / len(seconds))


def is_disturbed(lost_part: float, wall_seconds: float, limit: float) -> bool:
    """Return whether an unexplained loss is above the case's limit. A loss below two seconds never is."""
    lost_seconds = lost_part * wall_seconds
    return not (lost_part <= limit or lost_seconds < MIN_LOST_SECONDS)


@dataclass(frozen=True)
class LossCrossing:
    """Where the averaged loss reaches the level: a place between two steps, and the seconds from the window's begin."""

    step: float
    seconds: float


def level_step(steps: int) -> int:
    """Return the step of the reference that the level is taken at."""
    return math.ceil(_LEVEL_POSITION * steps)


def loss_level(losses: Sequence[float], tail: int) -> float | None:
    """Return the loss level by a reference's losses of steps 1, 2, ...; None without a finite mean of `tail` steps."""
    last = level_step(len(losses))
    mean = math.fsum(losses[last - tail : last]) / tail if last >= tail else math.nan
    return round(math.ceil(mean / _LEVEL_ROUNDING) * _LEVEL_ROUNDING, 2) if math.isfinite(mean) else None


def loss_crossing(
    losses: Mapping[int, float], spans: Sequence[StepSpan], level: float, tail: int
) -> LossCrossing | str:
    """Return where the loss, averaged over `tail` steps, first reaches the level; or a sentence why it does not.

    losses: by step. spans: the steps of the window, in order.
    """
    before: float | None = None
    seconds = math.fsum(span.seconds for span in spans if span.step < tail)
    for step in range(tail, spans[-1].step + 1):
        values = [losses.get(number, math.nan) for number in range(step - tail + 1, step + 1)]
        mean = math.fsum(values) / tail if all(map(math.isfinite, values)) else math.nan
        if not math.isfinite(mean):
            return f"the loss of step {step} or of one of the {tail - 1} before it is not known, or not finite"
        if step < spans[0].step:
            if mean <= level:
                return f"the loss is at {level:g} in step {step} already, before the window"
        else:
            span = spans[step - spans[0].step]
            if mean <= level:
                part = 1.0 if before is None else (before - level) / (before - mean)
                return LossCrossing(step - 1 + part, seconds + part * span.seconds)
            seconds += span.seconds
        before = mean
    return f"the loss, averaged over {tail} steps, does not reach {level:g} by step {spans[-1].step}"
