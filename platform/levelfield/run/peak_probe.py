"""The achievable matmul peak of this machine, measured once per machine, framework and number of threads.

Output marks it `measured`: it is the rate of this software on this chip, not the chip's own peak.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield import user_folders
from levelfield.catalog.machine import usable_cores
from levelfield.contracts.execution import ReadyRuntime
from levelfield.node.regular_files import read_regular
from levelfield.plan.peak import MeasuredPeaks, is_better, why_again
from levelfield.run.host_load import HostCounters, cores_of_others, host_counters
from levelfield.rundir.directory import write_atomically
from levelfield.specs.plan import PeakMeasurement, Plan

SECONDS_PER_DTYPE = 3.0
LIMIT_SECONDS = 180.0
# What a probe on the host is held to. On two cores beside other work torch's gave 2 to 9 times numpy's rate.
PLAIN, PLAIN_SECONDS, LEAST_OF_PLAIN = "fp32", 0.3, 0.25


class StoredPeak(NamedTuple):
    """A rate of the whole device or host, in TFLOP/s, with when and beside what it was measured."""

    tflops: float
    measurement: PeakMeasurement | None

    def stored(self) -> dict[str, Any]:
        """The peak as the cache keeps it."""
        measurement = {"measurement": self.measurement.model_dump(mode="json")} if self.measurement else {}
        return {"tflops": self.tflops, **measurement}


def cache_folder() -> Path:
    return user_folders.cache_folder() / "levelfield" / "peaks"


def known_peaks(plan: Plan, machine: str) -> MeasuredPeaks:
    """Return the stored peaks of this machine, framework and device; empty without an earlier probe.

    Where ssh reaches the nodes, the first host is the machine.
    """
    found = _known(_path(plan, machine))
    return _measured(plan, found) if found else MeasuredPeaks()


def peaks_for(plan: Plan, machine: str, runtime: ReadyRuntime, say: Callable[[str], None]) -> MeasuredPeaks:
    """Return stored peaks. Measure first where the chip has no published peak and the stored one is missing, old or
    doubtful, or with --probe."""
    if plan.launch and not plan.launch.hosts:
        return MeasuredPeaks(how=f"launcher {plan.launch.launcher} measures no peak on its nodes")
    known, precision = known_peaks(plan, machine), plan.work.training.precision
    if precision in plan.hardware.chip.peaks and not plan.probe_peak:
        return known
    if precision not in known.tflops or plan.probe_peak:
        return measure_peaks(plan, machine, runtime, say)
    why = why_again(known.measurements.get(precision), datetime.now(timezone.utc))
    if why is None:
        return known
    again = measure_peaks(plan, machine, runtime, say, why)
    return again if again.tflops else known


def measure_peaks(
    plan: Plan, machine: str, runtime: ReadyRuntime, say: Callable[[str], None], why: str | None = None
) -> MeasuredPeaks:
    """Run the implementation's probe, store its rates and return all stored ones, or no rates and the reason.

    A stored rate that is higher, known and not too old stays. why: the reason to measure again.
    """
    precision = plan.work.training.precision
    if not plan.implementation.peak_probe:
        return MeasuredPeaks(how=f"{plan.implementation.framework} has no probe")
    again = f"again ({SECONDS_PER_DTYPE:g} s): {why}" if why else f"({SECONDS_PER_DTYPE:g} s; kept for later runs)"
    where = plan.launch.hosts[0].name if plan.launch else "this machine"
    say(f"measuring {where}'s {precision} matmul peak {again}")
    before = _counters(plan)
    try:
        argv = [*_argv(plan), "--dtype", precision, "--seconds", str(SECONDS_PER_DTYPE)]
        printed = runtime.output(plan, argv, {"OMP_NUM_THREADS": str(usable_cores())}, LIMIT_SECONDS)
        peaks = _peaks(json.loads(printed.splitlines()[-1]), _conditions(plan, before))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return MeasuredPeaks(how=f"the probe failed: {type(error).__name__}")
    refusal = _refusal(plan, peaks)
    kept = _remember(_path(plan, machine), {d: p for d, p in peaks.items() if not (refusal and d == PLAIN)})
    if refusal and precision == PLAIN and PLAIN not in kept:
        return MeasuredPeaks(how=refusal, refused=(refusal,))
    if precision not in peaks:
        return MeasuredPeaks(how=f"the probe gave no {precision} rate")
    return replace(_measured(plan, kept), refused=(refusal,) if refusal else ())


def _refusal(plan: Plan, peaks: dict[str, StoredPeak]) -> str | None:
    """Return why a rate of the host's processors is no peak: numpy's own product is far faster. None where it is not,
    and where numpy would not run on the same cores as the training."""
    if PLAIN not in peaks or not plan.hardware.is_host or plan.launch or plan.runtime == "docker":
        return None
    found, plain = peaks[PLAIN].tflops, plain_rate()
    if not found < LEAST_OF_PLAIN * plain:
        return None
    name, least = f"{plan.implementation.framework} {plan.implementation.version}", LEAST_OF_PLAIN * plain
    return (
        f"the probe of {name} is refused: it gave {found:.3g} TFLOP/s in {PLAIN}, expected at least {least:.3g}, "
        f"{LEAST_OF_PLAIN:.0%} of numpy's product here"
    )


def plain_rate() -> float:
    """Return the best rate of numpy's float32 product of two square matrices on this machine, in TFLOP/s."""
    size, best = 1024, math.inf
    left, right = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    end = time.perf_counter() + PLAIN_SECONDS
    while time.perf_counter() < end or not math.isfinite(best):
        start = time.perf_counter()
        np.matmul(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e12


def _counters(plan: Plan) -> HostCounters | None:
    """Return this machine's load, which says nothing about the nodes of a launcher."""
    return None if plan.launch else host_counters(are_children=plan.runtime != "docker")


def _conditions(plan: Plan, before: HostCounters | None) -> PeakMeasurement:
    after = _counters(plan)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return PeakMeasurement(at=now, other_cores=cores_of_others(before, after), cores=after["cores"] if after else None)


def _peaks(found: dict[str, dict[str, float]], beside: PeakMeasurement) -> dict[str, StoredPeak]:
    """Return TFLOP/s by dtype, without rates that are NaN, infinite, zero or negative. Raises for other content."""
    rates = {dtype: float(answer["tflops"]) for dtype, answer in found.items()}
    return {
        dtype: StoredPeak(best, beside.model_copy(update=_details(best, found[dtype])))
        for dtype, best in rates.items()
        if math.isfinite(best) and best > 0
    }


def _details(best: float, answer: dict[str, float]) -> dict[str, float | None]:
    """Return what the probe measured beside the rate: its spread, and the ratio of two libraries' products."""
    ratio = answer.get("onednn_over_mkl")
    is_ratio = isinstance(ratio, (int, float)) and math.isfinite(ratio) and ratio > 0
    return {"spread": _spread(best, answer.get("median")), "onednn_over_mkl": ratio if is_ratio else None}


def _spread(best: float, median: float | None) -> float | None:
    """Return the best rate less the median, over the best; None for a probe that gives no median."""
    return 1 - median / best if isinstance(median, (int, float)) and 0 < median <= best else None


def forget_peaks(plan: Plan, machine: str) -> None:
    """Delete a measured peak that a run exceeded: the machine was busy, so the next run measures again."""
    _path(plan, machine).unlink(missing_ok=True)


def _argv(plan: Plan) -> list[str]:
    values = {"python": plan.environment.python, "folder": plan.implementation.folder}
    argv = [text.format_map(values) for text in plan.implementation.peak_probe]
    return [*argv, "--device", plan.access.device, "--threads", str(usable_cores())]


def _measured(plan: Plan, peaks: dict[str, StoredPeak]) -> MeasuredPeaks:
    """Return the peaks per device. The devices of a host share its cores, and its peak is divided too."""
    on_the_host = plan.hardware.devices_per_node if plan.launch else plan.world_size  # containers share one host
    shares = on_the_host if plan.hardware.is_host or not plan.hardware.device_indices else 1
    name = f"{plan.implementation.framework} {plan.implementation.version}"
    return MeasuredPeaks(
        tflops={dtype: peak.tflops / shares for dtype, peak in peaks.items()},
        how=f"best matmul rate of {name} with {usable_cores()} threads, divided by {shares} device(s)",
        measurements={dtype: peak.measurement for dtype, peak in peaks.items() if peak.measurement},
    )


def _remember(path: Path, peaks: dict[str, StoredPeak]) -> dict[str, StoredPeak]:
    """Store the new rates, and return them with the stored ones that stay."""
    now, kept = datetime.now(timezone.utc), _known(path)
    kept |= {d: p for d, p in peaks.items() if d not in kept or is_better(p.tflops, *kept[d], now)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({dtype: peak.stored() for dtype, peak in kept.items()}, indent=2) + "\n")
    except OSError:
        pass  # without a cache the next run measures again
    return kept


def _known(path: Path) -> dict[str, StoredPeak]:
    """Return the stored rates; none where the file is missing or damaged."""
    try:
        stored = {dtype: _stored(content) for dtype, content in json.loads(read_regular(path)).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {dtype: peak for dtype, peak in stored.items() if math.isfinite(peak.tflops) and peak.tflops > 0}


def _stored(content: dict[str, Any]) -> StoredPeak:
    """Return a stored peak. One of an earlier version has no measurement. Raises ValueError and others when damaged."""
    measurement = PeakMeasurement.model_validate(content["measurement"]) if "measurement" in content else None
    if measurement and datetime.fromisoformat(measurement.at).tzinfo is None:
        raise ValueError("the time of the measurement has no zone")
    return StoredPeak(float(content["tflops"]), measurement)


def _path(plan: Plan, machine: str) -> Path:
    hosts = plan.launch.hosts if plan.launch else ()
    parts = (
        hosts[0].name if hosts else machine,
        plan.hardware.description,
        plan.implementation.framework,
        plan.implementation.version,
        plan.access.device,
        plan.runtime,
        str(usable_cores()),
    )
    return cache_folder() / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] + ".json")
