"""Small measurements of a machine, each kept in a file: matmul peaks, rates of the host, the control of a night.

A peak is the achievable rate of this software on this chip, not the chip's own: output marks it `measured`. It is
measured once per machine, framework and number of threads. Rates of the host are for predictions of vendor cpu: nobody
publishes them. A busy machine gives rates that are too low, so they can be measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield.catalog.machine import processor_flags, usable_cores
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import ReadyRuntime, Say
from levelfield.errors import DocumentError, RunFailed
from levelfield.measure.utilisation import HIGHEST_HERTZ, host_tflops_limits
from levelfield.node.node_facts import host_counters
from levelfield.node.regular_files import read_regular
from levelfield.plan.environment import plan_environment
from levelfield.plan.peak import MeasuredPeaks, is_better, remeasure_reason
from levelfield.predict.machines import fit_messages
from levelfield.run.launchers import probed_nodes
from levelfield.run.runtimes.environments import is_ready, use_environment
from levelfield.run.runtimes.process_runtime import command_output
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump, load, parse
from levelfield.specs.host_rates import HostRates
from levelfield.specs.plan import PeakMeasurement, Plan
from levelfield.specs.vendor import HOST_KIND
from levelfield.user_folders import own_cache

PEAK_SECONDS = 3.0  # for each dtype
PEAK_TIMEOUT_SECONDS = 180.0
# A probe on the host must reach this share of numpy's rate. On two busy cores torch's gave 2 to 9 times that rate.
NUMPY_DTYPE, NUMPY_SECONDS, NUMPY_SIZE, MIN_SHARE_OF_NUMPY = "fp32", 0.3, 1024, 0.25
HOST_PRECISIONS = "fp32,bf16"
HOST_SECONDS = 0.1  # for each size
HOST_TIMEOUT_SECONDS = 300.0
CONTROL_SECONDS = 1.0  # for the product, and for the copy
CONTROL_SIZE = 768
CONTROL_COPY_BYTES = 64 * 2**20
_ANSWER_ERRORS = (ValueError, KeyError, TypeError, AttributeError, IndexError)


def store_text(path: Path, text: str) -> None:
    """Store what was measured. Where it cannot be stored, the next command measures again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def _file_by_digest(folder: Path, *key_parts: str) -> Path:
    """Return a file that is named by the digest of `key_parts`: what was measured for other ones has another file."""
    return folder / (hashlib.sha256("\0".join(key_parts).encode()).hexdigest()[:16] + ".json")


def _measure_durations(work: Callable[[], object], seconds: float) -> list[float]:
    """Repeat the work for some seconds, and return the duration of each repeat."""
    work()  # the first call loads code and touches memory
    durations: list[float] = []
    deadline = time.perf_counter() + seconds
    while not durations or time.perf_counter() < deadline:
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return durations


class StoredPeak(NamedTuple):
    """A rate of the whole device or host."""

    tflops: float
    measurement: PeakMeasurement | None  # when and beside what it was measured


def load_peaks(plan: Plan, machine: str) -> MeasuredPeaks:
    """Return the stored peaks of this machine, framework and device; empty without an earlier probe.

    With a launcher they are the peaks of its nodes.
    """
    peaks = _read_peak_file(plan, machine)
    return _peaks_per_device(plan, peaks) if peaks else MeasuredPeaks(limits=_device_limits(plan))


def load_or_measure_peaks(plan: Plan, machine: str, runtime: ReadyRuntime, say: Say) -> MeasuredPeaks:
    """Return stored peaks. Measure first with --probe, or where the chip has no published peak and the stored one is
    missing, old or doubtful. Nothing is measured for a run that captures tensors, as its speed is not judged.

    machine: its name, by which peaks are stored.
    """
    if plan.launch and _peak_owner(plan, machine) is None:
        return MeasuredPeaks(source=f"launcher {plan.launch.launcher} measures no peak on its nodes")
    peaks, precision = load_peaks(plan, machine), plan.work.training.precision
    is_needed = precision not in plan.hardware.chip.peaks and plan.capture_step is None
    if not (is_needed or plan.probe_peak):
        return peaks
    if precision not in peaks.tflops or plan.probe_peak:
        return measure_peaks(plan, machine, runtime, say)
    reason = remeasure_reason(peaks.measurements.get(precision), datetime.now(timezone.utc))
    if reason is None:
        return peaks
    new_peaks = measure_peaks(plan, machine, runtime, say, reason)
    return new_peaks if new_peaks.tflops else peaks


