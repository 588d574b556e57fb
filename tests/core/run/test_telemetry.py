"""The monitor never hurts the run that it watches: whatever the vendor's tool does ends up in the file, or nowhere."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from levelfield.contracts.command import ask
from levelfield.contracts.execution import Outcome
from levelfield.contracts.vendor import Device, Sample
from levelfield.node import sampling
from levelfield.run import run_devices
from levelfield.run.run_devices import device_sampler
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.vendor import VendorFile
from plans import PLUGINS

DEVICES = [Device(0, "F1", "Fake", 8 * 2**30), Device(1, "F1", "Fake", 8 * 2**30)]
SPEC = load(VendorFile, PLUGINS / "vendors/fake/vendor.yaml")


class Tool:
    """A vendor's tool of one function; `read` counts the readings."""

    def __init__(self, sample: Callable[[], Sequence[Sample]]) -> None:
        self.spec = SPEC
        self._sample = sample
        self.read = threading.Semaphore(0)

    def sample(self, devices: Sequence[Device]) -> Sequence[Sample]:
        try:
            return self._sample()
        finally:
            self.read.release()


def watched(tool: Tool, paths: RunPaths, readings: int = 1) -> RawRecords:
    with device_sampler(tool, DEVICES, paths.telemetry):  # type: ignore[arg-type]
        for _ in range(readings):
            assert tool.read.acquire(timeout=30)
    return read_raw(paths)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_devices, "SAMPLE_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(sampling, "BEFORE_SECONDS", 0.02)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_readings_are_kept_with_the_time_in_their_middle(paths: RunPaths) -> None:
    before = time.monotonic_ns()
    raw = watched(
        Tool(lambda: [Sample(0, power_watts=50.0, memory_used_bytes=7), Sample(1, energy_joules=3.0)]), paths, 3
    )
    assert len(raw.telemetry[0].readings) >= 6 and raw.damage_sentences == ()
    first, second = raw.telemetry[0].readings[:2]
    assert (first.device, first.power_watts, first.memory_used_bytes, first.energy_joules) == ("0", 50.0, 7, None)
    assert (second.device, second.energy_joules, second.power_watts) == ("1", 3.0, None)
    assert before <= first.time_ns == second.time_ns <= time.monotonic_ns()


def test_a_reading_is_taken_before_the_block_and_one_after_it(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_devices, "SAMPLE_INTERVAL_SECONDS", 30.0)
    with device_sampler(Tool(lambda: [Sample(0, power_watts=50.0)]), DEVICES, paths.telemetry):  # type: ignore[arg-type]
        begin = time.monotonic_ns()
        end = time.monotonic_ns()
    first, last = read_raw(paths).telemetry[0].readings
    assert (first.before, last.before) == (True, False)
    assert first.time_ns < begin and end < last.time_ns


def test_the_hosts_counters_are_in_every_line_and_tell_own_processes_apart(paths: RunPaths) -> None:
    raw = watched(Tool(lambda: [Sample(0, power_watts=50.0)]), paths, 3)
    assert (
        len(raw.telemetry[0].host) >= 4
        and [r.before for r in raw.telemetry[0].host[:2]] == [True, True]
        and not raw.telemetry[0].host[-1].before
    )
    assert all(r.own_seconds is not None and r.own_seconds > 0 and r.cores >= 1 for r in raw.telemetry[0].host)
    assert all(b.busy_seconds >= a.busy_seconds for a, b in pairwise(raw.telemetry[0].host))


def test_a_containers_processes_are_no_children_and_their_time_is_not_known(paths: RunPaths) -> None:
    tool = Tool(lambda: [Sample(0, power_watts=50.0)])
    with device_sampler(tool, DEVICES, paths.telemetry, ranks_are_children=False):  # type: ignore[arg-type]
        for _ in range(2):
            assert tool.read.acquire(timeout=30)
    before, after = (
        [r.own_seconds for r in read_raw(paths).telemetry[0].host if r.before is flag] for flag in (True, False)
    )
    assert None not in before and set(after) == {None}


def test_values_that_cannot_be_right_are_null_with_what_was_found(paths: RunPaths) -> None:
    lies = [
        Sample(0, power_watts=0.5, memory_used_bytes=9 * 2**30),
        Sample(1, power_watts=0.0, memory_used_bytes=2**30),
    ]
    raw = watched(Tool(lambda: lies), paths)
    first, second = raw.telemetry[0].readings[:2]
    assert (first.power_watts, first.memory_used_bytes) == (None, None)
    assert first.reasons.keys() == {"power_watts", "memory_used_bytes"}
    assert re.findall(r"[\d.]+", first.reasons["power_watts"]) == ["0.5", "1"]
    assert re.findall(r"\d+", first.reasons["memory_used_bytes"]) == [str(9 * 2**30), str(8 * 2**30)]
    assert (second.power_watts, second.memory_used_bytes) == (None, 2**30)


