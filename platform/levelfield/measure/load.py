"""The mean utilisation of the devices over the window, as the vendor's tool reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from levelfield.measure.raw_facts import Reading


def mean_load(readings: Iterable[Reading], devices: Sequence[str], begin_ns: int, end_ns: int) -> float | str:
    """Return the mean over the devices of each one's mean in the window, 0 to 1; or the reason why there is none.

    It is what the tool calls utilisation: the share of time in which the device did anything. A device without a
    reading has no mean, so that idle devices are not left out.
    """
    inside = [r for r in readings if not r.before and begin_ns <= r.time_ns <= end_ns]
    means = []
    for device in devices:
        found = [r.utilisation for r in inside if r.device == device and r.utilisation is not None]
        if not found or not all(0 <= value <= 1 for value in found):
            return f"device {device}: {'a reading outside of 0 to 1' if found else 'no reading in the window'}"
        means.append(sum(found) / len(found))
    return sum(means) / len(means) if means else "no device"
