"""Runs that cannot have trained: too little memory, time, processor time or energy; each is named with numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from levelfield.judge.collector import collect
from levelfield.judge.implausibility import (
    energy_reason,
    memory_reason,
    processor_reason,
    time_reason,
    zero_memory_reason,
)
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result, Status
from levelfield.specs.vendor import Peak
from recorded_runs import (
    BEGIN_NS,
    SECOND_NS,
    USED_BYTES,
    Event,
    change_all_steps,
    change_lines,
    change_plan,
    change_steps,
    edit,
    seal_again,
)

STATES = {"weights": 4 * 2**30, "gradients": 4 * 2**30, "optimizer_states": 8 * 2**30}  # 16 GiB: at least 8 of them


def with_states(run: RunPaths, states: dict[str, int]) -> None:
    change_plan(run, expected_memory=read_plan(run).expected_memory.model_copy(update={"parts": states}))


def on_host(run: RunPaths, **changes: object) -> None:
    change_plan(run, hardware=read_plan(run).hardware.model_copy(update={"device_kind": "cpu"}), **changes)


def with_peaks(run: RunPaths, peaks: dict[str, Peak]) -> None:
    """What the chip's maker publishes."""
    hardware = read_plan(run).hardware
    chip = hardware.chip.model_copy(update={"peaks": peaks})
    change_plan(run, hardware=hardware.model_copy(update={"chip": chip}))


def set_measured_peak(run: RunPaths, tflops: float, is_published: bool) -> None:
    """A peak of the chip's maker, or one that a probe measured."""

    with_peaks(run, {"fp32": Peak(tflops=tflops, source="a datasheet")} if is_published else {})
    source = "a datasheet" if is_published else "measured: a probe"
    peak = {"tflops": tflops, "source": source, "measured_tflops": None}
    change_plan(run, peak=read_plan(run).peak.model_copy(update=peak))


def implausible(result: Result) -> tuple[str, str]:
    """What is implausible of a run, and why. Such a run has no figures and is not aligned."""
    assert (result.status.word, result.status.failure) == ("invalid", "implausible"), result.status
    assert result.throughput is None and result.utilisation == () and result.energy.joules.value is None
    (reason,) = result.status.reasons
    word, subject, text = reason.split(": ", 2)
    assert word == "implausible"
    return subject, text


def assert_names(run: RunPaths, subject: str, *words: str) -> None:
    """The run is implausible for this subject, and the reason has these words."""
    implausible_subject, text = implausible(collect(run))
    assert implausible_subject == subject
    assert [word for word in words if word not in text] == [], text


