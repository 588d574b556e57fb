"""Reduces a run's raw records to the few numbers that its page draws: telemetry, and steps and memory of each rank."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from levelfield.measure.raw_facts import NANOSECONDS, Reading, StepRecord, records_by_rank
from levelfield.measure.throughput import step_nanoseconds_from_start
from levelfield.rundir.node_parts import NodePart, node_parts
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.record import (
    MAX_KERNELS,
    MAX_PLACES,
    MAX_RANK_PEAKS,
    MAX_READINGS,
    MAX_TRACE_POINTS,
    MAX_TRACED_DEVICES,
    MAX_TRACED_RANKS,
    DeviceTrace,
    RankPeaks,
    RankTrace,
    RunTraces,
    StepTrace,
    TracedQuantity,
)
from levelfield.specs.short_names import short_kernel
from levelfield.specs.step_parts import StepParts

_MEBIBYTE = 2**20
_MAX_DEVICE_NAME = 40  # characters
# Of a step in parts: characters of a place, waits of a rank, missing facts, and digits of its milliseconds.
_MAX_PLACE, _MAX_WAITS, _MAX_MISSING, _STEP_DIGITS = 120, 3, 20, 5

_SUMMARISED_FIGURES = ("power_watts", "memory_used_bytes", "utilisation", "temperature_celsius")


@dataclass(frozen=True)
class DeviceReadings:
    """What was read of one device between the begin and the end of its machine's steps."""

    name: str
    begin_ns: int
    end_ns: int
    readings: Sequence[Reading]


# By quantity of a chart: its value in a reading.
_DRAWN_VALUES: dict[TracedQuantity, Callable[[Reading], float | None]] = {
    "power_watts": lambda reading: reading.power_watts,
    "utilisation": lambda reading: reading.utilisation,
    "memory_used_mebibytes": lambda reading: (
        None if reading.memory_used_bytes is None else reading.memory_used_bytes / _MEBIBYTE
    ),
    "temperature_celsius": lambda reading: reading.temperature_celsius,
}
_DIGITS: dict[TracedQuantity, int] = {"utilisation": 3, "memory_used_mebibytes": 0}
_MEMORY_PEAKS = ("process", "allocated", "reserved")


