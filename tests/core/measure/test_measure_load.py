"""The devices' mean utilisation over the window: of every device, and only of the window."""

from __future__ import annotations

import math

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.raw_facts import Reading, mean_load
from levelfield.specs.paths import RunPaths
from recorded_runs import edit


def reading(device: str, time_ns: int, load: float | None, before: bool = False) -> Reading:
    return Reading(device=device, time_ns=time_ns, utilisation=load, before=before)


READINGS = [
    reading("0", 5, 0.1),  # before the window
    reading("0", 10, 1.0),
    reading("0", 20, 0.5),
    reading("0", 15, 0.0, before=True),
    reading("1", 12, 0.25),
    reading("1", 18, None),
    reading("1", 31, 0.9),  # after it
    reading("2", 15, 1.0),  # of another run
]


def test_the_mean_of_the_devices_means() -> None:
    assert mean_load(READINGS, ["0", "1"], 10, 30) == pytest.approx((0.75 + 0.25) / 2)
    assert mean_load(READINGS, ["0"], 20, 20) == 0.5


@pytest.mark.parametrize(
    ("more", "devices", "why"),
    [
        ([], ["0", "3"], "device 3: no reading in the window"),
        ([reading("1", 15, math.nan)], ["1"], "device 1: a reading outside of 0 to 1"),
        ([reading("0", 15, 95.0)], ["0", "1"], "device 0: a reading outside of 0 to 1"),  # percent for a share
        ([reading("0", 15, -0.1)], ["0"], "device 0: a reading outside of 0 to 1"),
        ([], [], "no device"),
    ],
)
def test_no_mean_has_a_reason(more: list[Reading], devices: list[str], why: str) -> None:
    assert mean_load([*READINGS, *more], devices, 10, 30) == why


def test_a_run_s_result_has_it(run: RunPaths) -> None:
    found = collect(run).load
    assert found and found.value is None and found.reason == "device 0: no reading in the window"

    def used(events: list[dict]) -> list[dict]:
        samples = [sample for event in events for sample in event["samples"]]
        for sample in samples:
            sample["utilisation"] = 0.5 + 0.25 * int(sample["index"])
        return events

    edit(run.telemetry, used)
    found = collect(run).load
    assert found and found.value == pytest.approx(0.625)