def measure_peaks(
    plan: Plan, machine: str, runtime: ReadyRuntime, say: Say, reason: str | None = None
) -> MeasuredPeaks:
    """Run the implementation's probe, store its rates and return all stored ones, or no rates and the reason.

    A stored rate that is higher, measured under recorded conditions and not too old stays. reason: why the rates are
    measured again.
    """
    precision, framework = plan.work.training.precision, plan.implementation.framework
    if not plan.implementation.peak_probe:
        return MeasuredPeaks(source=f"{framework} has no probe", limits=_device_limits(plan))
    detail = f"again ({PEAK_SECONDS:g} s): {reason}" if reason else f"({PEAK_SECONDS:g} s; kept for later runs)"
    owner = str(_peak_owner(plan, machine)).partition(",")[0] if plan.launch else "this machine"
    say(f"measuring the {precision} matmul peak of {framework} on {owner} {detail}")
    placeholders = {"python": plan.environment.python, "folder": plan.implementation.folder}
    argv = [text.format_map(placeholders) for text in plan.implementation.peak_probe]
    argv += ["--device", plan.access.device, "--dtype", precision, "--seconds", str(PEAK_SECONDS)]
    counters_before = _host_load_counters(plan)
    try:
        if plan.launch is None:
            cores = str(usable_cores())
        else:  # the cores that a node gives the probe
            count_cores_argv = (plan.environment.python, "-c", "import os; print(len(os.sched_getaffinity(0)))")
            output = runtime.output(plan, count_cores_argv, {}, PEAK_TIMEOUT_SECONDS)
            cores = str(int(output.split()[-1]))  # a node may print before it
        argv += ["--threads", cores]
        probe_output = runtime.output(plan, argv, {"OMP_NUM_THREADS": cores}, PEAK_TIMEOUT_SECONDS)
        answer = json.loads(probe_output.splitlines()[-1])  # libraries may print before it
        peaks = _parse_peaks(answer, counters_before, _host_load_counters(plan))
    except (OSError, subprocess.SubprocessError, *_ANSWER_ERRORS) as error:
        return MeasuredPeaks(source=f"the probe failed: {type(error).__name__}", limits=_device_limits(plan))
    if _is_numpy_comparable(plan, peaks):
        best_tflops, conditions = peaks[NUMPY_DTYPE].tflops, peaks[NUMPY_DTYPE].measurement or PeakMeasurement(at="")
        peaks[NUMPY_DTYPE] = StoredPeak(
            best_tflops, conditions.model_copy(update={"numpy_ratio": best_tflops / measure_numpy_tflops()})
        )
    refusals = _refusal_reasons(plan, peaks)
    stored_peaks, now = _read_peak_file(plan, machine), datetime.now(timezone.utc)
    for dtype, peak in peaks.items():
        if dtype not in refusals and (dtype not in stored_peaks or is_better(peak.tflops, *stored_peaks[dtype], now)):
            stored_peaks[dtype] = peak
    content: dict[str, dict[str, Any]] = {dtype: {"tflops": peak.tflops} for dtype, peak in stored_peaks.items()}
    for dtype, peak in stored_peaks.items():
        if peak.measurement:
            content[dtype]["measurement"] = peak.measurement.model_dump(mode="json")
    store_text(_peak_file(plan, machine), json.dumps(content, indent=2) + "\n")
    if precision in refusals and precision not in stored_peaks:
        return MeasuredPeaks(source=refusals[precision], refusals=tuple(refusals.values()), limits=_device_limits(plan))
    if precision not in peaks:
        return MeasuredPeaks(source=f"the probe gave no {precision} rate", limits=_device_limits(plan))
    return replace(_peaks_per_device(plan, stored_peaks), refusals=tuple(refusals.values()))


def _peak_owner(plan: Plan, machine: str) -> str | None:
    """Return the name of the machine or nodes that have the stored peak; None where no probe can run on them."""
    return probed_nodes(plan, plan.launch) if plan.launch else machine


