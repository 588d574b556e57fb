"""The device of this rank; what the framework says of itself and of its memory."""

import os
import resource
import sys

import oneflow as flow

KIBIBYTE = 1 if sys.platform == "darwin" else 1024  # what ru_maxrss counts in


def memory():
    """Peaks since the start, in bytes: the process's own; OneFlow 0.9 has no counters of its tensors' memory."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
    return {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": process}


def describe(job):
    """The device's name, and details of the build."""
    name = "cpu" if job.device == "cpu" else flow.cuda.get_device_name(job.local_rank)
    details = {
        "build": flow.__git_commit__,
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or None,
    }
    return name, details
