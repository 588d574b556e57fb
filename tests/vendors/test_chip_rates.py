"""What vendor.yaml says of links and of reached rates: counted as said, never above the peak, each with its source."""

from __future__ import annotations

from typing import Any

import pytest
from adapters import load_spec
from levelfield.errors import DocumentError
from levelfield.specs.base import parse
from levelfield.specs.vendor import Chip

LINK = {
    "description": "Link 4 to a switch",
    "each_way_bytes_per_second": 4.5e11,
    "bytes_per_second": 9e11,
    "source_counts": "both ways",
    "source": "a datasheet",
}
PEAKS = {"bf16": {"tflops": 100, "source": "a datasheet"}}


def chip_of(**fields: Any) -> Chip:
    return parse(Chip, {"name": "X", "device_is": "card", **fields}, "chip")


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in LINK.items() if name != key}


def test_a_link_is_the_same_however_its_source_counts() -> None:
    both = chip_of(interconnect=LINK).interconnect
    one = chip_of(interconnect={**LINK, "bytes_per_second": 4.5e11, "source_counts": "each way"}).interconnect
    assert both and one and both.each_way_bytes_per_second == one.each_way_bytes_per_second == 4.5e11


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (without("source"), "'interconnect.source': missing"),
        (without("description"), "'interconnect.description': missing"),
        (without("source_counts"), "source_counts: missing; write whether bytes_per_second counts"),
        ({**LINK, "source_counts": "each way"}, "bytes_per_second: found 9e+11, expected 4.5e+11"),
        ({**LINK, "bytes_per_second": 4.5e11}, "bytes_per_second: found 4.5e+11, expected 9e+11"),
        ({**LINK, "bytes_per_second": 7.2e12}, "bytes_per_second: found 7.2e+12, expected 9e+11"),
        ({**LINK, "source_counts": "sideways"}, "'interconnect.source_counts': found 'sideways'"),
        ({**LINK, "each_way_bytes_per_second": 0}, "'interconnect.each_way_bytes_per_second': found 0"),
        ({**LINK, "each_way_bytes_per_second": -1}, "'interconnect.each_way_bytes_per_second': found -1"),
        ({**LINK, "each_way_bytes_per_second": float("nan")}, "'interconnect.each_way_bytes_per_second': found nan"),
        ({**LINK, "pair_each_way_bytes_per_second": 4.5e11}, "leave it out where a pair has all links"),
        ({**LINK, "pair_each_way_bytes_per_second": 6e11}, "expected less than each_way_bytes_per_second (4.5e+11)"),
        ({**without("each_way_bytes_per_second"), "pair_each_way_bytes_per_second": 1e9},
         "expected less than each_way_bytes_per_second (absent)"),
    ],
)  # fmt: skip
def test_a_link_that_is_ambiguous_or_contradicts_itself_is_refused(link: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        chip_of(interconnect=link)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("reached", "message"),
    [
        ({"tflops": 100.1, "source": "a bench"}, "achievable.bf16.tflops: found 100.1, expected at most the peak, 100"),
        ({"tflops": 200, "source": "with sparsity"}, "compare units, sparsity and chip of both sources"),
        ({"tflops": 80}, "'achievable.bf16.source': missing"),
        ({"tflops": float("nan"), "source": "a bench"}, "'achievable.bf16.tflops': found nan"),
        ({"tflops": 0, "source": "a bench"}, "'achievable.bf16.tflops': found 0"),
        ({"tflops": -3, "source": "a bench"}, "'achievable.bf16.tflops': found -3"),
    ],
)
def test_a_rate_that_cannot_be_reached_is_refused(reached: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError) as refusal:
        chip_of(peaks=PEAKS, achievable={"bf16": reached})
    assert message in str(refusal.value)


def test_a_rate_is_held_against_the_peak_of_its_own_dtype() -> None:
    chip = chip_of(peaks=PEAKS, achievable={"fp8": {"tflops": 150, "source": "a bench"}})
    assert chip.achievable["fp8"].tflops == 150


@pytest.mark.parametrize(
    ("vendor", "name", "each_way", "pair"),
    [
        ("nvidia", "V100-SXM2-16GB", 6 * 25e9, 25e9),
        ("nvidia", "A100-SXM4-40GB", 12 * 25e9, None),
        ("nvidia", "A100-SXM4-80GB", 12 * 25e9, None),
        ("nvidia", "A800-SXM4-80GB", 200e9, None),
        ("nvidia", "H100-SXM5-80GB", 18 * 25e9, None),
        ("nvidia", "H200-SXM-141GB", 18 * 25e9, None),
        ("amd", "MI300X", 7 * 64e9, 64e9),
        ("amd", "MI325X", 7 * 64e9, 64e9),
        ("intel", "Gaudi3", 21 * 200e9 / 8, 3 * 200e9 / 8),
        ("intel", "Gaudi2", 21 * 100e9 / 8, 3 * 100e9 / 8),
    ],
)
def test_a_rate_is_the_number_of_links_times_one_way(
    vendor: str, name: str, each_way: float, pair: float | None
) -> None:
    chip = load_spec(vendor).chip(name)
    assert chip is not None and chip.interconnect is not None
    assert chip.interconnect.each_way_bytes_per_second == each_way
    assert chip.interconnect.pair_each_way_bytes_per_second == pair