def _host_load_counters(plan: Plan) -> dict[str, Any] | None:
    """Return the load counters of this machine; None for a launcher, as they say nothing about its nodes."""
    return None if plan.launch else host_counters(ranks_are_children=plan.runtime != "docker")


def _other_cores(counters_before: dict[str, Any] | None, counters_after: dict[str, Any] | None) -> float | None:
    """Return how many cores other programs kept busy between two readings; None where that is not known."""
    if (
        not counters_before
        or not counters_after
        or counters_before["own_seconds"] is None
        or counters_after["own_seconds"] is None
    ):
        return None
    nanoseconds, busy_seconds, own_seconds = (
        counters_after[name] - counters_before[name] for name in ("time_ns", "busy_seconds", "own_seconds")
    )
    return max(0.0, busy_seconds - own_seconds) / (nanoseconds / 1e9) if nanoseconds > 0 else None


def _parse_peaks(
    answer: dict[str, dict[str, float]], counters_before: dict[str, Any] | None, counters_after: dict[str, Any] | None
) -> dict[str, StoredPeak]:
    """Return TFLOP/s by dtype, without rates that are NaN, infinite, zero or negative. Raises for other content."""
    now, cores = (
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        counters_after["cores"] if counters_after else None,
    )
    conditions, peaks = (
        PeakMeasurement(at=now, other_cores=_other_cores(counters_before, counters_after), cores=cores),
        {},
    )
    for dtype, best_tflops in [(dtype, float(fields["tflops"])) for dtype, fields in answer.items()]:
        if not (math.isfinite(best_tflops) and best_tflops > 0):
            continue
        # what the probe measured beside the rate; None for what it does not give
        median, ratio, repeats = (answer[dtype].get(name) for name in ("median", "onednn_over_mkl", "repeats"))
        is_valid_ratio = isinstance(ratio, (int, float)) and math.isfinite(ratio) and ratio > 0
        details = {
            "spread": 1 - median / best_tflops
            if isinstance(median, (int, float)) and 0 < median <= best_tflops
            else None,
            "repeats": repeats if isinstance(repeats, int) and repeats >= 1 else None,
            "onednn_over_mkl": ratio if is_valid_ratio else None,
        }
        peaks[dtype] = StoredPeak(best_tflops, conditions.model_copy(update=details))
    return peaks


def _refusal_reasons(plan: Plan, peaks: dict[str, StoredPeak]) -> dict[str, str]:
    """Return by dtype why a rate of the host's processors is no peak: they cannot multiply so fast, or numpy's own
    product is far faster. Other devices than this host's processors have no reason."""
    limits = _host_limits(plan)
    if not limits:
        return {}
    prefix = f"the probe of {plan.implementation.framework} {plan.implementation.version} is refused: it gave"
    processor = f"{usable_cores()} core(s) of this processor at {HIGHEST_HERTZ / 1e9:g} GHz"
    refusals = {
        dtype: f"{prefix} {peak.tflops:.3g} TFLOP/s in {dtype}, expected at most {limits[dtype]:.3g}: {processor}"
        for dtype, peak in peaks.items()
        if dtype in limits and not peak.tflops <= limits[dtype]
    }
    for dtype, peak in peaks.items():
        ratio = peak.measurement.numpy_ratio if peak.measurement else None
        if dtype not in refusals and ratio is not None and ratio < MIN_SHARE_OF_NUMPY:
            min_tflops = MIN_SHARE_OF_NUMPY * peak.tflops / ratio
            expected = f"expected at least {min_tflops:.3g}, {MIN_SHARE_OF_NUMPY:.0%} of numpy's product here"
            refusals[dtype] = f"{prefix} {peak.tflops:.3g} TFLOP/s in {dtype}, {expected}"
    return refusals


def _is_numpy_comparable(plan: Plan, peaks: Mapping[str, StoredPeak]) -> bool:
    """Return whether numpy and the probe multiplied on the same cores in the same precision."""
    return NUMPY_DTYPE in peaks and bool(_host_limits(plan)) and plan.runtime != "docker"


