"""From raw files to figures: what a run by a made-up clock must give, and the same bytes every time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from levelfield.catalog.registry import Registry
from levelfield.judge.collector import collect
from levelfield.report.tables import format_text
from levelfield.run.runner import finish
from levelfield.rundir.directory import read_plan, write_json
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result, TuningFound, Utilisation
from recorded_runs import (
    USED_BYTES,
    WATTS,
    Event,
    break_off,
    change_all_steps,
    change_lines,
    change_plan,
    edit,
    report_framework,
    seal_again,
)
from report_rows import report_rows, terminal_rows

WINDOW_SECONDS, WINDOW_TOKENS = 5.0, 640  # steps 3 to 12 of half a second and 64 tokens each


def readings(run: RunPaths, change: Callable[[Event], object]) -> None:
    """Change each sample of the vendor's tool in place."""
    change_lines(run.telemetry, lambda line: [change(sample) for sample in line["samples"]])


def headline(result: Result) -> Utilisation:
    return next(u for u in result.utilisation if u.formula == "megatron/1")


def test_throughput_is_tokens_over_the_windows_wall_time(run: RunPaths) -> None:
    throughput = collect(run).throughput
    assert throughput is not None
    assert (throughput.wall_seconds, throughput.tokens_per_second) == (WINDOW_SECONDS, WINDOW_TOKENS / WINDOW_SECONDS)
    assert throughput.tokens_per_second_per_device == 64
    step = throughput.step_seconds
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
    assert memory.reserved_peak.value is None
    assert "rank 0" in (memory.reserved_peak.reason or "")


def test_mfu_is_against_the_measured_peak_and_names_its_source(run: RunPaths) -> None:
    mfu, peak = headline(collect(run)), read_plan(run).peak
    assert (mfu.peak_tflops, mfu.peak_source) == (peak.tflops, peak.source)
    assert mfu.peak_tflops == 2.0
    assert mfu.flops_per_token is not None
    assert mfu.value == pytest.approx(64 * mfu.flops_per_token / 2e12)


def test_stored_references_have_every_field_of_the_identity(registry: Registry) -> None:
    """The layer `identity` compares all of them: one that references lack would make every run not comparable."""
    for name in registry.references:
        identity = registry.reference(name).identity
        assert [key for key, value in identity.model_dump().items() if value is None] == [], name


def test_identity_says_what_was_trained(run: RunPaths) -> None:
    plan, identity = read_plan(run), collect(run).identity
    assert (identity.work, identity.corpus) == (plan.work_digest, plan.corpus.digest)
    assert identity.initial_weights is not None and identity.initial_weights.startswith("sha256:")
    assert identity.tokens is not None and len(identity.tokens) == 16


def test_a_run_is_base_until_somebody_chose_a_field(run: RunPaths) -> None:
    peak = collect(run).tuning
    assert peak == TuningFound(word="peak", chosen={"micro_batch": "vendor", "threads": "vendor"})
    plan = read_plan(run)
    assert plan.origins["layout"].startswith("default") and plan.origins["recompute"] == "case tiny"
    defaults = {**plan.origins, "micro_batch": "case tiny", "threads": "default: 2 usable cores over 2 process(es)"}
    change_plan(run, origins=defaults)
    base = collect(run)
    assert base.tuning == TuningFound(word="base", chosen={})
    assert (terminal_rows(base)["tuning"], report_rows(run, base)["tuning"]) == ("base", ["base"])
    tuned = base.model_copy(update={"tuning": TuningFound(word="peak", chosen={"layout": "command line"})})
    columns = [re.split("  +", line)[-1] for line in format_text([base, tuned]).splitlines()]
    assert "base" in columns
    assert any(column.startswith("tuned: layout") for column in columns)


def test_the_loss_has_its_floor_beside_it(run: RunPaths) -> None:
    loss = collect(run).loss
    assert loss.first == pytest.approx(4 * 0.9) and loss.last == pytest.approx(4 * 0.9**12)
    assert loss.tail_mean == pytest.approx(2 * (0.9**11 + 0.9**12))
    assert loss.floor == read_plan(run).corpus.entropy_nats


