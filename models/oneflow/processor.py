"""What OneFlow's mathematical library needs to know of the processor, before OneFlow is imported."""

from __future__ import annotations

import os
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo")


def choose_products() -> None:
    """Have the OpenBLAS in OneFlow's packages take its kernels for AVX2 on AMD's processors.

    It is of 2022, and on newer ones takes those of 2007: with one thread of an EPYC, products of float32 were half
    as fast. Whoever sets the variable has chosen.
    """
    try:
        description = PROCESSOR.read_text()
    except OSError:
        return
    if "AuthenticAMD" in description and " avx2 " in description:
        os.environ.setdefault("OPENBLAS_CORETYPE", "Zen")
