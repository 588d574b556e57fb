"""The memory of this training process, for frameworks and devices that have no counters of their own."""

from __future__ import annotations

import resource
import sys

_KIBIBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def process_memory(allocated: int | None = None, reserved: int | None = None) -> dict[str, int | None]:
    """Return the memory field of Recorder.step: peaks since the start, in bytes.

    allocated, reserved: the framework's own counters; None where it has none, as on most processors.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE
    return {"allocated_peak_bytes": allocated, "reserved_peak_bytes": reserved, "process_peak_bytes": peak}