@pytest.mark.parametrize(
    ("identities", "place"),
    [(["of 1", "unknown"], None), (["of 2"], 2), (["of 3"], 3), (["unknown"], None), ([], None), (None, None)],
)
def test_a_rank_on_another_device_than_the_planned_one_makes_a_run_invalid(
    run: RunPaths, identities: list[str] | None, place: int | None
) -> None:
    """Rank 1 was planned on the second device, of one card with device 4. An unlisted identity tells nothing."""
    indices = read_plan(run).hardware.device_indices
    rows = [{"index": index, "identity": f"of {number}"} for number, index in enumerate(indices)]
    others = [{"index": 2, "identity": "of 2"}, {"index": 3, "identity": "of 3"}, {"index": 4, "identity": "of 1"}]
    write_json(run.provenance, {"devices": rows, "other_devices": others})
    report_framework(run, 1, details={"device_identities": identities})
    seal_again(run)
    status = collect(run).status
    assert status.word == ("valid" if place is None else "invalid")
    planned = f"device: rank 1 trained on device {place} of the vendor's tool, planned {indices[1]}"
    assert [reason for reason in status.reasons if reason.startswith("device")] == ([] if place is None else [planned])


def test_the_framework_is_the_one_that_ran(run: RunPaths) -> None:
    report_framework(run, version="9.9")
    assert collect(run).framework_version == "9.9"


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
    ("change", "words"),
    [
        (lambda s: s.update(power_watts=None, reasons={"power_watts": "not supported"}), "(not supported)"),
        (lambda s: s.update(power_watts=WATTS * 1000), "no chip's power: units differ"),
        (lambda s: s.update(power_watts="nan"), "negative or not finite"),
    ],
)
def test_energy_that_cannot_be_known_is_null_with_the_reason(
    run: RunPaths, change: Callable[[Event], object], words: str
) -> None:
    readings(run, change)
    result = collect(run)
    assert result.status.word == "valid" and result.energy.joules.value is None
    assert words in (result.energy.joules.reason or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(memory_used_bytes=None), "the vendor's tool gave no figure for device 0"),
        (lambda s: s.update(memory_used_bytes=USED_BYTES * 1024), "units or device differ"),
    ],
)
def test_memory_that_cannot_be_right_is_null_with_the_reason(
    run: RunPaths, change: Callable[[Event], object], words: str
) -> None:
    readings(run, change)
    figure = collect(run).memory.device_used_peak
    assert figure.value is None and words in (figure.reason or "")


def dies_after(run: RunPaths, seconds: int) -> None:
    """From this second on the tool gives no value."""
    begin = json.loads(run.telemetry.read_text().splitlines()[0])["time_ns"]

    def hang(line: Event) -> None:
        if line["time_ns"] > begin + seconds * 10**9:
            reasons = dict.fromkeys(("power_watts", "energy_joules", "memory_used_bytes"), "acme-smi hangs")
            line["samples"] = [{"index": sample["index"], "reasons": reasons} for sample in line["samples"]]

    change_lines(run.telemetry, hang)


def test_a_tool_that_died_before_the_window_leaves_no_old_peak(run: RunPaths) -> None:
    dies_after(run, 1)
    figure = collect(run).memory.device_used_peak
    assert figure.value is None
    reason = figure.reason or ""
    assert reason.startswith("device 0: ")
    assert [word for word in ("cover 0%", "95%", "(acme-smi hangs)") if word not in reason] == [], reason
    assert collect(run).energy.joules.value is None


def test_a_tool_that_died_after_the_window_costs_nothing(run: RunPaths) -> None:
    dies_after(run, 6)
    assert collect(run).memory.device_used_peak.value == USED_BYTES


@pytest.mark.parametrize("watts", [0.0, 0.5, 0.9])
def test_less_power_than_an_accelerator_draws_is_no_energy(run: RunPaths, watts: float) -> None:
    readings(run, lambda s: s.update(power_watts=watts))
    joules = collect(run).energy.joules
    assert joules.value is None
    assert f"{watts:g} W" in (joules.reason or "")


def test_without_telemetry_the_figures_of_the_tool_are_null(run: RunPaths) -> None:
    run.telemetry.unlink()
    seal_again(run)
    result = collect(run)
    assert result.status.word == "valid" and result.throughput is not None
    assert result.memory.device_used_peak.value is None and result.energy.joules.value is None
    assert result.memory.device_used_peak.reason and result.energy.joules.reason


def test_a_speed_above_the_peak_is_no_utilisation(run: RunPaths) -> None:
    # as if nanoseconds had been written as hundreds of femtoseconds
    change_all_steps(run, lambda event: event.update(end_ns=7_000_000_000_000 + event["step"] * 50))
    mfu = headline(collect(run))
    assert mfu.value is None and mfu.reason is not None and "above" in mfu.reason


