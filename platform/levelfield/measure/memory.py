"""Memory figures: the used memory of the devices, what the framework reports, and both beside the estimate.

Headline: the used peak of the fullest device over its capacity, from the vendor's tool. The tool sees everything on
the device (context, communication buffers, other processes), but only at its samples.
On an accelerator the estimate covers everything on the device, which the vendor's tool measures. On the host it covers
one process, whose resident peak the operating system records. See docs/decisions/memory-figures.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from levelfield.measure.raw_facts import Reading, StepRecord, coverage_shortfall, records_by_rank
from levelfield.specs.result import Figure, MemoryExpectation

ALLOCATED, RESERVED, PROCESS = "allocated_peak_bytes", "reserved_peak_bytes", "process_peak_bytes"
_KINDS = (ALLOCATED, RESERVED, PROCESS)
# A sampler may miss a peak. But a figure below half of what one rank allocated or reserved has another unit or another
# device.
_PLAUSIBLE_SHARE = 0.5
TOLERANCE = 0.2  # of the estimate
# A figure in a wrong unit differs by one of these factors. Within the tolerance, the remark names that unit.
_UNIT_FACTORS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class MemoryPeak:
    """The largest of several peaks, or None with the reason."""

    peak_bytes: int | None = None
    where: str | None = None  # a device or a rank
    reason: str | None = None


@dataclass(frozen=True)
class MemoryPeaks:
    """Peaks over the whole run."""

    used: MemoryPeak  # on one device; the others are of one rank
    allocated: MemoryPeak
    reserved: MemoryPeak
    process: MemoryPeak


def memory_peaks(
    readings: Iterable[Reading],
    records: Iterable[StepRecord],
    capacity_bytes: Mapping[str, int | None],
    window_ns: tuple[int, int] | None = None,
) -> MemoryPeaks:
    """Return the memory peaks of a run. `capacity_bytes` names every device of the run.

    window_ns: its begin and end on the readings' clock. The used peak is known only where readings cover it; without a
    window (the run ended before) it is the largest reading.
    """
    ordered = sorted(readings, key=lambda r: r.time_ns)
    ranks = records_by_rank(records)
    allocated, reserved, process = (
        _largest_peak({str(rank): _rank_peak(steps, kind) for rank, steps in ranks.items()}, "rank", "the framework")
        for kind in _KINDS
    )
    peaks = dict(zip(capacity_bytes, used_peaks(ordered, capacity_bytes), strict=True))
    largest_used = _largest_peak(peaks, "device", "the vendor's tool")
    held = max(allocated, reserved, key=lambda peak: peak.peak_bytes or 0)
    used = _plausible_peak(largest_used, ordered, capacity_bytes, window_ns, held)
    return MemoryPeaks(used, allocated, reserved, process)


def fullest_over_nodes(nodes: Mapping[str, MemoryPeaks]) -> MemoryPeaks:
    """Return the figures of the fullest device and rank over several nodes.

    A figure that one node lacks is unknown: the largest may be there. The reason names the node.
    """
    fullest = []
    for field in fields(MemoryPeaks):
        figures: dict[str, MemoryPeak] = {name: getattr(peaks, field.name) for name, peaks in nodes.items()}
        unknown = [f"{name}: {peak.reason}" for name, peak in figures.items() if peak.peak_bytes is None]
        largest = max(figures.values(), key=lambda peak: peak.peak_bytes or 0)
        fullest.append(MemoryPeak(reason=unknown[0]) if unknown else largest)
    return MemoryPeaks(*fullest)


def used_peaks(readings: Iterable[Reading], devices: Iterable[str]) -> tuple[int | None, ...]:
    """Return the largest reading of each device in bytes, in the devices' order; None where there is none."""
    peaks: dict[str, int | None] = dict.fromkeys(devices)
    for r in readings:
        if r.device in peaks and r.memory_used_bytes is not None:
            peaks[r.device] = max(peaks[r.device] or 0, r.memory_used_bytes)
    return tuple(peaks.values())


def process_peaks(records: Iterable[StepRecord]) -> tuple[int | None, ...]:
    """Return the peak of each rank's process in bytes, in the ranks' order; None where a step has none."""
    return tuple(_rank_peak(steps, PROCESS) for steps in records_by_rank(records).values())


