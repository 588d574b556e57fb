"""Rates of this host with torch, measured once per machine, version of torch and number of cores.

Predictions for vendor cpu need them: nobody publishes them. A busy machine gives rates that are too low, so they can
be measured again.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from levelfield.catalog.host_cores import usable_cores
from levelfield.catalog.registry import Registry
from levelfield.contracts.command import completed
from levelfield.errors import DocumentError, RunFailed
from levelfield.plan.environment import environment_of
from levelfield.predict.machines import fit_messages
from levelfield.run.peak_probe import cache_folder
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.run.runtimes.process_runtime import inherited
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump, load, parse
from levelfield.specs.host_rates import HostRates
from levelfield.specs.vendor import HOST_KIND

PRECISIONS = "fp32,bf16"
SECONDS_PER_SIZE = 0.1
LIMIT_SECONDS = 300.0


def known_host_rates(registry: Registry) -> HostRates | None:
    """Return the stored rates of this machine; None where there are none, or the file is damaged."""
    try:
        return load(HostRates, _path(registry))
    except DocumentError:
        return None


def measure_host_rates(registry: Registry, say: Callable[[str], None]) -> HostRates:
    """Run the probe in torch's environment, store its rates and return them.

    Raises RunFailed without usable rates, and NotHere or UsageError where torch's environment cannot be made.
    """
    implementation, folder = registry.implementation("torch")
    stages = implementation.requirements[HOST_KIND].stages()
    environment = environment_of(implementation, HOST_KIND, stages, None, "process")
    argv = [environment.python, str(folder / "host_rates.py")]
    argv += ["--dtype", PRECISIONS, "--seconds", str(SECONDS_PER_SIZE)]
    with environment_in_use(environment, say):
        say("measuring matrix products, memory and messages of this machine, once (about a minute)")
        rates = rates_from(_printed(argv, implementation.environment(HOST_KIND)))
    _remember(_path(registry), rates)
    return rates


def rates_from(printed: str) -> HostRates:
    """Return the rates of the probe's last line, with fitted messages. Raises RunFailed, which names a wrong rate."""
    try:
        found = json.loads(printed.splitlines()[-1])
        content = {
            "schema": HostRates.schema_name(),
            "machine": platform.node(),
            "torch": found["torch"],
            "cores": found["cores"],
            "shares": [_share(share) for share in found["shares"]],
        }
        return parse(HostRates, content, "the probe of this host")
    except DocumentError as error:
        raise RunFailed(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RunFailed(f"the probe of this host: found no usable rates: {type(error).__name__}: {error}") from None


def _share(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "processes": found["processes"],
        "threads": found["threads"],
        "matmul_flops_per_second": found["matmul"],
        "triad_bytes_per_second": found["triad"],
        "copy_bytes_per_second": found["copy"],
        "per_operation_seconds": found["operation"],
        "collectives": {name: _fitted(name, times) for name, times in found["collectives"].items()},
    }


def _fitted(name: str, times: Mapping[str, float]) -> dict[str, Any]:
    seconds_by_bytes = {int(size): float(seconds) for size, seconds in times.items()}
    try:
        alpha, rate = fit_messages(seconds_by_bytes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; run again on an idle machine") from None
    return {"alpha_seconds": alpha, "bytes_per_second": rate, "seconds_by_bytes": seconds_by_bytes}


def _printed(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the output of the probe. All its processes are ended, also after an error."""
    try:
        done = completed(argv, LIMIT_SECONDS, {**inherited(), **environment})
    except subprocess.SubprocessError:
        raise RunFailed(
            f"the probe of this host took more than {LIMIT_SECONDS:g} s; run again on an idle machine"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RunFailed(f"the probe of this host ended with exit status {done.returncode}: {last}")
    return done.stdout


def _remember(path: Path, rates: HostRates) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump(rates))
    except OSError:
        return  # without a stored file the next command measures again


def _path(registry: Registry) -> Path:
    version = registry.implementation("torch")[0].version
    parts = (platform.node(), version, str(usable_cores()))
    return cache_folder().parent / "hosts" / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16] + ".json")
