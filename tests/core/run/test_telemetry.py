"""The monitor never hurts the run that it watches: whatever the vendor's tool does ends up in the file, or nowhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from levelfield.contracts.vendor import Device, Sample
from levelfield.run import telemetry
from levelfield.run.telemetry import watching
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.specs.paths import RunPaths

DEVICES = [Device(0, "F1", "Fake", 1), Device(1, "F1", "Fake", 1)]


class Tool:
    """A vendor's tool of one function; `read` counts the readings."""

    def __init__(self, sample: Callable[[], Sequence[Sample]]) -> None:
        self._sample = sample
        self.read = threading.Semaphore(0)

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        try:
            return self._sample()
        finally:
            self.read.release()


def watched(tool: Tool, paths: RunPaths, readings: int = 1) -> RawRecords:
    with watching(tool, DEVICES, paths.telemetry):  # type: ignore[arg-type]
        for _ in range(readings):
            assert tool.read.acquire(timeout=30)
    return read_raw(paths)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "INTERVAL_SECONDS", 0.01)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_readings_are_kept_with_the_time_in_their_middle(paths: RunPaths) -> None:
    before = time.monotonic_ns()
    raw = watched(
        Tool(lambda: [Sample(0, power_watts=50.0, memory_used_bytes=7), Sample(1, energy_joules=3.0)]), paths, 3
    )
    assert len(raw.readings) >= 6 and raw.broken == ()
    first, second = raw.readings[:2]
    assert (first.device, first.power_watts, first.memory_used_bytes, first.energy_joules) == ("0", 50.0, 7, None)
    assert (second.device, second.energy_joules, second.power_watts) == ("1", 3.0, None)
    assert before <= first.time_ns == second.time_ns <= time.monotonic_ns()


def test_the_reason_of_a_missing_value_is_kept(paths: RunPaths) -> None:
    raw = watched(Tool(lambda: [Sample(0, reasons={"power_watts": "not supported by this card"})]), paths)
    assert raw.telemetry_reasons == {"power_watts": "not supported by this card"}


def test_a_tool_that_raises_leaves_a_reason_and_is_asked_again(paths: RunPaths) -> None:
    def sample() -> Sequence[Sample]:
        raise OSError("driver gone")

    raw = watched(Tool(sample), paths, readings=3)
    assert raw.readings == () and raw.telemetry_reasons == {"tool": "OSError: driver gone"}
    assert len(paths.telemetry.read_text().splitlines()) >= 2


def test_a_tool_that_hangs_does_not_hold_up_the_end(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "LEAVE_SECONDS", 0.05)
    free, asked, answered = threading.Event(), threading.Event(), threading.Event()

    def sample() -> Sequence[Sample]:
        asked.set()
        free.wait(30)
        answered.set()
        return []

    with watching(Tool(sample), DEVICES, paths.telemetry):  # type: ignore[arg-type]
        assert asked.wait(30)
    assert not answered.is_set()  # the block has ended before the tool has
    free.set()


def test_a_value_that_json_cannot_say_does_not_stop_the_readings(paths: RunPaths) -> None:
    values = iter([float("nan"), 1.0, 2.0, 3.0])
    raw = watched(Tool(lambda: [Sample(0, power_watts=next(values, 4.0))]), paths, readings=4)
    assert [r.power_watts for r in raw.readings][-1] in (3.0, 4.0)


def test_a_file_that_cannot_be_written_ends_the_readings_only(tmp_path: Path) -> None:
    with watching(Tool(list), DEVICES, tmp_path / "absent" / "telemetry.jsonl"):  # type: ignore[arg-type]
        pass


def test_an_error_in_the_run_passes_through(paths: RunPaths) -> None:
    with pytest.raises(ZeroDivisionError), watching(Tool(list), DEVICES, paths.telemetry):  # type: ignore[arg-type]
        1 / 0  # noqa: B018
