"""What other programs use of the host's processors. See docs/decisions/other-use.md.

Other programs are noticeable on the host when they use more than a tenth of its cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from levelfield.measure.raw_facts import NANOSECONDS, HostReading, coverage_shortfall
from levelfield.specs.result import DISTURBED, OtherUse, Result

HOST_LIMIT = 0.10
SecondsCounter = Callable[[HostReading], float]


@dataclass(frozen=True)
class HostUse:
    """How many of a host's cores were busy, on average."""

    other_cores: float | None  # cores that other programs kept busy; None with the reason
    cores: int | None  # cores that the platform may use
    reason: str | None = None
    run_cores: float | None = None  # cores that the run and the platform kept busy

    @property
    def is_noticeable(self) -> bool:
        """Whether others use more than the limit. An unknown use is not."""
        return self.other_cores is not None and self.cores is not None and not self.other_cores <= self.limit

    @property
    def limit(self) -> float:
        """How many cores others may use before it is noticeable."""
        return HOST_LIMIT * (self.cores or 0)


def describe_host_use(use: HostUse, when: str) -> str:
    """Return a sentence that says what other programs use of the host's processors, with the limit."""
    return (
        f"other programs used {use.other_cores:.2f} of {use.cores} cores {when} (limit: {use.limit:.2g}); "
        "run again on an idle machine for a figure to compare"
    )


def use_beyond_limits(use: OtherUse | None) -> tuple[float, str]:
    """Return what others used beyond the limits of a warning, in cores and in words; (0, "") within the limits.

    The cores are those in the window; where these are unknown, those shortly before the training.
    """
    if use is None:
        return 0.0, ""
    cores, limit = use.host_in_window.value, use.host_cores
    cores = use.host_before.value if cores is None else cores
    if cores is not None and limit is not None and cores > HOST_LIMIT * limit:
        return cores, f"up to {cores:.1f} of {limit} cores"
    return 0.0, "a device" if any(device.in_use for device in use.devices) else ""


def displayed_status(result: Result) -> str:
    """Return the word of the result's status; `valid (disturbed)` for a valid run beside a load above the limits."""
    is_disturbed = result.status.word == "valid" and use_beyond_limits(result.other_use)[1]
    return DISTURBED if is_disturbed else result.status.word


def host_use(readings: Iterable[HostReading], begin_ns: int, end_ns: int) -> HostUse:
    """Return what other programs used of the host's cores between two times, by counters that readings interpolate."""
    ordered = sorted(readings, key=lambda r: r.time_ns)
    if not ordered:
        return HostUse(None, None, "the operating system gave no processor times")
    cores = ordered[-1].cores
    if reason := coverage_shortfall([r.time_ns for r in ordered], begin_ns, end_ns):
        return HostUse(None, cores, reason)
    if any(r.own_seconds is None for r in ordered):
        return HostUse(None, cores, "the processes of a container engine are not told apart from other programs")
    # Two clocks of the kernel count: the difference of an idle machine may be slightly below zero.
    others = max(0.0, _mean_busy_cores(ordered, lambda r: r.busy_seconds - (r.own_seconds or 0.0), begin_ns, end_ns))
    return HostUse(others, cores, run_cores=_mean_busy_cores(ordered, lambda r: r.own_seconds or 0.0, begin_ns, end_ns))


def processor_seconds(readings: Iterable[HostReading], begin_ns: int, end_ns: int) -> tuple[float, str]:
    """Return the processor seconds between two times, by counters that readings interpolate, and who used them.

    That is the run; where a reading does not tell its processes apart, all programs, which used no less. A reading
    during which a process ends may find it neither alive nor among its parent's ended children. The seconds of that
    process come back with the next reading, so the run's counter is taken as one that never falls.
    """
    ordered, window_seconds = sorted(readings, key=lambda r: r.time_ns), (end_ns - begin_ns) / NANOSECONDS
    if any(r.own_seconds is None for r in ordered):
        return _mean_busy_cores(ordered, lambda r: r.busy_seconds, begin_ns, end_ns) * window_seconds, "all programs"
    rising_seconds = accumulate((r.own_seconds or 0.0 for r in ordered), max)
    monotonic_readings = [replace(r, own_seconds=peak) for r, peak in zip(ordered, rising_seconds, strict=True)]
    return _mean_busy_cores(
        monotonic_readings, lambda r: r.own_seconds or 0.0, begin_ns, end_ns
    ) * window_seconds, "the run"


def _mean_busy_cores(readings: Sequence[HostReading], counter: SecondsCounter, begin_ns: int, end_ns: int) -> float:
    """Return the mean number of busy cores between two times, by a counter of processor seconds."""
    counts = []
    for time_ns in (begin_ns, end_ns):  # interpolated between two readings; by the nearest reading outside of all
        before = max((r for r in readings if r.time_ns <= time_ns), default=readings[0], key=lambda r: r.time_ns)
        after = min((r for r in readings if r.time_ns >= time_ns), default=readings[-1], key=lambda r: r.time_ns)
        first, last = counter(before), counter(after)
        span = after.time_ns - before.time_ns
        counts.append(first + (last - first) * (time_ns - before.time_ns) / span if span > 0 else first)
    return (counts[1] - counts[0]) * NANOSECONDS / (end_ns - begin_ns)
