"""What is used of a machine: by others, with limits from both sides; and the mean utilisation over the window."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.device_use import is_used_by_others
from levelfield.measure.other_use import HostUse, host_use, processor_seconds
from levelfield.measure.raw_facts import HostReading, Reading, mean_load
from levelfield.specs.paths import RunPaths
from recorded_runs import Event, change_lines

SECOND = 10**9
GIB = 2**30


@pytest.mark.parametrize(
    ("used", "memory", "load", "expected"),
    [
        (8 * GIB, 80 * GIB, 0.10, False),
        (8 * GIB + 1, 80 * GIB, 0.0, True),
        (0, 80 * GIB, 0.11, True),
        (3453 * 2**20, 64 * GIB, 0.0, False),  # an idle Ascend of the recordings
        (None, 80 * GIB, 0.97, True),
        (60 * GIB, 80 * GIB, None, True),
        (60 * GIB, None, 0.0, False),  # of unknown memory, so the load decides
        (None, None, None, None),
        (60 * GIB, None, None, None),
        (0, 80 * GIB, float("nan"), True),
    ],
)
def test_a_device_is_in_use_above_a_tenth(
    used: int | None, memory: int | None, load: float | None, expected: bool | None
) -> None:
    assert is_used_by_others(used, memory, load) is expected


def counted(busy: float, own_cores: float | None, seconds: int = 11, cores: int = 2) -> list[HostReading]:
    """One reading a second of cores that are kept busy evenly."""
    return [
        HostReading(k * SECOND, 500 + busy * k, None if own_cores is None else 7 + own_cores * k, cores)
        for k in range(seconds)
    ]


def over(readings: list[HostReading], first: float = 1, last: float = 9) -> HostUse:
    return host_use(readings, round(first * SECOND), round(last * SECOND))


def test_the_use_of_others_is_all_use_without_ones_own() -> None:
    use = over(counted(1.9, 1.5))
    assert use.other_cores == pytest.approx(0.4) and (use.cores, use.reason) == (2, None)
    assert use.is_noticeable and use.limit == pytest.approx(0.2)


@pytest.mark.parametrize(("others", "noticeable"), [(0.0, False), (0.19, False), (0.21, True), (2.0, True)])
def test_a_tenth_of_the_cores_is_noticeable(others: float, noticeable: bool) -> None:
    assert over(counted(1.0 + others, 1.0)).is_noticeable is noticeable
    assert over(counted(1.0 + others, 1.0, cores=128)).is_noticeable is False


def test_only_the_window_counts() -> None:
    quiet = counted(1.0, 1.0)
    loud = [
        r if r.time_ns <= 9 * SECOND else HostReading(r.time_ns, r.busy_seconds + 50, r.own_seconds, 2) for r in quiet
    ]
    assert over(loud).other_cores == pytest.approx(0.0)
    assert over(loud, 1, 10).is_noticeable


def test_clocks_that_differ_slightly_give_no_negative_use() -> None:
    assert over(counted(1.0, 1.01)).other_cores == 0.0


def test_a_reading_that_misses_an_ending_process_takes_nothing_back() -> None:
    whole = counted(2.0, 1.5)
    missed = [replace(r, own_seconds=0.0) if r.time_ns == 9 * SECOND else r for r in whole]
    seconds, user = processor_seconds(missed, SECOND, 9 * SECOND)
    assert seconds == pytest.approx(7 * 1.5), "what was read at 8 s"
    assert user == "the run"
    assert processor_seconds(missed, SECOND, 8 * SECOND) == processor_seconds(whole, SECOND, 8 * SECOND)


def test_without_counters_over_the_window_the_use_is_unknown() -> None:
    assert "processor times" in str(over([]).reason)
    assert "cover 25%" in str(over(counted(1.0, 1.0, seconds=4)).reason)
    assert not over(counted(2.0, 0.0, seconds=4)).is_noticeable


def test_processes_of_a_container_engine_are_not_counted_as_others() -> None:
    use = over(counted(2.0, None))
    assert use.other_cores is None and "container engine" in str(use.reason) and use.cores == 2


# ---- the devices' mean utilisation: of every device, and only of the window


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
    ("more", "devices", "reason"),
    [
        ([], ["0", "3"], "device 3: no reading in the window"),
        ([reading("1", 15, math.nan)], ["1"], "device 1: a reading outside of 0 to 1"),
        ([reading("0", 15, 95.0)], ["0", "1"], "device 0: a reading outside of 0 to 1"),  # percent for a share
        ([reading("0", 15, -0.1)], ["0"], "device 0: a reading outside of 0 to 1"),
        ([], [], "no device"),
    ],
)
def test_no_mean_has_a_reason(more: list[Reading], devices: list[str], reason: str) -> None:
    assert mean_load([*READINGS, *more], devices, 10, 30) == reason


def test_a_run_s_result_has_it(run: RunPaths) -> None:
    load = collect(run).load
    assert load and load.value is None and (load.reason or "").startswith("device 0: ")

    def use(line: Event) -> None:
        for sample in line["samples"]:
            sample["utilisation"] = 0.5 + 0.25 * int(sample["index"])

    change_lines(run.telemetry, use)
    load = collect(run).load
    assert load and load.value == pytest.approx(0.625)
