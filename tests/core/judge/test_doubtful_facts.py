"""Facts of a valid run that are doubtful: each is a sentence of the result, and an honest run has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.validity import loss_curve
from levelfield.rundir.directory import read_plan, write_atomically, write_json
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference
from levelfield.specs.vendor import HOST_KIND
from recorded_runs import BEGIN_NS, SECOND_NS, change_all_steps, change_lines, change_plan, report_framework, seal_again

EVENLY = [0.5] * 12
HONEST = [0.5 + 0.01 * (step % 3) for step in range(12)]
STALE = "readings of device"


@pytest.fixture(autouse=True)
def honest_steps(run: RunPaths) -> None:
    """Steps whose times vary, as those of a training do."""
    set_steps(run, HONEST)


def set_steps(run: RunPaths, seconds: Sequence[float], first_step: int = 3) -> None:
    """Give the steps these lengths, and the window this first step, with telemetry over all of it."""
    work = read_plan(run).work
    change_plan(run, work=work.model_copy(update={"window": work.window.model_copy(update={"first_step": first_step})}))

    def set_end(event: dict[str, Any]) -> None:
        event["end_ns"] = BEGIN_NS + round(sum(seconds[: event["step"]]) * SECOND_NS)

    change_all_steps(run, set_end)
    line = json.loads(run.telemetry.read_text().splitlines()[-1])
    lines = [{**line, "time_ns": BEGIN_NS + second * SECOND_NS} for second in range(int(sum(seconds)) + 2)]
    run.telemetry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal_again(run)


def doubts(run: RunPaths) -> list[str]:
    """Return the warnings of a run, which is valid, without those about constant power, which all these runs have."""
    result = collect(run)
    assert result.status.word == "valid", result.status.reasons
    return [warning for warning in result.warnings if STALE not in warning and "before the training" not in warning]


def test_an_honest_run_has_no_doubtful_fact(run: RunPaths) -> None:
    assert doubts(run) == []


@pytest.mark.parametrize(("early", "is_told"), [(2.0, True), (1.1, True), (0.9, False), (0.2, False)])
def test_a_window_far_faster_than_each_step_before_it_is_told(run: RunPaths, early: float, is_told: bool) -> None:
    set_steps(run, [9.0, *[early] * 4, *[0.5] * 7], first_step=6)
    told = doubts(run)
    says = f"half of the window's steps lasted at most 0.5 s, and the fastest of the 4 steps before it {early:g} s: "
    assert [text.startswith(says) for text in told] == [True] * is_told


@pytest.mark.parametrize(("seconds", "first_step"), [([9, 2, 2, 0.6, 2], 6), ([9, 2, 2, 2], 5), ([2.0, 2.0], 3)])
def test_a_fast_step_before_the_window_or_too_few_show_nothing(
    run: RunPaths, seconds: list[float], first_step: int
) -> None:
    """Frameworks still compile in some steps of the warm-up, not in all; the first one is never looked at."""
    set_steps(run, [*seconds, *[0.5] * (12 - len(seconds))], first_step)
    assert doubts(run) == []


@pytest.mark.parametrize(("longer", "is_told"), [(0.0, True), (1e-7, True), (1e-5, False)])
def test_steps_that_last_the_same_to_a_microsecond_are_told_where_the_platform_saw_them(
    run: RunPaths, longer: float, is_told: bool
) -> None:
    set_steps(run, [*EVENLY[:-1], 0.5 + longer])
    assert doubts(run) == []  # a made-up clock of a test
    end = BEGIN_NS + round((6 + longer) * SECOND_NS)
    sightings = {name: [at, at + 1] for name, at in (("begin", BEGIN_NS + SECOND_NS), ("end", end))}
    write_json(run.outcome, {**json.loads(run.outcome.read_text()), "seen": {"0": sightings}})
    seal_again(run)
    told = doubts(run)
    assert [text.startswith("the window's 10 steps last the same to a microsecond (0.5 s)") for text in told] == (
        [True] * is_told
    )


@pytest.mark.parametrize(
    ("framework", "factor", "is_told"), [("torch", 1, True), ("fake", 1, False), ("torch", 1 + 1e-9, False)]
)
def test_losses_that_are_another_frameworks_in_every_digit_are_told(
    run: RunPaths, framework: str, factor: float, is_told: bool
) -> None:
    losses = [loss * factor for loss in loss_curve(read_raw(run).steps).values()]
    write_reference(run, framework, losses)
    told = doubts(run)
    assert [text.startswith("each of the 12 losses is the reference's in every digit") for text in told] == (
        [True] * is_told
    )
    assert not told or framework in told[0]


def write_reference(run: RunPaths, framework: str, losses: Sequence[float]) -> None:
    result = collect(run)
    reference = Reference(
        case=result.case, scale=result.scale, precision=result.precision, identity=result.identity,
        losses=tuple(losses), grad_norms=(1.0,) * len(losses), gradients={}, run_id="another", framework=framework,
        framework_version="1", hardware="a machine", layout="DP2", promoted="2026-11-30T10:00:00+00:00", by="a test",
        why="a test",
    )  # fmt: skip
    write_atomically(run.reference, dump(reference))
    seal_again(run)


@pytest.mark.parametrize("version", ["1.2.3", "1.2.3+cu130", "4.5", "4.5+rocm", "9.9"])
def test_a_version_that_neither_the_plan_nor_its_environment_has_is_told(run: RunPaths, version: str) -> None:
    report_framework(run, version=version)
    assert doubts(run) == []  # the environment is not known
    write_json(run.provenance, {"environment_packages": {"numpy": "2.4.6", "fake-framework": "4.5"}})
    seal_again(run)
    told = doubts(run)
    assert [text.startswith("rank 0 reports version 9.9 of its framework; 1.2.3 was planned") for text in told] == (
        [True] * (version == "9.9")
    )


@pytest.mark.parametrize("change", ["nothing", "jitter", "a counter", "host", "few"])
def test_power_that_never_changes_in_the_window_is_told(run: RunPaths, change: str) -> None:
    set_steps(run, [*HONEST[:3], *([0.5] if change == "few" else [1.2]) * 9])
    changes: dict[str, Callable[[int], dict[str, float]]] = {
        "jitter": lambda time_ns: {"power_watts": 99.0 + time_ns // SECOND_NS % 2},
        "a counter": lambda time_ns: {"energy_joules": time_ns / 1e7},
    }
    if change in changes:
        values = changes[change]
        change_lines(run.telemetry, lambda line: [s.update(values(line["time_ns"])) for s in line["samples"]])
    if change == "host":
        change_plan(run, hardware=read_plan(run).hardware.model_copy(update={"device_kind": HOST_KIND}))
    told = [text for text in collect(run).warnings if STALE in text]
    expected = [f"readings of device {index}'s power in the window are 100 W" for index in (0, 1)]
    assert [text.partition("all 11 ")[2].partition(":")[0] for text in told] == (
        expected if change == "nothing" else []
    )
