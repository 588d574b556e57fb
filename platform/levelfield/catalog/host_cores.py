"""The processor cores of this host that the platform may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores that the operating system allows this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
