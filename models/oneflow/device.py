"""The device of this rank; what the framework says of itself and of its memory."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

import oneflow as flow

if TYPE_CHECKING:
    from levelfield.worker.job import Job

KIBIBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def memory() -> dict[str, int | None]:
    """Return peaks since the start, in bytes: the process's own; OneFlow 0.9 has no counters of its tensors' memory."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    return {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": process}


def describe(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the device's name, and details of the build."""
    name = "cpu" if job.device == "cpu" else flow.cuda.get_device_name(job.local_rank)
    details = {
        "build": flow.__git_commit__,
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
    }
    return name, details
