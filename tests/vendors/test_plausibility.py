"""Values that cannot be right on a device: the limits, from both sides."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from adapters import load_spec
from levelfield.contracts.readings import (
    memory_fault,
    plausible_sample,
    plausible_samples,
    whole_devices,
)
from levelfield.contracts.vendor import Device, DeviceList, Sample

SPEC, HOST = load_spec("nvidia"), load_spec("cpu")
H100 = SPEC.chip("H100")
BYTES = 80 * 2**30
DEVICE = Device(0, "H100-SXM5-80GB", "NVIDIA H100 80GB HBM3", 81559 * 2**20)


@pytest.mark.parametrize(
    ("memory", "is_right"),
    [
        (BYTES, True),
        (81559 * 2**20, True),  # as nvidia-smi prints it
        (round(BYTES * 0.971), True),
        (round(BYTES * 0.969), False),
        (round(BYTES * 1.031), False),
        (81559 * 10**6, False),  # MiB read as MB
        (81559, False),
        (None, True),
    ],
)
def test_the_tools_memory_is_within_three_per_cent_of_the_chips(memory: int | None, is_right: bool) -> None:
    device = replace(DEVICE, memory_bytes=memory)
    assert (memory_fault(device, H100) is None) is is_right
    listing = whole_devices(SPEC, DeviceList([device]))
    assert list(listing) == [device] and (listing.problem is None) is is_right
    sample = plausible_sample(SPEC, device, Sample(0, memory_used_bytes=7))
    assert (sample.memory_used_bytes == 7) is is_right and bool(sample.reasons) is not is_right


def test_an_unknown_chip_is_held_to_nothing() -> None:
    assert memory_fault(replace(DEVICE, chip=None, memory_bytes=5), None) is None
    assert whole_devices(SPEC, DeviceList([replace(DEVICE, chip=None, memory_bytes=5)])).problem is None


def test_a_problem_of_the_tool_and_a_wrong_memory_are_both_named() -> None:
    problem = "device 1: lost"
    listing = whole_devices(SPEC, DeviceList([replace(DEVICE, memory_bytes=5)], problem))
    assert re.match(rf"{problem}; device 0:.*\b5 bytes.*\bH100", listing.problem or "")


@pytest.mark.parametrize(
    ("watts", "is_right", "is_right_of_h100"),
    [(0, False, False), (0.5, False, False), (3.52, True, False), (6.9, True, False), (7, True, True)],
)
def test_an_accelerator_draws_some_watts_and_a_share_of_a_host_may_draw_none(
    watts: float, is_right: bool, is_right_of_h100: bool
) -> None:
    """An idle GeForce draws 3.52 W. Of a chip of 700 W so little is another unit."""
    sample = Sample(0, power_watts=watts)
    assert (plausible_sample(SPEC, DEVICE, sample).power_watts is not None) is is_right_of_h100
    assert (plausible_sample(SPEC, replace(DEVICE, chip=None), sample).power_watts is not None) is is_right
    assert plausible_sample(HOST, replace(DEVICE, chip="cpu"), sample) == sample


def test_a_power_that_is_no_number_is_none() -> None:
    assert plausible_sample(SPEC, DEVICE, Sample(0, power_watts=math.nan)).power_watts is None


def test_memory_in_use_is_at_most_what_there_is() -> None:
    whole = Sample(0, memory_used_bytes=81559 * 2**20)
    assert plausible_sample(SPEC, DEVICE, whole) is whole
    above = plausible_sample(SPEC, DEVICE, replace(whole, memory_used_bytes=81559 * 2**20 + 1))
    assert above.memory_used_bytes is None and str(DEVICE.memory_bytes) in above.reasons["memory_used_bytes"]


def test_without_a_total_of_the_tool_the_chips_memory_is_the_limit() -> None:
    silent = replace(DEVICE, memory_bytes=None)
    right, above = Sample(0, memory_used_bytes=BYTES), Sample(0, memory_used_bytes=round(BYTES * 1.04))
    assert plausible_sample(SPEC, silent, right) is right
    sample = plausible_sample(SPEC, silent, above)
    assert sample.memory_used_bytes is None
    assert re.search(rf"\b{BYTES}\b.*\bH100-SXM5-80GB", sample.reasons["memory_used_bytes"])
    assert plausible_sample(SPEC, replace(silent, chip=None), above) is above


def test_reasons_of_the_tool_stay() -> None:
    sample = Sample(0, power_watts=0.0, reasons={"energy_joules": "no counter"})
    reasons = dict(plausible_sample(SPEC, DEVICE, sample).reasons)
    assert re.search(r"\b0 W,.*\b7 W", reasons.pop("power_watts"))
    assert reasons == sample.reasons


class Repeating:
    """An adapter that gives a second sample of a device."""

    spec = SPEC

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        return [Sample(d.index, power_watts=watts) for d in devices for watts in (300.0, 60.0)]


def test_several_samples_of_one_device_are_none() -> None:
    reading = plausible_samples(Repeating(), [DEVICE])  # type: ignore[arg-type]
    assert reading == {"samples": [], "error": "found several samples of device 0, expected one"}
