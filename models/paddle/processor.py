"""What Paddle's mathematical library needs to know of the processor, before Paddle is imported."""

from __future__ import annotations

import os
from pathlib import Path


def processor_environment() -> dict[str, str]:
    """Return the variables that have MKL take fast kernels on AMD's processors.

    The MKL in Paddle's packages takes its slowest kernels there; type 5 means those for AVX2.
    On an EPYC, with one thread, products of float32 were 2.2 times as fast with them.
    """
    try:
        is_amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        is_amd = False
    return {"MKL_DEBUG_CPU_TYPE": os.environ.get("MKL_DEBUG_CPU_TYPE", "5")} if is_amd else {}
