"""Runs of two nodes: each node's readings on its own clock, and what happens when one node's are missing or wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from levelfield.judge import node_figures
from levelfield.judge.collector import collect
from levelfield.rundir.directory import read_plan
from levelfield.rundir.node_parts import node_parts
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.layout import Layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result, Status
from levelfield.store.run_traces import telemetry_summary
from node_runs import HOUR_NS, lines_of, spread, write_lines
from recorded_runs import BEGIN_NS, SECOND_NS, USED_BYTES, WATTS, Event, change_lines, edit, seal_again

JOULES = (WATTS + 2 * WATTS) * 5.0  # the window lasts five seconds on each clock


def collected(run: RunPaths) -> Result:
    seal_again(run)
    return collect(run)


@pytest.mark.parametrize("ahead_ns", [0, HOUR_NS, -HOUR_NS], ids=["same clock", "an hour ahead", "an hour behind"])
def test_each_node_is_measured_on_its_own_clock(run: RunPaths, ahead_ns: int) -> None:
    result = collect(spread(run, ahead_ns))
    assert result.status.word == "valid", result.status
    assert result.energy.joules.value == pytest.approx(JOULES) and result.energy.mean_watts.value == pytest.approx(300)
    assert result.energy.joules_per_token.value == pytest.approx(JOULES / 640)
    assert result.memory.device_used_peak.value == USED_BYTES + 1, "of node1, the fuller one"
    assert result.memory.process_peak.value == 2**30 + 1
    assert result.load is not None and result.load.value == 0.5
    assert result.throughput is not None and result.throughput.tokens_per_second == pytest.approx(128)


def test_the_figures_are_those_of_the_same_run_on_one_machine(run: RunPaths) -> None:
    one = collect(run)
    two = collect(spread(run))
    assert (one.throughput, one.loss, one.identity) == (two.throughput, two.loss, two.identity)
    assert one.memory.process_peak == two.memory.process_peak


@pytest.mark.parametrize("node", [0, 1])
def test_a_missing_node_file_gives_no_figure_and_names_the_node(run: RunPaths, node: int) -> None:
    spread(run).node_telemetry(node).unlink()
    result = collected(run)
    assert result.status.word == "valid", "the training is whole"
    reasons = [
        figure.reason
        for figure in (result.energy.joules, result.energy.mean_watts, result.memory.device_used_peak, result.load)
        if figure is not None and figure.value is None
    ]
    assert len(reasons) == 4
    assert result.other_use is not None
    reasons.append(result.other_use.host_in_window.reason)
    assert {(reason or "").partition(": ")[0] for reason in reasons} == {f"node{node}"}
    assert all("no telemetry" in (reason or "") for reason in reasons)


def test_without_any_telemetry_the_first_node_is_named(run: RunPaths) -> None:
    shutil.rmtree(spread(run).telemetry_folder)
    result = collected(run)
    assert result.energy.joules.value is None
    assert (result.energy.joules.reason or "").startswith("node0: ")


def swapped(run: RunPaths) -> None:
    first, second = run.node_telemetry(0), run.node_telemetry(1)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def test_swapped_files_cover_no_window(run: RunPaths) -> None:
    swapped(spread(run))
    result = collected(run)
    assert result.energy.joules.value is None
    reason = result.energy.joules.reason or ""
    assert reason.startswith("node0: device 0: ")
    assert "cover 0%" in reason
    assert result.memory.device_used_peak.value is None


def test_a_copy_of_another_nodes_file_makes_the_run_invalid(run: RunPaths) -> None:
    spread(run, ahead_ns=0)
    shutil.copy(run.node_telemetry(0), run.node_telemetry(1))
    result = collected(run)
    assert result.status.word == "invalid"
    assert any("telemetry/node1.jsonl: " in r and "of node0's" in r for r in result.status.reasons)
    assert result.energy.joules.value is None


def test_a_clock_at_twice_the_rate_makes_the_run_invalid(run: RunPaths) -> None:
    result = collect(spread(run, rate=2.0))
    assert result.status.word == "invalid" and result.throughput is None and result.energy.joules.value is None
    assert any("node1 counted" in reason and "10.00 s" in reason for reason in result.status.reasons)


@pytest.mark.parametrize("rate", [0.5, 1.3])
def test_a_clock_at_another_rate_makes_the_run_invalid(run: RunPaths, rate: float) -> None:
    assert collect(spread(run, rate=rate)).status.word == "invalid"


def test_a_clock_that_drifts_by_a_hundredth_is_within_the_noise(run: RunPaths) -> None:
    assert collect(spread(run, rate=1.01)).status.word == "valid"


def test_a_truncated_last_line_is_dropped(run: RunPaths) -> None:
    path = spread(run).node_telemetry(1)
    path.write_bytes(path.read_bytes()[:-20])
    assert collected(run).status.word == "valid"


BROKEN: dict[str, Callable[[RunPaths], object]] = {
    "a line cut in two": lambda run: edit_text(run, '"samples"', '"sam\n"'),
    "a time that is no number": lambda run: edit_text(run, '{"time_ns": ', '{"time_ns": "x", "was": '),
    "a file of a node that the run lacks": lambda run: shutil.copy(run.node_telemetry(1), run.node_telemetry(7)),
    "a file of nobody": lambda run: (run.telemetry_folder / "node1.jsonl.bak").write_text("{}\n"),
    "a number with a zero before it": lambda run: (run.telemetry_folder / "node01.jsonl").write_text("{}\n"),
    "telemetry of the platform's machine": lambda run: shutil.copy(run.node_telemetry(0), run.telemetry),
}


def edit_text(run: RunPaths, old: str, new: str) -> None:
    path = run.node_telemetry(1)
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_telemetry_makes_the_run_invalid(run: RunPaths, name: str) -> None:
    BROKEN[name](spread(run))
    result = collected(run)
    assert result.status.word == "invalid" and any("telemetry" in r for r in result.status.reasons), result.status


def of_node1(run: RunPaths, change: Callable[[Event], object]) -> None:
    change_lines(run.node_telemetry(1), change)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("power_watts", float("nan"), "node1: device 0: the trapezoid has a value that is negative or not finite"),
        ("power_watts", 250_000.0, "node1: device 0: 250000 W on average is no chip's power: units differ"),
        ("power_watts", None, "node1: device 0: neither power nor an energy counter could be read (not supported)"),
    ],
)
def test_a_damaged_power_of_one_node_is_no_sum(run: RunPaths, field: str, value: float | None, reason: str) -> None:
    spread(run)
    of_node1(run, lambda line: line["samples"][0].update({field: value, "reasons": {field: "not supported"}}))
    assert collect(run).energy.joules.value is None
    assert (collect(run).energy.joules.reason or "").startswith(reason.removesuffix(" (not supported)"))


def test_memory_above_the_capacity_of_one_node_is_unknown(run: RunPaths) -> None:
    spread(run)
    of_node1(run, lambda line: line["samples"][0].update(memory_used_bytes=2**50))
    peak = collect(run).memory.device_used_peak
    assert peak.value is None and (peak.reason or "").split(": ")[:2] == ["node1", "device 0"]


def test_other_programs_on_one_node_are_named(run: RunPaths) -> None:
    spread(run)
    of_node1(run, lambda line: line["host"].update(own_seconds=line["host"]["own_seconds"] / 4))
    result = collect(run)
    assert result.other_use is not None and result.other_use.host_in_window.value == pytest.approx(0.75)
    (warning,) = (w for w in result.warnings if "programs" in w)
    assert warning.startswith("node1: ")
    assert "0.75 of 4" in warning


def test_a_devices_use_before_the_training_has_the_nodes_name(run: RunPaths) -> None:
    spread(run)
    for node in (0, 1):
        edit(run.node_telemetry(node), lambda lines: [{**lines[0], "before": True}, *lines[1:]])
    result = collect(run)
    assert result.other_use is not None
    assert [use.device for use in result.other_use.devices] == ["node0/0", "node1/0"]


def test_foreign_load_on_any_node_explains_a_slow_step(run: RunPaths) -> None:
    """Step 7 lasts 5 s longer on both clocks; on node1 other programs hold all cores during it."""
    spread(run)
    begin = BEGIN_NS + 3 * SECOND_NS
    for node, ahead in ((0, 0), (1, HOUR_NS)):
        stretch(run, node, begin + ahead, 5 * SECOND_NS)
    unexplained = collect(run).disturbance
    assert unexplained is not None and unexplained.unexplained > 0.3

    def busy(line: Event) -> None:
        line["host"]["own_seconds"] = 0.0
        line["host"]["busy_seconds"] *= 4.0

    of_node1(run, busy)
    explained = collect(run).disturbance
    assert explained is not None and explained.unexplained == 0.0 and explained.outliers == unexplained.outliers


def stretch(run: RunPaths, node: int, after_ns: int, by_ns: int) -> None:
    """Move all events and readings of a node after a time by `by_ns`, and read in between."""

    def later(events: list[Event]) -> list[Event]:
        return [
            {**e, "end_ns": e["end_ns"] + by_ns * (e["end_ns"] > after_ns + 10)} if "end_ns" in e else e for e in events
        ]

    edit(run.events / f"rank{node}.jsonl", later)
    lines = lines_of(run.node_telemetry(node))
    last = lines[-1]
    for second in range(1, by_ns // SECOND_NS + 1):
        time_ns = last["time_ns"] + second * SECOND_NS
        seconds = last["host"]["busy_seconds"] + second
        host = {**last["host"], "time_ns": time_ns, "busy_seconds": seconds, "own_seconds": seconds}
        lines.append({**last, "time_ns": time_ns, "wall_ns": last["wall_ns"] + second * SECOND_NS, "host": host})
    write_lines(run.node_telemetry(node), lines)
    seal_again(run)


def test_a_stored_summary_is_over_all_nodes(run: RunPaths) -> None:
    spread(run)
    plan, raw = read_plan(run), read_raw(run)
    summary = telemetry_summary(plan, raw)
    assert summary["power_watts_mean"] == pytest.approx(1.5 * WATTS) and summary["power_watts_max"] == 2 * WATTS
    assert summary["host_busy_cores_mean"] == pytest.approx(1.0)


def test_the_ranks_and_devices_of_each_node(run: RunPaths) -> None:
    spread(run)
    first, second = node_parts(read_plan(run), read_raw(run))
    assert (first.name, list(first.ranks), first.device_indices) == ("node0", [0], ("0",))
    assert (second.name, list(second.ranks), second.device_name("0")) == ("node1", [1], "node1/0")


def test_the_slowest_step_has_the_telemetry_of_the_node_whose_clock_counts(run: RunPaths) -> None:
    """The longest window is rank 1's, and on node1 other programs ran."""
    spread(run)
    of_node1(run, lambda line: line["host"].update(own_seconds=line["host"]["own_seconds"] / 4))
    last = read_plan(run).work.window.last_step

    def later(events: list[Event]) -> list[Event]:
        return [{**e, "end_ns": e["end_ns"] + 1000} if e.get("step", 0) >= last else e for e in events]

    edit(run.events / "rank1.jsonl", later)
    figures = collect(run).disturbance
    assert figures is not None
    others = figures.slowest.telemetry[0]
    assert others.what == "other programs" and others.in_window == pytest.approx(0.75)


def test_each_pipeline_stage_has_its_own_peak(run: RunPaths) -> None:
    spread(run)
    of_node1(run, lambda line: line["samples"][0].update(memory_used_bytes=2 * USED_BYTES))
    plan, status = read_plan(run), Status(word="valid")
    parts = node_parts(plan, read_raw(run))
    assert node_figures.run_memory(plan, parts, status).stage_peaks is None
    tuning = plan.tuning.model_copy(update={"layout": Layout(pipeline=2)})
    staged = node_figures.run_memory(plan.model_copy(update={"tuning": tuning}), parts[::-1], status)
    assert staged.stage_peaks == (USED_BYTES, 2 * USED_BYTES)