def test_a_tool_that_still_runs_at_the_end_is_ended_with_what_it_started(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sampling, "END_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(sampling, "FIRST_READ_SECONDS", 0.2)

    def sample() -> Sequence[Sample]:
        ask(["/bin/sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], 60)
        return []

    tool = Tool(sample)
    with device_sampler(tool, DEVICES, paths.telemetry):  # type: ignore[arg-type]
        deadline = time.monotonic() + 30
        while not (tmp_path / "child").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert tool.read.acquire(timeout=10)
    child = int((tmp_path / "child").read_text())
    while _lives(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _lives(child) and len(paths.telemetry.read_text().splitlines()) == 1


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_reason_of_a_missing_value_is_kept(paths: RunPaths) -> None:
    raw = watched(Tool(lambda: [Sample(0, reasons={"power_watts": "not supported"})]), paths)
    assert raw.telemetry[0].reasons == {"power_watts": "not supported"}


def test_a_tool_that_raises_leaves_a_reason_and_is_asked_again(paths: RunPaths) -> None:
    def sample() -> Sequence[Sample]:
        raise OSError("gone")

    raw = watched(Tool(sample), paths, readings=3)
    assert raw.telemetry[0].readings == () and raw.telemetry[0].reasons == {"tool": "OSError: gone"}
    assert len(paths.telemetry.read_text().splitlines()) >= 2


def test_a_tool_that_hangs_does_not_hold_up_the_end(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "END_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(sampling, "FIRST_READ_SECONDS", 0.05)
    free, requests, answered = threading.Event(), threading.Event(), threading.Event()

    def sample() -> Sequence[Sample]:
        requests.set()
        free.wait(30)
        answered.set()
        return []

    with device_sampler(Tool(sample), DEVICES, paths.telemetry):  # type: ignore[arg-type]
        assert requests.wait(30)
    assert not answered.is_set()  # the block has ended before the tool has
    free.set()


def test_a_value_that_json_cannot_say_does_not_stop_the_readings(paths: RunPaths) -> None:
    values = iter([float("nan"), 1.0, 2.0, 3.0])
    raw = watched(Tool(lambda: [Sample(0, energy_joules=next(values, 4.0))]), paths, readings=4)
    assert [r.energy_joules for r in raw.telemetry[0].readings][-1] in (3.0, 4.0)


def test_a_file_that_cannot_be_written_ends_the_readings_only(tmp_path: Path) -> None:
    with device_sampler(Tool(list), DEVICES, tmp_path / "absent" / "telemetry.jsonl"):  # type: ignore[arg-type]
        pass


def test_an_error_in_the_run_passes_through(paths: RunPaths) -> None:
    with pytest.raises(ZeroDivisionError), device_sampler(Tool(list), DEVICES, paths.telemetry):  # type: ignore[arg-type]
        1 / 0  # noqa: B018


@pytest.mark.parametrize("how", ["a changed line", "a further line", "no line", "no file"])
def test_lines_that_something_else_wrote_fail_the_run(paths: RunPaths, how: str) -> None:
    tool = Tool(lambda: [Sample(0, power_watts=100.0)])
    with device_sampler(tool, DEVICES, paths.telemetry) as sampler:  # type: ignore[arg-type]
        for _ in range(3):
            assert tool.read.acquire(timeout=30)
    ended = Outcome("exited", ())
    assert sampler.revise_outcome(ended) == ended
    text = paths.telemetry.read_text()
    changed = {
        "a changed line": text.replace("100.0", "50.0", 1),
        "a further line": text + text.splitlines(keepends=True)[-1],
        "no line": "",
        "no file": None,
    }[how]
    paths.telemetry.unlink() if changed is None else paths.telemetry.write_text(changed)
    revised = sampler.revise_outcome(ended)
    assert revised.cause == "inputs-changed" and "telemetry.jsonl: found other lines" in str(revised.evidence)
    killed = sampler.revise_outcome(Outcome("rank-failed", ()))  # what ended a run before stays its cause
    assert killed.cause == "rank-failed" and "telemetry.jsonl" in killed.warnings[0]


def test_a_last_line_that_a_full_disk_left_out_is_no_fault(paths: RunPaths) -> None:
    tool = Tool(lambda: [Sample(0)])
    with device_sampler(tool, DEVICES, paths.telemetry) as sampler:  # type: ignore[arg-type]
        assert tool.read.acquire(timeout=30)
    lines = paths.telemetry.read_text().splitlines(keepends=True)
    paths.telemetry.write_text("".join(lines[:-1]))
    assert sampler.revise_outcome(Outcome("exited", ())).cause == "exited"