def _host_limits(plan: Plan) -> dict[str, float]:
    """Return what this machine's processors cannot exceed, in TFLOP/s by dtype; empty where the run has other devices:
    chips, or those of a launcher's nodes."""
    is_here = plan.hardware.is_host and not plan.launch
    return host_tflops_limits(usable_cores(), processor_flags()) if is_here else {}


def _device_limits(plan: Plan) -> dict[str, float]:
    """Return what a device of the plan cannot exceed, in TFLOP/s by dtype: its share of this host's processors."""
    return {dtype: limit / _sharing_devices(plan) for dtype, limit in _host_limits(plan).items()}


def _sharing_devices(plan: Plan) -> int:
    """Return how many devices share the cores that a probe measures."""
    devices_on_host = plan.hardware.devices_per_node if plan.launch else plan.world_size  # containers share one host
    return devices_on_host if plan.hardware.is_host or not plan.hardware.device_indices else 1


def measure_numpy_tflops() -> float:
    """Measure the best rate of numpy's float32 product of two square matrices on this machine, in TFLOP/s."""
    left, right = (np.ones((NUMPY_SIZE, NUMPY_SIZE), np.float32) for _ in range(2))
    return 2 * NUMPY_SIZE**3 / min(_measure_durations(lambda: np.matmul(left, right), NUMPY_SECONDS)) / 1e12


def delete_peaks(plan: Plan, machine: str) -> None:
    """Delete a measured peak that a run exceeded: the machine was busy, so the next run measures again."""
    _peak_file(plan, machine).unlink(missing_ok=True)


def _peaks_per_device(plan: Plan, peaks: dict[str, StoredPeak]) -> MeasuredPeaks:
    """Return the peaks per device. The devices of a host share its cores, and its peak is divided too."""
    device_count = _sharing_devices(plan)
    name = f"{plan.implementation.framework} {plan.implementation.version}"
    threads = "a node's" if plan.launch else usable_cores()
    return MeasuredPeaks(
        tflops={dtype: peak.tflops / device_count for dtype, peak in peaks.items()},
        source=f"best matmul rate of {name} with {threads} threads, divided by {device_count} device(s)",
        measurements={dtype: peak.measurement for dtype, peak in peaks.items() if peak.measurement},
        limits=_device_limits(plan),
    )


def _read_peak_file(plan: Plan, machine: str) -> dict[str, StoredPeak]:
    """Return the stored rates that are possible; none where the file is missing or damaged.

    An earlier version also stored impossible ones.
    """
    stored_peaks = {}
    try:
        for dtype, fields in json.loads(read_regular(_peak_file(plan, machine), "peak")).items():
            measurement = None  # the file of an earlier version has none
            if "measurement" in fields:
                measurement = PeakMeasurement.model_validate(fields["measurement"])
                if datetime.fromisoformat(measurement.at).tzinfo is None:  # no time that can be compared
                    return {}
            stored_peaks[dtype] = StoredPeak(float(fields["tflops"]), measurement)
    except (OSError, *_ANSWER_ERRORS):
        return {}
    limits = _host_limits(plan)
    return {
        dtype: peak for dtype, peak in stored_peaks.items() if 0 < peak.tflops <= limits.get(dtype, sys.float_info.max)
    }


def _peak_file(plan: Plan, machine: str) -> Path:
    software = (plan.implementation.framework, plan.implementation.version, plan.access.device, plan.runtime)
    owner = _peak_owner(plan, machine) or machine
    return _file_by_digest(own_cache() / "peaks", owner, plan.hardware.description, *software, str(usable_cores()))


def load_host_rates(registry: Registry) -> HostRates | None:
    """Return the stored rates of this machine; None where there are none, or the file is damaged."""
    try:
        return load(HostRates, _host_rates_file(registry))
    except DocumentError:
        return None