def stage_peaks(peaks: Sequence[int | None], stages: int, ranks: int) -> tuple[int, ...] | None:
    """Return the largest peak of each pipeline stage in bytes, first stage first.

    peaks: of every rank, in order; a stage has neighbouring ranks (worker/job.py). None without several stages, and
    where the peak of a rank is unknown.
    """
    sizes = [peak for peak in peaks if peak is not None]
    if stages < 2 or len(sizes) != ranks or len(peaks) != ranks:
        return None
    ranks_per_stage = ranks // stages
    return tuple(max(sizes[first : first + ranks_per_stage]) for first in range(0, ranks, ranks_per_stage))


def _rank_peak(records: Iterable[StepRecord], kind: str) -> int | None:
    """Return the peak of one rank; None when a step has no value, because the peak may be in that step."""
    peaks = [record.memory.get(kind) for record in records]
    sizes = [peak for peak in peaks if peak is not None]
    return max(sizes) if sizes and len(sizes) == len(peaks) else None


def _largest_peak(values: Mapping[str, int | None], holder: str, source: str) -> MemoryPeak:
    """Return the largest of the values; None when one is unknown, because it may be the largest."""
    peaks = {name: value for name, value in values.items() if value is not None}
    unknown = [name for name in values if name not in peaks]
    if unknown or not peaks:
        return MemoryPeak(reason=f"{source} gave no figure for {holder} {unknown[0]}" if unknown else f"no {holder}")
    if not_positive := [name for name, value in peaks.items() if value <= 0]:
        return MemoryPeak(reason=f"{source} gave {peaks[not_positive[0]]} bytes for {holder} {not_positive[0]}")
    name = max(peaks, key=lambda name: peaks[name])
    return MemoryPeak(peaks[name], name)


def _plausible_peak(
    used: MemoryPeak,
    readings: Sequence[Reading],
    capacity_bytes: Mapping[str, int | None],
    window_ns: tuple[int, int] | None,
    held: MemoryPeak,
) -> MemoryPeak:
    """Return the peak; or None when the readings of a device miss a part of the window, in which the peak may be, and
    when no device of this capacity, and of what a rank held by its framework, can have it."""
    if used.peak_bytes is None or used.where is None:
        return used
    for device in capacity_bytes if window_ns else ():
        times = [r.time_ns for r in readings if r.device == device and r.memory_used_bytes is not None]
        if window_ns and (reason := coverage_shortfall(times, *window_ns)):
            return MemoryPeak(reason=f"device {device}: {reason}")
    capacity, device = capacity_bytes[used.where], f"device {used.where}: {used.peak_bytes} bytes"
    if capacity is not None and not used.peak_bytes <= capacity:
        return MemoryPeak(reason=f"{device} used of {capacity}: units or device differ")
    if held.peak_bytes is not None and not used.peak_bytes >= _PLAUSIBLE_SHARE * held.peak_bytes:
        rank = f"rank {held.where} held {held.peak_bytes}"
        return MemoryPeak(reason=f"{device} seen, but {rank}: units or device differ")
    return used


def compare_with_estimate(
    expected_bytes: int, measured: MemoryPeaks, on_host: bool, missing_reason: str | None
) -> MemoryExpectation:
    """Return the estimate beside the measurement. A remark, for a ratio far from 1, does not make the run invalid.

    missing_reason: why the run's figures do not cover a whole training, else None.
    """
    figure, peak = ("process peak", measured.process) if on_host else ("device-used peak", measured.used)
    reason = missing_reason
    if peak.peak_bytes is None:
        reason = reason or peak.reason or "it was not measured"
    elif not expected_bytes > 0:
        reason = reason or f"the plan expects {expected_bytes} bytes"
    value = None if reason else peak.peak_bytes
    ratio = None if value is None else value / expected_bytes
    remark = None
    if ratio is not None and not abs(ratio - 1) <= TOLERANCE:
        factor = math.exp(abs(math.log(ratio)))
        confused_units = [unit for unit, size in _UNIT_FACTORS.items() if abs(factor / size - 1) <= TOLERANCE]
        error = "lacks something" if ratio > 1 else "counts what is not there"
        cause = (
            f"as if {confused_units[0]} and bytes were mixed up" if confused_units else f"the model of memory {error}"
        )
        remark = f"the {figure} is {ratio:.3g} times what was expected: {cause}"
    return MemoryExpectation(
        figure=figure,
        measured=Figure(value=value, unit="B", reason=reason),
        ratio=ratio,
        remark=remark,
    )
