"""From raw files to figures: what a run by a made-up clock must give, and the same bytes every time."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from levelfield.judge.collector import collect
from levelfield.run.runner import finish
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result, Utilisation
from recorded_runs import USED_BYTES, WATTS, Event, change_steps, edit

WINDOW_SECONDS, WINDOW_TOKENS = 5.0, 640  # steps 3 to 12 of half a second and 64 tokens each


def readings(run: RunPaths, change: Callable[[Event], object]) -> None:
    """Change each sample of the vendor's tool in place."""

    def apply(lines: list[Event]) -> list[Event]:
        for line in lines:
            for sample in line["samples"]:
                change(sample)
        return lines

    edit(run.telemetry, apply)


def palm(result: Result) -> Utilisation:
    return next(u for u in result.utilisation if u.formula.startswith("palm"))


def test_throughput_is_tokens_over_the_windows_wall_time(run: RunPaths) -> None:
    found = collect(run).throughput
    assert found is not None
    assert (found.wall_seconds, found.tokens_per_second) == (WINDOW_SECONDS, WINDOW_TOKENS / WINDOW_SECONDS)
    assert found.tokens_per_second_per_device == 64
    step = found.step_seconds
    assert (step.steps, step.median, step.minimum, step.maximum, step.spread) == (10, 0.5, 0.5, 0.5, 0.0)


def test_energy_is_over_the_window_of_both_devices(run: RunPaths) -> None:
    energy = collect(run).energy
    joules = 2 * WATTS * WINDOW_SECONDS
    assert energy.joules.value == pytest.approx(joules)
    assert energy.joules_per_token.value == pytest.approx(joules / WINDOW_TOKENS)
    assert energy.mean_watts.value == pytest.approx(2 * WATTS) and energy.boundary == "chip"


def test_memory_is_of_the_worst_and_says_why_it_is_not_there(run: RunPaths) -> None:
    memory = collect(run).memory
    assert memory.device_used_peak.value == USED_BYTES and memory.capacity_bytes == 8 * 2**30
    assert memory.allocated_peak.value == 2**31
    assert memory.process_peak.value == 2**30 + 1
    assert (
        memory.reserved_peak.value is None and memory.reserved_peak.reason == "the framework gave no figure for rank 0"
    )


def test_mfu_is_against_the_measured_peak_and_says_so(run: RunPaths) -> None:
    found = palm(collect(run))
    assert found.peak_tflops == 2.0 and found.peak_source == "measured: a probe of the tests"
    assert found.flops_per_token is not None
    assert found.value == pytest.approx(64 * found.flops_per_token / 2e12)


def test_identity_says_what_was_trained(run: RunPaths) -> None:
    plan, identity = read_plan(run), collect(run).identity
    assert (identity.work, identity.corpus) == (plan.work_digest, plan.corpus.digest)
    assert identity.initial_weights is not None and identity.initial_weights.startswith("sha256:")
    assert identity.tokens is not None and len(identity.tokens) == 16


def test_the_loss_has_its_floor_beside_it(run: RunPaths) -> None:
    loss = collect(run).loss
    assert loss.first == pytest.approx(4 * 0.9) and loss.last == pytest.approx(4 * 0.9**12)
    assert loss.tail_mean == pytest.approx(2 * (0.9**11 + 0.9**12))
    assert loss.floor == read_plan(run).corpus.entropy_nats


def test_the_framework_is_the_one_that_ran(run: RunPaths) -> None:
    edit(run.events / "rank0.jsonl", lambda events: [{**e, "version": "9.9"} if "version" in e else e for e in events])
    assert collect(run).framework_version == "9.9"


def test_collecting_twice_gives_the_same_bytes(run: RunPaths) -> None:
    assert dump(collect(run)) == dump(collect(run))


def test_derived_files_are_made_again_byte_for_byte(run: RunPaths) -> None:
    finish(run)
    before = run.result.read_bytes(), run.report.read_bytes()
    run.result.unlink()
    run.report.unlink()
    finish(run)
    assert (run.result.read_bytes(), run.report.read_bytes()) == before
    assert load(Result, run.result) == collect(run)


def test_a_run_gives_the_same_wherever_it_lies(run: RunPaths) -> None:
    before = dump(collect(run))
    moved = RunPaths(run.root.parent / "elsewhere")
    run.root.rename(moved.root)
    assert dump(collect(moved)) == before


def test_an_edited_result_changes_nothing(run: RunPaths) -> None:
    finish(run)
    right = run.result.read_bytes()
    run.result.write_text(json.dumps({**json.loads(right), "parameters": 1}))
    finish(run)
    assert run.result.read_bytes() == right


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.update(power_watts=None, reasons={"power_watts": "not supported"}), "(not supported)"),
        (lambda s: s.update(power_watts=WATTS * 1000), "no chip's power: units differ"),
        (lambda s: s.update(power_watts="nan"), "negative or not finite"),
        (lambda s: s.update(power_watts=-1.0), "negative or not finite"),
    ],
)
def test_energy_that_cannot_be_known_is_null_with_the_reason(
    run: RunPaths, change: Callable[[Event], object], says: str
) -> None:
    readings(run, change)
    found = collect(run)
    assert found.status.word == "valid" and found.energy.joules.value is None
    assert says in (found.energy.joules.reason or "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.update(memory_used_bytes=None), "the vendor's tool gave no figure for device 0"),
        (lambda s: s.update(memory_used_bytes=0), "gave 0 bytes"),
        (lambda s: s.update(memory_used_bytes=USED_BYTES * 1024), "units or device differ"),
        (lambda s: s.update(memory_used_bytes=USED_BYTES // 1024), "units or device differ"),
    ],
)
def test_memory_that_cannot_be_right_is_null_with_the_reason(
    run: RunPaths, change: Callable[[Event], object], says: str
) -> None:
    readings(run, change)
    figure = collect(run).memory.device_used_peak
    assert figure.value is None and says in (figure.reason or "")


def test_without_telemetry_the_figures_of_the_tool_are_null(run: RunPaths) -> None:
    run.telemetry.unlink()
    found = collect(run)
    assert found.status.word == "valid" and found.throughput is not None
    assert found.memory.device_used_peak.value is None and found.energy.joules.value is None
    assert found.memory.device_used_peak.reason and found.energy.joules.reason


def test_a_speed_above_the_peak_is_no_utilisation(run: RunPaths) -> None:
    for rank in (0, 1):  # as if nanoseconds had been written as hundreds of femtoseconds
        change_steps(run, lambda e: e.update(end_ns=7_000_000_000_000 + e["step"] * 50), rank)
    found = palm(collect(run))
    assert found.value is None and found.reason is not None and "above" in found.reason