# -- what others use


def with_host(run: RunPaths, others: float, own: float | None = 1.0) -> None:
    """Host counters in every line, of two cores, of which others use so much; the first two lines are from before."""

    def apply(lines: list[Event]) -> list[Event]:
        first = lines[0]["time_ns"]
        earlier = {"time_ns": first - 10**9, "samples": [], "before": True}
        for number, line in enumerate([earlier, *lines]):
            counted = {"busy_seconds": number * (others + (own or 0)), "own_seconds": own and number * own, "cores": 2}
            line["host"] = {"time_ns": line["time_ns"], **counted}
        lines[0]["before"] = True
        return [earlier, *lines]

    edit(run.telemetry, apply)


def test_a_run_without_a_record_of_others_has_none(run: RunPaths) -> None:
    assert collect(run).other_use is None and collect(run).warnings == ()


def test_other_programs_on_the_host_are_a_figure_and_above_the_limit_a_warning(run: RunPaths) -> None:
    with_host(run, 0.5)
    result = collect(run)
    assert result.status.word == "valid" and result.other_use is not None
    assert result.other_use.host_in_window.value == pytest.approx(0.5)
    assert result.other_use.host_before.value == pytest.approx(0.5) and result.other_use.host_cores == 2
    (warning,) = (w for w in result.warnings if "programs" in w)
    assert "0.50 of 2" in warning
    assert "(limit: 0.2)" in warning


def test_an_idle_host_gives_no_warning(run: RunPaths) -> None:
    with_host(run, 0.1)
    assert [w for w in collect(run).warnings if "programs" in w] == []


def test_the_load_before_a_run_that_ended_early_is_a_warning(run: RunPaths) -> None:
    with_host(run, 0.5)
    break_off(run, 2)
    result = collect(run)
    assert result.other_use is not None and result.other_use.host_in_window.value is None
    assert any("0.50 of 2" in w and "before the" in w for w in result.warnings), result.warnings


def test_a_device_that_others_use_is_named(run: RunPaths) -> None:
    with_host(run, 0.0)
    result = collect(run)  # the recorded devices hold three of eight GiB
    assert result.other_use is not None and [d.in_use for d in result.other_use.devices] == [True, True]
    assert "device 0: " in result.warnings[0]
    assert "3.0 GiB of" in result.warnings[0] and "8.0 GiB," in result.warnings[0]
    readings(run, lambda s: s.update(memory_used_bytes=2**29, utilisation=0.0))
    assert collect(run).warnings == ()


def test_a_device_without_any_value_before_the_training_is_named(run: RunPaths) -> None:
    with_host(run, 0.0)
    reason = "device 1 is gone"

    def lose(sample: Event) -> None:
        if sample["index"] == 1:
            sample.update(memory_used_bytes=None, power_watts=None, reasons={"memory_used_bytes": reason})
        else:
            sample.update(memory_used_bytes=2**29)

    readings(run, lose)
    result = collect(run)
    assert [warning.partition(": ")[2] for warning in result.warnings] == [reason]
    assert result.warnings[0].startswith("device 1 ")
    assert result.other_use is not None and result.other_use.devices[1].in_use is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [({}, "the vendor's tool gave no reading in time"), ({"error": "OSError: driver gone"}, "OSError: driver gone")],
)
def test_a_tool_that_gave_no_reading_before_the_training_is_named(run: RunPaths, error: Event, reason: str) -> None:
    with_host(run, 0.0)
    edit(
        run.telemetry,
        lambda lines: [{**line, "samples": [], **error} if line.get("before") else line for line in lines],
    )
    warnings = [warning.partition(": ") for warning in collect(run).warnings]
    assert [text for _, _, text in warnings] == [reason, reason]
    assert [start[:9] for start, _, _ in warnings] == ["device 0 ", "device 1 "]


@pytest.mark.parametrize("damage", [{"host": {}}, {"host": 7}, {"host": {"busy_seconds": "x"}}])
def test_a_damaged_reading_of_the_host_is_a_broken_raw_file(run: RunPaths, damage: Event) -> None:
    edit(run.telemetry, lambda lines: [{**lines[0], **damage}, *lines[1:]])
    status = collect(run).status
    assert status.word == "invalid"
    assert status.reasons[0].startswith("raw files: telemetry.jsonl")
