"""A step that an H100 took: gpt2_small at full scale by torch 2.11 on one device, cut to what is read of the record.

It was recorded on 2026-11-27 (docs/verified/chip.md). Only its arguments that no reader uses were left out.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.explain.step_division import RankLayout, divide_waits, rank_parts
from levelfield.measure.step_timeline import build_timeline
from levelfield.specs.short_names import short_kernel

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))


def parts_of(trace: Any) -> dict[str, float]:
    layout = RankLayout(1, is_plain=True)
    (parts,) = rank_parts([divide_waits({0: build_timeline(trace)}, layout)], layout)
    return {part.part: part.time.mean for part in parts.parts}


def test_every_kernel_of_the_chip_is_in_a_part() -> None:
    trace = recorded("h100_gpt2_small_step")
    line = build_timeline(trace)
    assert line.has_device
    on_device = [event for event in trace["traceEvents"] if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert len(line.kernels) == len(on_device)
    parts = parts_of(trace)
    assert sum(parts.values()) == pytest.approx(line.ms, rel=1e-9)
    assert parts["unexplained"] < 0.001 * line.ms
    longest = max((name for name in parts if name not in ("host", "input")), key=lambda name: parts[name])
    assert longest == "head and loss"
    assert parts[longest] == pytest.approx(44.66, abs=0.01)


def test_kernels_whose_time_was_lost_are_refused() -> None:
    with pytest.raises(ValueError, match="40 kernels"):
        build_timeline(recorded("h100_lost_kernels"))


def test_a_kernel_has_a_short_name() -> None:
    name = (
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, "
        "TrivialOffsetCalculator<2, unsigned int> >(int, at::native::CUDAFunctor_add<float>)"
    )
    assert short_kernel(name) == "unrolled_elementwise_kernel<CUDAFunctor_add<float>, array..."
    assert (
        short_kernel("nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_NTT")
        == "nvjet_sm90_hsh_192x128_64x5_1x2_h_bz_coopB_NTT"
    )
