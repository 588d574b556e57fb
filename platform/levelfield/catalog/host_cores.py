"""The processor cores of this host that the platform may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from levelfield.node.control_groups import HOST, core_quota


def usable_cores(root: Path = HOST) -> int:
    """Return the cores that the operating system allows this process: its affinity, and its control groups' quota.

    A quota of part of a core counts as a core: it pays for that part of the time of one more thread.
    """
    quota = core_quota(root)
    return allowed_cores() if quota is None else max(1, min(allowed_cores(), math.ceil(quota)))


def allowed_cores() -> int:
    """Return the cores of this process's affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
