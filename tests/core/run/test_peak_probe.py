"""Measured peaks: probed once per machine, kept, and unknown when the probe fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.plan.peak import MeasuredPeaks
from levelfield.run import peak_probe
from levelfield.run.runtimes.process_runtime import ProcessRuntime
from levelfield.specs.plan import Plan

Make = Callable[..., Plan]


@pytest.fixture
def plan(plan_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    return plan_for("tiny:fake:F1:1:2", python=sys.executable)


def measure(plan: Plan, machine: str = "here") -> MeasuredPeaks:
    return peak_probe.measure_peaks(plan, machine, ProcessRuntime(), lambda text: None)


def test_a_probe_is_remembered_for_this_machine_only(plan: Plan) -> None:
    assert peak_probe.known_peaks(plan, "here") == MeasuredPeaks()
    found = measure(plan)
    assert found.tflops == {"fp32": 2.0} and found.how.startswith("best matmul rate of fake 1.2.3 with ")
    assert peak_probe.known_peaks(plan, "here") == found
    assert peak_probe.known_peaks(plan, "there") == MeasuredPeaks()


def test_the_user_is_told_that_it_takes_a_moment(plan: Plan) -> None:
    said: list[str] = []
    peak_probe.measure_peaks(plan, "here", ProcessRuntime(), said.append)
    assert said == ["measuring this machine's fp32 matmul peak, once (3 s)"]


def test_a_divided_host_has_its_peak_divided(plan_for: Make, plan: Plan) -> None:
    shares = plan.hardware.model_copy(update={"device_indices": (), "devices_per_node": 4})
    assert measure(plan.model_copy(update={"hardware": shares})).tflops == {"fp32": 0.5}


def test_a_probe_of_another_dtype_keeps_what_was_known(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(plan)
    monkeypatch.setenv("FAKE_PEAK", '{"bf16": {"tflops": 5.0}}')
    measure(plan)
    assert peak_probe.known_peaks(plan, "here").tflops == {"fp32": 2.0, "bf16": 5.0}


def test_a_peak_that_a_run_has_exceeded_is_forgotten(plan: Plan) -> None:
    measure(plan)
    peak_probe.forget_peaks(plan, "here")
    peak_probe.forget_peaks(plan, "here")
    assert peak_probe.known_peaks(plan, "here") == MeasuredPeaks()


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        ("broken", "the probe failed: CalledProcessError"),
        ("[1]", "the probe failed: AttributeError"),
        ("", "the probe failed: JSONDecodeError"),
        ('{"bf16": {"tflops": 5.0}}', "the probe gave no fp32 rate"),
        ("not json", "the probe failed: JSONDecodeError"),
        ('{"fp32": {}}', "the probe failed: KeyError"),
        ('{"fp32": {"tflops": "fast"}}', "the probe failed: ValueError"),
        ('{"fp32": 3}', "the probe failed: TypeError"),
    ],
)
def test_a_probe_that_fails_leaves_the_peak_unknown_and_says_why(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, answer: str, how: str
) -> None:
    monkeypatch.setenv("FAKE_PEAK", answer)
    found = measure(plan)
    assert found == MeasuredPeaks(how=how)
    assert "fp32" not in peak_probe.known_peaks(plan, "here").tflops


@pytest.mark.parametrize("value", ["NaN", "Infinity", "0", "-1"])
def test_a_peak_that_is_no_peak_is_not_taken(plan: Plan, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FAKE_PEAK", f'{{"fp32": {{"tflops": {value}}}}}')
    assert measure(plan) == MeasuredPeaks(how="the probe gave no fp32 rate")
    assert peak_probe.known_peaks(plan, "here") == MeasuredPeaks()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"fp32": 3}', '{"fp32": {"tflops": null}}'])
def test_a_damaged_cache_is_none(plan: Plan, content: str) -> None:
    measure(plan)
    (cached,) = peak_probe.cache_folder().iterdir()
    cached.write_text(content)
    assert peak_probe.known_peaks(plan, "here") == MeasuredPeaks()
    measure(plan)


def test_a_framework_without_a_probe_says_so(plan: Plan) -> None:
    without = plan.implementation.model_copy(update={"peak_probe": ()})
    assert measure(plan.model_copy(update={"implementation": without})) == MeasuredPeaks(how="fake has no probe")


def test_a_cache_that_cannot_be_written_is_no_fault(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert measure(plan).tflops == {"fp32": 2.0}