def test_a_run_with_enough_memory_is_valid(run: RunPaths) -> None:
    with_states(run, {name: part // 8 for name, part in STATES.items()})  # 2 GiB, as its ranks report
    assert collect(run).status.word == "valid"


def test_memory_far_below_the_states_is_named_with_both_numbers(run: RunPaths) -> None:
    with_states(run, STATES)
    states = sum(STATES.values())
    assert_names(run, "memory", "allocated peak", f"{2**31:,} bytes", f"least {states // 2:,}: 50%", f"the {states:,}")


def test_the_vendors_tool_counts_where_the_framework_reports_much(run: RunPaths) -> None:
    with_states(run, {"weights": 10 * 2**30})
    change_all_steps(run, lambda event: event["memory"].update(allocated_peak_bytes=6 * 2**30))
    assert_names(run, "memory", "device-used peak", f"{USED_BYTES:,} bytes")


def test_on_the_host_the_process_counts(run: RunPaths) -> None:
    with_states(run, STATES)
    on_host(run)
    assert_names(run, "memory", "process peak", f"{2**30 + 1:,} bytes")


def test_what_is_not_known_is_not_held_to_anything(run: RunPaths) -> None:
    with_states(run, STATES)
    run.telemetry.unlink()
    seal_again(run)
    nothing = dict.fromkeys(("allocated_peak_bytes", "reserved_peak_bytes", "process_peak_bytes"))
    change_all_steps(run, lambda event: event.update(memory=nothing))
    assert collect(run).status.word == "valid"


@pytest.mark.parametrize("kind", ["allocated", "reserved", "process"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_rank_that_used_no_memory_is_named(run: RunPaths, kind: str, size: int) -> None:
    change_steps(run, lambda event: event["memory"].update({f"{kind}_peak_bytes": size}))
    assert_names(run, "memory", f"{kind} peak", "rank 1", f"{size} bytes")


def test_a_device_whose_tool_read_no_used_memory_is_named(run: RunPaths) -> None:
    change_lines(run.telemetry, lambda line: line["samples"][1].update(memory_used_bytes=0))
    assert_names(run, "memory", "device-used peak", "device 1", "0 bytes")
    edit(run.telemetry, lambda lines: lines[:1])  # an idle device, before the training
    assert collect(run).status.word == "valid"


@pytest.mark.parametrize(("resident", "is_less"), [(2**30, True), (2**30 * 1.1, True), (2**30 * 1.12, False)])
def test_a_process_peak_below_what_the_platform_saw_of_a_rank_is_named(
    run: RunPaths, resident: float, is_less: bool
) -> None:
    host = {"busy_seconds": 0.0, "own_seconds": None, "cores": 2}
    readings = [{**host, "time_ns": BEGIN_NS + second * SECOND_NS, "rank_bytes": 2**20} for second in range(2)]
    readings[1]["rank_bytes"] = int(resident)
    edit(
        run.telemetry,
        lambda lines: [*({**line, "host": h} for line, h in zip(lines, readings, strict=False)), *lines[2:]],
    )
    if is_less:
        assert collect(run).status.word == "valid"
    else:
        assert_names(run, "memory", "process peak", f"{2**30 + 1:,} bytes", f"{int(resident):,} bytes of a rank")


def test_what_a_rank_held_after_its_last_step_does_not_count(run: RunPaths) -> None:
    host = {"busy_seconds": 0.0, "own_seconds": None, "cores": 2, "rank_bytes": 2**40, "time_ns": BEGIN_NS * 2}
    edit(run.telemetry, lambda lines: [*lines, {"time_ns": BEGIN_NS * 2, "samples": [], "host": host}])
    assert collect(run).status.word == "valid"


def test_a_step_without_its_memory_hides_nothing(run: RunPaths) -> None:
    with_states(run, STATES)
    on_host(run)
    change_all_steps(run, lambda event: event["step"] == 3 and event["memory"].update(process_peak_bytes=None))
    assert_names(run, "memory", "process peak", f"{2**30 + 1:,} bytes")


def test_a_step_that_is_faster_than_the_published_peak_allows_is_named(run: RunPaths) -> None:
    set_measured_peak(run, 1e-6, is_published=True)
    assert_names(run, "time", "0.5 s", "1e-06 TFLOP/s", "(a datasheet)")


def test_a_step_that_is_faster_than_the_peak_of_narrower_numbers_is_named(run: RunPaths) -> None:
    with_peaks(run, {"bf16": Peak(tflops=1e-6, source="a datasheet")})
    assert_names(run, "time", "0.5 s", "narrower numbers")


def test_a_run_that_beats_a_measured_peak_is_valid_without_a_utilisation(run: RunPaths) -> None:
    set_measured_peak(run, 1e-6, is_published=False)
    result = collect(run)
    assert result.status.word == "valid"
    assert all(formula.is_above_peak for formula in result.utilisation if formula.flops_per_token)


# -- processor time of the host


def host_times(run: RunPaths, busy_cores: float, own: float | None = 0.0) -> None:
    """Telemetry of a host with two cores, of which all programs use this much, and the run its part."""

    def change(line: Event) -> None:
        seconds = (line["time_ns"] - BEGIN_NS) / SECOND_NS
        own_seconds = None if own is None else own * seconds
        host = {"busy_seconds": busy_cores * seconds, "own_seconds": own_seconds, "cores": 2}
        line["host"] = {**host, "time_ns": line["time_ns"]}

    change_lines(run.telemetry, change)


@pytest.mark.parametrize(
    ("busy", "own", "whose"),
    [
        (1e-6, 0.0, "the run"),
        (0.4, 0.0, "the run"),  # it slept, and other programs worked
        (0.4, 0.4, None),
        (1e-6, None, "all programs"),  # an earlier version, or a reading without the run's own
        (0.4, None, None),
        (0.0, 0.0, "the run"),
    ],
)
def test_a_host_that_computed_nothing_is_named(
    run: RunPaths, busy: float, own: float | None, whose: str | None
) -> None:
    set_measured_peak(run, 1e-5, is_published=False)
    on_host(run)
    host_times(run, busy, own)
    if whose is None:
        assert collect(run).status == Status(word="valid")
    else:
        assert_names(run, "processors", f"{whose} used", "TFLOP/s")


def test_one_reading_without_its_own_time_hides_nothing(run: RunPaths) -> None:
    set_measured_peak(run, 1e-5, is_published=False)
    on_host(run)
    host_times(run, 1e-6, 0.0)

    second = BEGIN_NS + SECOND_NS
    change_lines(run.telemetry, lambda line: line["time_ns"] == second and line["host"].update(own_seconds=None))
    assert_names(run, "processors", "all programs")


@pytest.mark.parametrize("cores", [0, -1])
def test_a_reading_of_no_cores_hides_nothing(run: RunPaths, cores: int) -> None:
    set_measured_peak(run, 1e-5, is_published=False)
    on_host(run)
    host_times(run, 0.4, 0.0)
    change_lines(run.telemetry, lambda line: line["host"].update(cores=cores))
    assert_names(run, "processors", "the run")


def test_a_published_peak_of_a_host_hides_no_sleep(run: RunPaths) -> None:
    set_measured_peak(run, 1.0, is_published=True)
    on_host(run)
    host_times(run, 0.4, 0.0)
    assert_names(run, "processors", "the run")


def test_a_containers_processor_time_is_not_that_of_the_readings(run: RunPaths) -> None:
    set_measured_peak(run, 1e-5, is_published=False)
    on_host(run, runtime="docker")
    host_times(run, 1e-6, None)
    assert collect(run).status.word == "valid"


def with_limit(run: RunPaths, peak: float | None, limit: float | None) -> None:
    """A host whose probe gave a peak, and what its processor cannot exceed; in TFLOP/s of a device."""
    on_host(run)
    used = {"tflops": peak, "source": "measured: a probe", "measured_tflops": None, "limit_tflops": limit}
    change_plan(run, peak=read_plan(run).peak.model_copy(update=used))


@pytest.mark.parametrize("peak", [500.0, None])
def test_a_peak_that_is_too_high_or_missing_hides_no_sleep(run: RunPaths, peak: float | None) -> None:
    with_limit(run, peak, 1e-5)
    host_times(run, 0.4, 0.0)
    assert_names(run, "processors", "the run")


@pytest.mark.parametrize("peak", [500.0, None])
def test_a_step_that_is_faster_than_the_processors_can_is_named(run: RunPaths, peak: float | None) -> None:
    with_limit(run, peak, 1e-8)
    host_times(run, 2.0, 2.0)
    result = collect(run)
    assert (result.status.word, result.status.failure) == ("invalid", "implausible")
    reason = result.status.reasons[0]
    assert reason.startswith("implausible: time: ")
    assert [word for word in ("0.5 s", "2e-08 TFLOP/s", "2 core(s)") if word not in reason] == [], reason


def test_a_run_of_before_limits_is_held_to_what_no_processor_can(run: RunPaths) -> None:
    with_limit(run, None, None)
    host_times(run, 0.4, 0.0)
    assert_names(run, "processors", "the run")  # nothing at all
    host_times(run, 0.4, 0.1)
    assert collect(run).status.word == "valid"


def test_a_peak_of_a_few_paid_cores_is_not_that_of_all(run: RunPaths) -> None:
    """A probe has as many threads as the control group pays for: 2 here, of 64 that are there."""
    set_measured_peak(run, 1e-4, is_published=False)
    on_host(run, tuning=read_plan(run).tuning.model_copy(update={"threads": 1}))
    host_times(run, 0.5, 0.05)
    change_lines(run.telemetry, lambda line: line["host"].update(cores=64))
    assert collect(run).status.word == "valid"


# -- energy


def idle(run: RunPaths, watts: float, load: float | None) -> None:
    """Add a reading of each device from before the training."""

    def change(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first = json.loads(json.dumps(lines[0]))
        first.update(time_ns=BEGIN_NS - SECOND_NS, before=True)
        for sample in first["samples"]:
            sample.update(power_watts=watts, utilisation=load)
        return [first, *lines]

    edit(run.telemetry, change)


@pytest.mark.parametrize(
    ("watts", "load", "peak", "is_valid"),
    [
        (95.0, 0.0, 1e-5, False),  # 100 W in the window, and a tenth of the peak or more
        (95.0, 0.05, 1e-5, False),
        (80.0, 0.0, 1e-5, True),
        (95.0, 0.0, 2.0, True),  # a small model on a fast device needs no power
        (95.0, 0.5, 1e-5, True),  # others used it: that is not its idle power
        (95.0, None, 1e-5, True),
    ],
)
def test_energy_at_the_level_of_idle_is_named(
    run: RunPaths, watts: float, load: float | None, peak: float, is_valid: bool
) -> None:
    set_measured_peak(run, peak, is_published=True)
    idle(run, watts, load)
    if is_valid:
        assert collect(run).status == Status(word="valid")
    else:
        assert_names(run, "energy", "100 J (200 W)", "least 104.5 J", "1.1 times", "190 W")


# -- the rules alone


def test_nan_holds_nowhere() -> None:
    nan = float("nan")
    assert memory_reason({"allocated peak": nan}, 100)
    assert time_reason(nan, 1e12, 1, "s")
    assert processor_reason(nan, "the run", 1e12, 1)
    assert energy_reason(nan, 1, 0.5, 1)
    for peak in (0.0, -1.0, nan):
        assert "rank 1" in (zero_memory_reason({"allocated peak": {"rank 0": 1.0, "rank 1": peak}}) or "")


def test_what_is_unknown_or_needs_nothing_has_no_reason() -> None:
    assert memory_reason({"allocated peak": None}, 100) is None
    assert memory_reason({}, 100) is None
    assert memory_reason({"allocated peak": 0.0}, 0) is None
    assert zero_memory_reason({"allocated peak": {"rank 0": 1.0, "rank 1": None}}) is None
