"""A step that an H100 took: gpt2_small at full scale by torch 2.11 on one device, cut to what is read of the record.

It was recorded on 2026-11-27 (docs/verified/chip.md). Only its arguments that no reader uses were left out.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.explain.step_division import RankLayout, divided, rank_parts
from levelfield.measure.step_timeline import timeline
from levelfield.specs.short_names import short_kernel

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))


def parts_of(trace: Any) -> dict[str, float]:
    layout = RankLayout(1, is_plain=True)
    (parts,) = rank_parts([divided({0: timeline(trace)}, layout)], layout)
    return {each.part: each.time.mean for each in parts.parts}


def test_every_kernel_of_the_chip_is_in_a_part():
    trace = recorded("h100_gpt2_small_step")
    found = timeline(trace)
    assert found.has_device and len(found.kernels) == sum(
        e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") for e in trace["traceEvents"]
    )
    parts = parts_of(trace)
    assert sum(parts.values()) == pytest.approx(found.ms, rel=1e-9)
    assert parts["unexplained"] < 0.001 * found.ms
    busy = {name: ms for name, ms in parts.items() if name not in ("host", "input")}
    assert max(busy, key=lambda name: busy[name]) == "head and loss"
    assert parts["head and loss"] == pytest.approx(44.66, abs=0.01)


def test_kernels_whose_time_was_lost_are_refused():
    with pytest.raises(ValueError, match="found 40 kernels of the device without a time"):
        timeline(recorded("h100_lost_kernels"))


def test_a_kernel_has_a_short_name():
    name = (
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, "
        "TrivialOffsetCalculator<2, unsigned int> >(int, at::native::CUDAFunctor_add<float>)"
    )
    assert short_kernel(name) == "unrolled_elementwise_kernel<CUDAFunctor_add<float>, array..."
    assert (
        short_kernel("nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_NTT")
        == "nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_NTT"
    )
