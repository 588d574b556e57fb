"""The achievable matmul peak of this machine, measured once per machine, framework and number of threads.

Output marks it `measured`: it is the rate of this software on this chip, not the chip's own peak.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from levelfield.catalog.host_cores import usable_cores
from levelfield.contracts.execution import ReadyRuntime
from levelfield.plan.peak import MeasuredPeaks
from levelfield.rundir.directory import write_atomically
from levelfield.specs.plan import Plan

SECONDS_PER_DTYPE = 3.0
LIMIT_SECONDS = 180.0


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "levelfield" / "peaks"


def known_peaks(plan: Plan, machine: str) -> MeasuredPeaks:
    """Return the stored peaks of this machine, framework and device; empty without an earlier probe."""
    found = _known(_path(plan, machine))
    return _measured(plan, found) if found else MeasuredPeaks()


def measure_peaks(plan: Plan, machine: str, runtime: ReadyRuntime, say: Callable[[str], None]) -> MeasuredPeaks:
    """Run the implementation's probe, store its rates and return them, or no rates and the reason."""
    precision = plan.work.training.precision
    if not plan.implementation.peak_probe:
        return MeasuredPeaks(how=f"{plan.implementation.framework} has no probe")
    say(f"measuring this machine's {precision} matmul peak, once ({SECONDS_PER_DTYPE:g} s)")
    try:
        argv = [*_argv(plan), "--dtype", precision, "--seconds", str(SECONDS_PER_DTYPE)]
        printed = runtime.output(plan, argv, {"OMP_NUM_THREADS": str(usable_cores())}, LIMIT_SECONDS)
        peaks = _peaks(json.loads(printed.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return MeasuredPeaks(how=f"the probe failed: {type(error).__name__}")
    _remember(_path(plan, machine), peaks)
    return _measured(plan, peaks) if precision in peaks else MeasuredPeaks(how=f"the probe gave no {precision} rate")


def _peaks(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return TFLOP/s by dtype, without rates that are NaN, infinite, zero or negative. Raises for other content."""
    values = {dtype: float(answer["tflops"]) for dtype, answer in found.items()}
    return {dtype: value for dtype, value in values.items() if math.isfinite(value) and value > 0}


def forget_peaks(plan: Plan, machine: str) -> None:
    """Delete a measured peak that a run exceeded: the machine was busy, so the next run measures again."""
    _path(plan, machine).unlink(missing_ok=True)


def _argv(plan: Plan) -> list[str]:
    values = {"python": plan.environment.python, "folder": plan.implementation.folder}
    argv = [text.format_map(values) for text in plan.implementation.peak_probe]
    return [*argv, "--device", plan.access.device, "--threads", str(usable_cores())]


def _measured(plan: Plan, peaks: dict[str, float]) -> MeasuredPeaks:
    """Return the peaks per device. A host that is divided into shares has its peak divided too."""
    shares = 1 if plan.hardware.device_indices else plan.world_size
    name = f"{plan.implementation.framework} {plan.implementation.version}"
    how = f"best matmul rate of {name} with {usable_cores()} threads, divided by {shares} device(s)"
    return MeasuredPeaks(tflops={dtype: value / shares for dtype, value in peaks.items()}, how=how)


def _remember(path: Path, peaks: dict[str, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {dtype: {"tflops": value} for dtype, value in {**_known(path), **peaks}.items()}
        write_atomically(path, json.dumps(kept, indent=2) + "\n")
    except OSError:
        return  # without a cache the next run measures again


def _known(path: Path) -> dict[str, float]:
    """Return the stored rates; none where the file is missing or damaged."""
    try:
        return _peaks(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _path(plan: Plan, machine: str) -> Path:
    parts = (
        machine,
        plan.hardware.description,
        plan.implementation.framework,
        plan.implementation.version,
        plan.access.device,
        plan.runtime,
        str(usable_cores()),
    )
    return cache_folder() / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] + ".json")
