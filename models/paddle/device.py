"""The device of this rank; what the framework says of itself and of its memory."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

import paddle

if TYPE_CHECKING:
    from levelfield.worker.job import Job

KIBIBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def open_device(job: Job) -> None:
    """Make this rank's device the current one."""
    paddle.set_device("cpu" if job.device == "cpu" else f"{job.device}:{job.local_rank}")


def memory(job: Job) -> dict[str, int | None]:
    """Return peaks since the start, in bytes: the framework's, which the cpu does not count, and the process's."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    if job.device == "cpu":
        return {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": process}
    # XPUs and the devices of plugins count in modules of their own
    counters = paddle.device.cuda if job.device == "gpu" else paddle.device.get_device_module(job.device)
    return {
        "allocated_peak_bytes": counters.max_memory_allocated(),
        "reserved_peak_bytes": counters.max_memory_reserved(),
        "process_peak_bytes": process,
    }


def describe(job: Job) -> tuple[str, dict[str, Any]]:
    """Return the device's name, and details of the build."""
    name = paddle.device.cuda.get_device_name() if job.device == "gpu" else job.device
    details = {
        "build": f"{paddle.version.full_version} {paddle.version.commit}",
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
        "cuda": paddle.version.cuda() if paddle.is_compiled_with_cuda() else None,
        "mkl_cpu_type": os.environ.get("MKL_DEBUG_CPU_TYPE"),
    }
    return name, details