def run_traces(plan: Plan, raw: RawRecords, step: StepTrace | None = None) -> RunTraces | None:
    """Return the traces; None where there is neither telemetry of the steps nor a rank's memory nor a step in parts."""
    ranks = records_by_rank(raw.steps)
    times_ns = {
        rank: step_nanoseconds_from_start(steps, raw.first_step_start_ns.get(rank)) for rank, steps in ranks.items()
    }
    times = {
        rank: step_us for rank, step_ns in times_ns.items() if (step_us := tuple(round(ns / 1000) for ns in step_ns))
    }
    devices = [
        readings for part in node_parts(plan, raw) for readings in _device_readings(part, raw.first_step_start_ns)
    ]
    peaks = _rank_peaks(ranks)
    if not devices and not peaks and len(times) < 2 and step is None:
        return None
    # The slowest ranks and the fastest one are drawn. One rank alone is the record's step_seconds already.
    slowest = sorted(times, key=lambda rank: (-sum(times[rank]), rank))
    drawn_ranks = slowest if len(slowest) <= MAX_TRACED_RANKS else [*slowest[: MAX_TRACED_RANKS - 1], slowest[-1]]
    drawn = _drawn_devices(devices)
    max_points = min(MAX_TRACE_POINTS, MAX_READINGS // max(1, len(drawn)))
    interval_count = min(max_points, max((len(device.readings) for device in drawn), default=0))
    return RunTraces(
        seconds=round(max(map(sum, times.values()), default=0) / 1e6, 3),
        parts=interval_count,
        devices=len(devices),
        ranks=len(ranks),
        device_traces=tuple(DeviceTrace(device=d.name, values=_mean_values(d, interval_count)) for d in drawn),
        rank_traces=tuple(
            RankTrace(rank=r, step_microseconds=times[r]) for r in sorted(drawn_ranks) if len(drawn_ranks) > 1
        ),
        rank_peaks=peaks,
        step=step,
    )


def _device_readings(part: NodePart, begins: Mapping[int, int]) -> Iterator[DeviceReadings]:
    """Return the readings of each device of a machine during its steps, on its own clock."""
    begin, end = begins.get(part.ranks.start), max(part.first_rank_end_ns.values(), default=0)
    readings_by_device: dict[str, list[Reading]] = defaultdict(list)
    for reading in part.telemetry.readings:
        if begin is not None and not reading.before and begin <= reading.time_ns <= end:
            readings_by_device[reading.device].append(reading)
    return (
        DeviceReadings(part.device_name(d)[:_MAX_DEVICE_NAME], begin or 0, end, r)
        for d, r in readings_by_device.items()
        if begin != end
    )


def _drawn_devices(devices: Sequence[DeviceReadings]) -> list[DeviceReadings]:
    """Return the devices with the lowest and the highest means of what all of them read first; all, if they are few."""
    if len(devices) <= MAX_TRACED_DEVICES:
        return [*devices]
    value_of = next(
        (value_of for value_of in _DRAWN_VALUES.values() if all(_finite_values(d, value_of) for d in devices)), None
    )
    means = [
        (sum(_finite_values(d, value_of)) / len(_finite_values(d, value_of)) if value_of else 0.0) for d in devices
    ]
    ranked = sorted(range(len(devices)), key=lambda index: means[index])
    return [devices[k] for k in sorted([*ranked[: MAX_TRACED_DEVICES // 2], *ranked[-(MAX_TRACED_DEVICES // 2) :]])]


def _finite_values(device: DeviceReadings, value_of: Callable[[Reading], float | None]) -> list[float]:
    values = map(value_of, device.readings)
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean_values(device: DeviceReadings, interval_count: int) -> dict[TracedQuantity, tuple[float | None, ...]]:
    """Return the mean in each of `interval_count` equal parts of the time, by quantity, without any never read."""
    length = device.end_ns - device.begin_ns
    indices = [
        min(interval_count - 1, (reading.time_ns - device.begin_ns) * interval_count // length)
        for reading in device.readings
    ]
    means: dict[TracedQuantity, tuple[float | None, ...]] = {}
    for name, value_of in _DRAWN_VALUES.items():
        values_by_index: dict[int, list[float]] = defaultdict(list)
        for index, reading in zip(indices, device.readings, strict=True):
            if (value := value_of(reading)) is not None and math.isfinite(value):
                values_by_index[index].append(value)
        if values_by_index:
            means[name] = tuple(
                round(sum(values) / len(values), _DIGITS.get(name, 1))
                if (values := values_by_index.get(index))
                else None
                for index in range(interval_count)
            )
    return means


def _rank_peaks(ranks: dict[int, tuple[StepRecord, ...]]) -> tuple[RankPeaks, ...]:
    peaks = []
    for rank, steps in ranks.items():
        largest: dict[str, int] = {}
        for name in _MEMORY_PEAKS:
            if sizes := [size for record in steps if (size := record.memory.get(f"{name}_peak_bytes")) is not None]:
                largest[name] = round(max(sizes) / _MEBIBYTE)
        if any(largest.values()):
            peaks.append((-max(largest.values()), rank, RankPeaks(rank=rank, **largest)))
    largest_peaks = sorted(peaks, key=lambda entry: entry[:2])[:MAX_RANK_PEAKS]
    return tuple(sorted((entry for *_, entry in largest_peaks), key=lambda entry: entry.rank))


def step_trace(parts: StepParts, redact: Callable[[str], str]) -> StepTrace:
    """Return what pages show of the parts of a step. redact: takes private words out of a text."""
    ms: defaultdict[tuple[str, str, bool], float] = defaultdict(float)
    for rank in parts.ranks:
        for entry in rank.places:
            place = entry.part, redact(entry.where)[:_MAX_PLACE], entry.phase == "recompute"
            ms[place] += entry.ms / len(parts.ranks)
    places = sorted(ms, key=lambda key: -ms[key])[:MAX_PLACES]
    drawn_ranks = {line.rank for line in parts.timeline.lines} if parts.timeline else set()
    ranks = []
    for rank in (entry for entry in parts.ranks if entry.rank in drawn_ranks):
        waited = sorted(rank.waited_for, key=lambda wait: -wait.ms)
        longest_waits = [wait.model_dump() for wait in waited[:_MAX_WAITS]]
        times = {"ms": rank.step.mean, "waited_ms": sum(wait.ms for wait in waited)}
        ranks.append({"rank": rank.rank, **times, "waited_for": longest_waits})
    texts, lists, alone_step = {}, {}, parts.alone
    if alone_step:
        texts = {
            name: text and redact(text) for name, text in (("peak", alone_step.peak), ("memory", alone_step.memory))
        }
        sentences = {"findings": alone_step.findings, "missing": alone_step.missing[:_MAX_MISSING]}
        lists = {name: [redact(text) for text in values] for name, values in sentences.items()}
    return StepTrace.model_validate(
        _round_numbers(
            {
                **parts.model_dump(include={"device", "recorded_steps", "step", "overhead", "parts", "timeline"}),
                "places": [
                    {"part": p, "where": w, "is_repeated": is_repeated, "ms": ms[p, w, is_repeated]}
                    for p, w, is_repeated in places
                ],
                "ranks": ranks,
                "late": [{**entry.model_dump(), "where": entry.where and redact(entry.where)} for entry in parts.late],
                "kernels": [
                    {**entry.model_dump(), "name": short_kernel(redact(entry.name), _MAX_PLACE)}
                    for entry in sorted(parts.kernels, key=lambda entry: -entry.ms)[:MAX_KERNELS]
                ],
                "warnings": [redact(entry) for entry in parts.warnings],
                "alone": alone_step and alone_step.model_dump() | {**texts, **lists},
                "missing": [redact(entry) for entry in parts.missing[:_MAX_MISSING]],
            }
        )
    )


def _round_numbers(value: Any) -> Any:
    """Return the value with its numbers as exact as a page shows them."""
    if isinstance(value, dict):
        return {key: _round_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round_numbers(item) for item in value]
    return round(value, _STEP_DIGITS) if isinstance(value, float) else value


def telemetry_summary(plan: Plan, raw: RawRecords) -> dict[str, float]:
    """Return the mean and the maximum of each quantity over all devices and readings of the window.

    host_busy_cores: cores of a host that all programs kept busy; of several hosts their mean. What was never read is
    left out, and all of it where a machine lacks the window.
    """
    parts = node_parts(plan, raw)
    windows = [part.window_ns(plan.work.window) for part in parts]
    measured_parts = [(part, window) for part, window in zip(parts, windows, strict=True) if window is not None]
    if len(measured_parts) < len(parts):
        return {}
    summary: dict[str, float] = {}
    for name in _SUMMARISED_FIGURES:
        readings = (
            getattr(r, name)
            for part, (begin, end) in measured_parts
            for r in part.telemetry.readings
            if not r.before and begin <= r.time_ns <= end
        )
        if values := [float(value) for value in readings if value is not None and math.isfinite(value)]:
            summary[f"{name}_mean"], summary[f"{name}_max"] = sum(values) / len(values), max(values)
    busy_cores = []
    for part, (begin, end) in measured_parts:
        in_window = [
            reading for reading in part.telemetry.host if not reading.before and begin <= reading.time_ns <= end
        ]
        if len(in_window) > 1 and in_window[-1].time_ns > in_window[0].time_ns:
            seconds = (in_window[-1].time_ns - in_window[0].time_ns) / NANOSECONDS
            cores = (in_window[-1].busy_seconds - in_window[0].busy_seconds) / seconds
            busy_cores += [cores] if math.isfinite(cores) else []
    if busy_cores:
        summary["host_busy_cores_mean"] = sum(busy_cores) / len(busy_cores)
    return summary
