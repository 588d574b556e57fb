"""Finds what outlying steps cost the window, what telemetry read around the slowest, and whether the run stays valid.

The rules are in measure/throughput.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from statistics import fmean

from levelfield.measure.other_use import HostUse, host_use
from levelfield.measure.raw_facts import NANOSECONDS, Reading
from levelfield.measure.throughput import (
    OUTLIER_MEDIANS,
    StepOutliers,
    StepSpan,
    WindowError,
    clock_rank,
    is_disturbed,
    step_ends,
    step_outliers,
    window_spans,
)
from levelfield.rundir.node_parts import NodePart
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.result import Disturbance, ReadingAround, SlowestStep, Status

NOTABLE_MEAN_RATIO = 1.1  # of the mean step to the median one
Summary = Callable[[Sequence[float]], float]  # such as a mean


def find_disturbance(plan: Plan, raw: RawRecords, parts: Sequence[NodePart]) -> tuple[Disturbance | None, str | None]:
    """Return what outlying steps cost the window, and the reason why the run is not valid, if there is one.

    Both are None when the window is not complete.
    """
    first, last = plan.work.window.first_step, plan.work.window.last_step
    rank = clock_rank(raw.steps, first, last)
    try:
        spans = window_spans(
            step_ends(raw.steps, first, last), raw.first_step_start_ns.get(rank), first, last, plan.world_size
        )
    except WindowError:
        return None, None
    outliers, window = step_outliers(spans), StepSpan(0, spans[0].begin_ns, spans[-1].end_ns)
    unexplained = [span for span in outliers.outliers if not _is_explained(outliers, span, parts)]
    unexplained_share, limit = outliers.lost_part(unexplained), plan.work.window.disturbance_limit
    least_seconds, most_seconds = raw.seen[0].seconds if 0 in raw.seen else (0.0, 0.0)
    # The node of the rank with the clock; parts[0] where the plan lacks that rank.
    clock_part = next((part for part in parts if rank in part.ranks), parts[0])
    figures = Disturbance(
        slowest=_slowest_step(clock_part, outliers, window),
        outliers=len(outliers.outliers),
        lost=outliers.lost_part(outliers.outliers),
        unexplained=unexplained_share,
        limit=limit,
        mean_over_median=outliers.mean_seconds / outliers.median_seconds,
        platform_seconds=(max(0.0, least_seconds), most_seconds) if 0 in raw.seen else None,
        flags=(),
    )
    figures = figures.model_copy(update={"flags": tuple(_flags(figures))})
    if not is_disturbed(unexplained_share, window.seconds, limit):
        return figures, None
    return figures, (
        f"disturbed: outlying steps cost {unexplained_share:.1%} of the window without a known cause, and the case "
        f"allows {limit:.1%}; {_slowest_text(figures.slowest)}. Run again on an idle machine"
    )


def _is_explained(outliers: StepOutliers, span: StepSpan, parts: Sequence[NodePart]) -> bool:
    """Return whether other programs on one of the machines explain a step: all ranks wait for the slowest machine."""
    if len(parts) == 1:
        return outliers.is_explained(span, _host_use(parts[0], span))
    part_spans = (
        (part, part.first_rank_end_ns.get(span.step - 1), part.first_rank_end_ns.get(span.step)) for part in parts
    )
    return any(
        outliers.is_explained(span, host_use(part.telemetry.host, begin, end))
        for part, begin, end in part_spans
        if begin is not None and end is not None and begin < end
    )


def reject_disturbed(status: Status, reason: str | None) -> Status:
    """Return the status; `invalid` in place of `valid` when there is a reason: the window was disturbed."""
    if status.word != "valid" or reason is None:
        return status
    return Status(word="invalid", failure="disturbed", reasons=(reason,))


def _flags(figures: Disturbance) -> Iterator[str]:
    if figures.outliers:
        yield _slowest_text(figures.slowest)
        explained = figures.lost - figures.unexplained
        yield (
            f"{figures.outliers} step(s) above {OUTLIER_MEDIANS:g} times the median cost {figures.lost:.1%} of the "
            "window; "
            f"other programs explain {explained:.1%}"
        )
    if not figures.mean_over_median <= NOTABLE_MEAN_RATIO:
        yield f"the mean step is {figures.mean_over_median:.2f} times the median, and tokens/s counts the mean"


def _slowest_text(slowest: SlowestStep) -> str:
    begin_text = f", begun at {slowest.began}" if slowest.began else ""
    return f"step {slowest.step} lasted {slowest.seconds:.3g} s, {slowest.over_median:.1f} times the median{begin_text}"


def _slowest_step(part: NodePart, outliers: StepOutliers, window: StepSpan) -> SlowestStep:
    span = outliers.slowest
    in_step, in_window = _host_use(part, span), _host_use(part, window)
    return SlowestStep(
        step=span.step,
        seconds=span.seconds,
        over_median=outliers.over_median(span),
        after_seconds=(span.begin_ns - window.begin_ns) / NANOSECONDS,
        began=_time_of_day(part, span.begin_ns),
        telemetry=(
            _reading_around("other programs", "cores", in_step.other_cores, in_window.other_cores, in_step.reason),
            _reading_around("this run", "cores", in_step.run_cores, in_window.run_cores, in_step.reason),
            *_device_readings(part, span, window),
        ),
    )


def _time_of_day(part: NodePart, time_ns: int) -> str | None:
    """Return the time of day in UTC; None where telemetry did not record it."""
    if not part.telemetry.wall_clock:
        return None
    try:
        moment = datetime.fromtimestamp(part.time_of_day_ns(time_ns) / NANOSECONDS, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None  # a damaged time; the others are in the file
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _host_use(part: NodePart, span: StepSpan) -> HostUse:
    if part.silence_reason:
        return HostUse(None, None, part.labelled(part.silence_reason))
    return host_use(part.telemetry.host, span.begin_ns, span.end_ns)


def _device_readings(part: NodePart, span: StepSpan, window: StepSpan) -> Iterator[ReadingAround]:
    """Yield each quantity that the devices' tool read, in a step and in the window, over all devices."""
    quantities: tuple[tuple[str, str, Callable[[Reading], float | None], Summary], ...] = (
        ("power", "W", lambda r: r.power_watts, fmean),
        ("load", "1", lambda r: r.utilisation, fmean),
        ("temperature", "degrees Celsius", lambda r: r.temperature_celsius, max),
    )
    for quantity, unit, read, summary in quantities:
        in_step, in_window = (_summarise(part.telemetry.readings, read, summary, s) for s in (span, window))
        if in_window is not None or in_step is not None:  # a tool that has no such value says so elsewhere
            yield _reading_around(quantity, unit, in_step, in_window, "no reading fell into the step")


def _summarise(
    readings: Sequence[Reading], read: Callable[[Reading], float | None], summary: Summary, span: StepSpan
) -> float | None:
    values = [value for r in readings if span.begin_ns <= r.time_ns <= span.end_ns and (value := read(r)) is not None]
    return summary(values) if values else None


def _reading_around(
    quantity: str, unit: str, step: float | None, window: float | None, reason: str | None
) -> ReadingAround:
    in_step, in_window = (None if value is None or not math.isfinite(value) else value for value in (step, window))
    if step is not None:
        reason = None if in_step is not None else "a reading is not finite"
    return ReadingAround(what=quantity, unit=unit, in_step=in_step, in_window=in_window, reason=reason)
