"""What Paddle's mathematical library needs to know of the processor, before Paddle is imported."""

import os
from pathlib import Path


def processor_environment():
    """On AMD's processors the MKL in Paddle's packages takes its slowest kernels; type 5 means those for AVX2.

    On an EPYC, with one thread, products of float32 were 2.2 times as fast with them.
    """
    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        amd = False
    return {"MKL_DEBUG_CPU_TYPE": os.environ.get("MKL_DEBUG_CPU_TYPE", "5")} if amd else {}
