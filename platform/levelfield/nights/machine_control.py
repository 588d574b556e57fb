"""Controls a machine: measures two rates of the host, and compares them with those of earlier nights.

The band is the median less four robust standard deviations (1.4826 times the median absolute deviation), at least 5 %.
Only slower counts. The values lie in the user's cache, because they belong to the machine and not to a store.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

from levelfield.node.regular_files import read_regular
from levelfield.run.measurement import measure_control_rates, store_text
from levelfield.user_folders import own_cache

MIN_CONTROL_NIGHTS = 7  # with fewer there is no band
MAX_CONTROL_NIGHTS = 200  # so many are stored
MAX_MEASUREMENTS, PAUSE_SECONDS = 4, 10.0
# The width of the band below the median: at least this share of it, and in robust standard deviations.
MIN_BAND = 0.05
DEVIATIONS = 4.0
Rates = Mapping[str, float]


def slow_machine_reason() -> str | None:
    """Measure this machine, store its rates, and return why it is out of line; None where it is in line."""
    path, rates = control_file(platform.node()), measure_control_rates()
    earlier_rates = read_controls(path)
    for _ in range(MAX_MEASUREMENTS - 1):  # a short dip is not the machine
        if slow_rate_reason(earlier_rates, rates):
            time.sleep(PAUSE_SECONDS)
            repeated = measure_control_rates()
            rates = {name: max(rate, repeated[name]) for name, rate in rates.items()}
    store_control(path, rates)
    return slow_rate_reason(earlier_rates, rates)


def slow_rate_reason(earlier_rates: Sequence[Rates], tonight_rates: Rates) -> str | None:
    """Return a sentence when a rate of tonight lies below the band of earlier nights; None when all lie within."""
    for name, rate in tonight_rates.items():
        positive = [rates[name] for rates in earlier_rates if rates.get(name, 0) > 0]
        if len(positive) < MIN_CONTROL_NIGHTS:
            continue
        middle = median(positive)
        deviation = 1.4826 * median(abs(value - middle) for value in positive) / middle
        tolerance = max(MIN_BAND, DEVIATIONS * deviation)
        if not rate >= middle * (1 - tolerance):
            return (
                f"the control {name} is {1 - rate / middle:.1%} below the median of {len(positive)} nights; "
                f"at most {tolerance:.1%} is in line"
            )
    return None


def control_file(node: str) -> Path:
    """Return the file of a machine's controls. node: its name."""
    return own_cache() / "controls" / f"{hashlib.sha256(node.encode()).hexdigest()[:24]}.jsonl"


def read_controls(path: Path) -> list[dict[str, float]]:
    """Return the rates of earlier nights, the oldest first. Damaged lines are left out."""
    try:
        lines = read_regular(path, "controls").decode().splitlines()
    except (OSError, ValueError):
        return []
    nights = []
    for line in lines[-MAX_CONTROL_NIGHTS:]:
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            rates = json.loads(line).items()
            nights.append({str(name): float(rate) for name, rate in rates if math.isfinite(rate) and rate > 0})
    return [rates for rates in nights if rates]


def store_control(path: Path, rates: Rates) -> None:
    """Add tonight's rates. Where they cannot be stored, the next night has one value less."""
    lines = [json.dumps(rates) for rates in (*read_controls(path), dict(rates))][-MAX_CONTROL_NIGHTS:]
    store_text(path, "\n".join(lines) + "\n")
