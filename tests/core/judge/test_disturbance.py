"""A disturbed window in a whole run: planted in the recorded events, found in result, report and exit word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from levelfield.judge.collector import collect
from levelfield.report.one_run import result_lines, run_report
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Disturbance, ReadingAround, Result
from recorded_runs import (
    BEGIN_NS,
    SECOND_NS,
    STEP_NS,
    Event,
    change_all_steps,
    change_lines,
    change_plan,
    change_steps,
    seal_again,
)
from report_rows import report_rows

CORES = 2
HOUR = 3600.0


def pause(run: RunPaths, step: int, seconds: float) -> None:
    """Let step `step` of both ranks last so much longer."""

    def later(event: dict[str, Any]) -> None:
        if event["step"] >= step:
            event["end_ns"] += round(seconds * SECOND_NS)

    change_all_steps(run, later)


def watch(run: RunPaths, seconds: float, others: Callable[[float], float], own: float = 1.0) -> None:
    """Telemetry of `seconds`, one reading a second: cores that others use at a time, power, and the time of day."""
    lines, busy = [], 0.0
    for second in range(-1, round(seconds) + 2):
        time_ns = BEGIN_NS + second * SECOND_NS
        busy += others(second) + own
        host = {"time_ns": time_ns, "busy_seconds": busy, "own_seconds": own * (second + 1), "cores": CORES}
        sample = {"power_watts": 100.0 + second, "utilisation": 0.5, "temperature_celsius": 40.0 + second % 7}
        samples = [{"index": i, "memory_used_bytes": 2**30, **sample} for i in (0, 1)]
        lines.append(
            {"time_ns": time_ns, "wall_ns": 1_700_000_000 * SECOND_NS + time_ns, "samples": samples, "host": host}
        )
    run.telemetry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal_again(run)


def of(result: Result) -> Disturbance:
    assert result.disturbance is not None
    return result.disturbance


def around(result: Result, what: str) -> ReadingAround:
    return next(r for r in of(result).slowest.telemetry if r.what == what)


def test_a_quiet_window_has_no_flag(run: RunPaths) -> None:
    result = collect(run)
    figures = of(result)
    assert (figures.outliers, figures.lost, figures.mean_over_median, figures.flags) == (0, 0, 1, ())
    assert (figures.slowest.seconds, figures.slowest.over_median) == (0.5, 1) and figures.limit == 0.1
    assert figures.platform_seconds is None and figures.slowest.began is None


def test_a_pause_without_a_cause_makes_the_run_invalid(run: RunPaths) -> None:
    pause(run, 7, 20.0)
    watch(run, 27, lambda second: 0.0)
    result = collect(run)
    assert (result.status.word, result.status.failure, result.throughput) == ("invalid", "disturbed", None)
    (reason,) = result.status.reasons
    assert reason.startswith("disturbed: ")
    words = ("cost 80.0%", "allows 10.0%", "step 7", "20.5 s", "41.0 times")
    assert [word for word in words if word not in reason] == [], reason
    slowest = of(result).slowest
    assert (slowest.step, slowest.seconds, slowest.over_median, slowest.after_seconds) == (7, 20.5, 41.0, 2.0)
    assert str(slowest.began).endswith("Z") and around(result, "other programs").in_step == 0.0
    assert around(result, "this run").in_step == pytest.approx(1.0)
    assert around(result, "power").in_step == pytest.approx(100 + 13, abs=1)
    assert around(result, "temperature").in_step == 46.0 and around(result, "load").unit == "1"


def test_report_and_terminal_show_a_disturbance(run: RunPaths) -> None:
    pause(run, 7, 20.0)
    watch(run, 27, lambda second: 0.0)
    result = collect(run)
    text, page = "\n".join(result_lines(result)), run_report(result, read_plan(run))
    assert max(map(len, text.splitlines())) <= 80
    assert "invalid (disturbed)" in text and "**invalid (disturbed)**" in page
    assert "flagged: step 7 " in text and "5.00 times" in text
    value, how = report_rows(run, result)["slowest step"]
    assert value == "20,500.00 ms"
    assert [word for word in ("step 7,", "41.00 times", "2.0 s") if word not in how] == [], how
    assert report_rows(run, result)["around it"][1].split("; ")[:2] == [
        f"{what} {cores:.2f} cores (window: {cores:.2f})" for what, cores in (("other programs", 0), ("this run", 1))
    ]
    assert "None" not in page


def test_an_hours_pause_is_not_one_token_a_second(run: RunPaths) -> None:
    pause(run, 7, HOUR)
    result = collect(run)
    assert result.status.failure == "disturbed" and of(result).lost == pytest.approx(1, abs=0.002)
    assert "processor times" in (around(result, "other programs").reason or "")


def test_a_pause_that_others_explain_is_flagged_and_valid(run: RunPaths) -> None:
    pause(run, 7, 5.0)
    watch(run, 12, lambda second: 1.8 if 2 <= second <= 10 else 0.0)
    result = collect(run)
    assert result.status.word == "valid" and result.throughput is not None
    figures = of(result)
    assert (figures.outliers, figures.unexplained) == (1, 0.0) and figures.lost == pytest.approx(0.5)
    assert any("explain 50.0%" in flag for flag in figures.flags)
    others = around(result, "other programs")
    assert others.in_step == pytest.approx(1.8) and others.in_window == pytest.approx(1.8 * 9 / 10)


def test_a_load_of_another_time_explains_nothing(run: RunPaths) -> None:
    pause(run, 7, 5.0)
    watch(run, 12, lambda second: 0.0 if 2 <= second <= 10 else 1.8)
    assert collect(run).status.failure == "disturbed"


def test_one_outlier_of_three_times_is_flagged_and_valid(run: RunPaths) -> None:
    """As the collection of garbage is: a sixth of this short window, and less than two seconds."""
    pause(run, 7, 2 * STEP_NS / SECOND_NS)
    result = collect(run)
    assert result.status.word == "valid" and of(result).outliers == 1
    assert [word for word in ("step 7", "1.5 s", "3.0 times") if word not in of(result).flags[0]] == []


@pytest.mark.parametrize("step", [1, 2])
def test_what_happens_before_the_window_is_not_its(run: RunPaths, step: int) -> None:
    """Compilation, warm-up, a checkpoint."""
    pause(run, step, 60.0)
    result = collect(run)
    assert result.status.word == "valid" and of(result).flags == ()


def test_a_case_may_allow_more(run: RunPaths) -> None:
    pause(run, 7, 20.0)
    work = read_plan(run).work
    window = work.window.model_copy(update={"disturbance_limit": 0.9})
    change_plan(run, work=work.model_copy(update={"window": window}))
    result = collect(run)
    assert result.status.word == "valid" and of(result).limit == 0.9 and len(of(result).flags) == 3


def test_a_run_that_is_invalid_anyway_keeps_its_reasons(run: RunPaths) -> None:
    pause(run, 7, 20.0)
    change_steps(run, lambda event: event.update(tokens=31))
    status = collect(run).status
    assert status.failure is None and status.reasons[0].startswith("tokens: ")


def test_a_damaged_reading_is_no_fault(run: RunPaths) -> None:
    pause(run, 7, 20.0)
    watch(run, 27, lambda second: 0.0)

    def damage(line: Event) -> None:
        line["samples"][0].update(power_watts="nan", temperature_celsius="inf")
        line["wall_ns"] = 2**63

    change_lines(run.telemetry, damage)
    result = collect(run)
    assert around(result, "power").in_step is None and "not finite" in str(around(result, "power").reason)


# -- clocks


def see(run: RunPaths, stretch: float, rank: int = 1) -> None:
    """Let the platform see the window of both ranks, of 5 s by their clocks; one rank's lasts `stretch` times that."""
    seen = {}
    for number in (0, 1):
        end = round(5 * SECOND_NS * (stretch if number == rank else 1.0))
        seen[str(number)] = {"begin": [0, SECOND_NS // 10], "end": [end, end + SECOND_NS // 10]}
    run.outcome.write_text(json.dumps({**json.loads(run.outcome.read_text()), "seen": seen}))
    seal_again(run)


def test_a_clock_that_runs_as_the_platforms_is_right(run: RunPaths) -> None:
    see(run, 1.0)
    result = collect(run)
    assert result.status.word == "valid" and of(result).platform_seconds == pytest.approx((4.9, 5.1))


@pytest.mark.parametrize("stretch", [1.2, 0.8, 1000])
def test_a_worker_whose_clock_is_wrong_has_no_figure(run: RunPaths, stretch: float) -> None:
    see(run, stretch)
    result = collect(run)
    assert result.status.word == "invalid" and result.throughput is None
    reason = result.status.reasons[0]
    assert reason.startswith("clock: rank 1 ")
    assert "5.00 s" in reason


@pytest.mark.parametrize(
    "seen", [[1], "x", {"0": 3}, {"0": {"begin": [1], "end": [1, 2]}}, {"a": {"begin": [1, 2], "end": [3, 4]}}]
)
def test_damaged_sightings_are_reported(run: RunPaths, seen: object) -> None:
    run.outcome.write_text(json.dumps({**json.loads(run.outcome.read_text()), "seen": seen}))
    status = collect(run).status
    assert status.word == "invalid"
    assert status.reasons[0].startswith("raw files: outcome.json: ")
    assert "'seen'" in status.reasons[0]