def measure_host_rates(registry: Registry, say: Say) -> HostRates:
    """Run the probe in torch's environment, store its rates and return them. All its processes are ended.

    Raises RunFailed without usable rates, and NotHere or UsageError where torch's environment cannot be made.
    """
    implementation, folder = registry.implementation("torch")
    packages = implementation.requirements[HOST_KIND].environment_packages()
    environment = plan_environment(implementation, HOST_KIND, packages, None, "process")
    arguments = ("--dtype", HOST_PRECISIONS, "--seconds", str(HOST_SECONDS))
    argv = [environment.python, str(folder / "host_rates.py"), *arguments]
    if not is_ready(environment):
        say(
            "the rates of this host are not known yet, and torch measures them. So its build for processors is "
            f"installed first, into {environment.folder} (about 1 GB); trainings by torch use it too"
        )
    with use_environment(environment, say):
        say("measuring matmul, memory and message rates of this machine, once (about a minute)")
        counters_before = host_counters(ranks_are_children=True)
        try:
            probe_output = command_output(argv, implementation.environment(HOST_KIND), HOST_TIMEOUT_SECONDS)
        except subprocess.CalledProcessError as error:
            last_line = (error.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise RunFailed(f"the probe of this host ended with exit status {error.returncode}: {last_line}") from None
        except subprocess.TimeoutExpired:
            limit = f"{HOST_TIMEOUT_SECONDS:g} s; run again on an idle machine"
            raise RunFailed(f"the probe of this host took more than {limit}") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise RunFailed(f"the probe of this host has no answer: {argv[0]}: {error}") from None
        other_cores = _other_cores(counters_before, host_counters(ranks_are_children=True))
        conditions = {"measured_at": datetime.now(timezone.utc).replace(microsecond=0), "other_cores": other_cores}
        rates = parse_host_rates(probe_output).model_copy(update=conditions)
    store_text(_host_rates_file(registry), dump(rates))
    return rates


def parse_host_rates(probe_output: str) -> HostRates:
    """Return the rates of the probe's last line, with fitted messages. Raises RunFailed, which names a wrong rate."""
    try:
        answer = json.loads(probe_output.splitlines()[-1])  # libraries may print before it
        content: dict[str, Any] = {
            "schema": HostRates.schema_name(),
            "machine": platform.node(),
            "torch": answer["torch"],
            "cores": answer["cores"],
            "shares": [],
        }
        for share in answer["shares"]:
            rates = {
                "processes": share["processes"],
                "threads": share["threads"],
                "matmul_flops_per_second": share["matmul"],
                "triad_bytes_per_second": share["triad"],
                "copy_bytes_per_second": share["copy"],
                "per_operation_seconds": share["operation"],
                "collectives": {},
            }
            for name, times in share["collectives"].items():
                seconds_by_bytes = {int(size): float(seconds) for size, seconds in times.items()}
                try:
                    alpha, rate = fit_messages(seconds_by_bytes)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}; run again on an idle machine") from None
                fitted = {"alpha_seconds": alpha, "bytes_per_second": rate, "seconds_by_bytes": seconds_by_bytes}
                rates["collectives"][name] = fitted
            content["shares"].append(rates)
        return parse(HostRates, content, "the probe of this host")
    except DocumentError as error:
        raise RunFailed(str(error)) from None
    except _ANSWER_ERRORS as error:
        raise RunFailed(f"the probe of this host: found no usable rates: {type(error).__name__}: {error}") from None


def _host_rates_file(registry: Registry) -> Path:
    version = registry.implementation("torch")[0].version
    return _file_by_digest(own_cache() / "hosts", platform.node(), version, str(usable_cores()))


def measure_control_rates(seconds: float = CONTROL_SECONDS) -> dict[str, float]:
    """Measure the host's rates: `matmul_flops_per_second` in float32 and `copy_bytes_per_second`.

    The work is a fixed product and a fixed copy by numpy. No build changes them, so a control out of line shows a
    change of the machine, and never a regression. No figure is divided by it.
    """
    left = np.ones((CONTROL_SIZE, CONTROL_SIZE), np.float32)
    source = np.ones(CONTROL_COPY_BYTES // 4, np.float32)
    product, target = np.empty_like(left), np.empty_like(source)
    product_seconds = _measure_durations(lambda: np.matmul(left, left, out=product), seconds)
    copy_seconds = _measure_durations(lambda: np.copyto(target, source), seconds)
    # the fastest tenth: a short pause is no property of the machine
    return {
        "matmul_flops_per_second": 2.0 * CONTROL_SIZE**3 / float(np.quantile(product_seconds, 0.1)),
        "copy_bytes_per_second": 2.0 * CONTROL_COPY_BYTES / float(np.quantile(copy_seconds, 0.1)),
    }
