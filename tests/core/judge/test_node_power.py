"""Node power in a result: closed forms, and readings that are missing, stale, shifted, of another unit or machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from levelfield.judge.collector import collect
from levelfield.measure.cost import ResourceUse, cost_per_million_tokens
from levelfield.measure.energy import node_energy
from levelfield.measure.raw_facts import PowerReading
from levelfield.report.costs import RunCosts
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump, parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.prices import Prices
from levelfield.specs.result import NodeEnergy, Result
from levelfield.specs.site import NodePowerPlan
from node_runs import HOUR_NS, WALL_NS, lines_of, spread, write_lines
from recorded_runs import BEGIN_NS, SECOND_NS, WATTS, Event, edit, seal_again
from report_rows import report_rows

TENTH = SECOND_NS // 10
SOURCE = "Redfish Power"
NODE_WATTS = 500.0  # of the one machine, whose two chips draw 100 W each
TOKENS, SECONDS = 640, 5.0
Lines = list[Event]


def answers(watts: Callable[[float], float], node: int = 0, ahead_ns: int = 0) -> Lines:
    """An answer each tenth of a second over the training; the argument is the seconds since it began."""
    times = range(-TENTH, 7 * SECOND_NS, TENTH)
    return [
        {
            "time_ns": BEGIN_NS + t,
            "wall_ns": WALL_NS + t + ahead_ns,
            "node": node,
            "watts": watts(t / SECOND_NS),
            "stamp": f"{t}",
        }
        for t in times
    ]


def ripple(second: float) -> float:
    """A power that is NODE_WATTS on average over each fifth of a second."""
    return NODE_WATTS + (1.0 if round(second * 10) % 2 else -1.0)


def recorded(run: RunPaths, lines: Lines, verify: bool = True) -> Result:
    power = NodePowerPlan(protocol="command" if verify else "redfish", seconds=0.1, verify=verify)
    run.plan.write_text(dump(read_plan(run).model_copy(update={"node_power": power})))
    write_lines(run.node_power, [{"time_ns": BEGIN_NS, "wall_ns": WALL_NS, "node": 0, "source": SOURCE}, *lines])
    seal_again(run)
    return collect(run)


def nodes_of(result: Result) -> NodeEnergy:
    assert result.status.word == "valid" and result.energy.nodes is not None, result.status
    return result.energy.nodes


def test_without_node_power_there_is_no_section(run: RunPaths) -> None:
    assert collect(run).energy.nodes is None


def test_the_energy_of_the_window_beside_the_chips(run: RunPaths) -> None:
    nodes = nodes_of(recorded(run, answers(ripple)))
    assert nodes.joules.value == pytest.approx(NODE_WATTS * SECONDS, rel=1e-4)
    assert nodes.joules_per_token.value == pytest.approx(NODE_WATTS * SECONDS / TOKENS, rel=1e-4)
    assert nodes.mean_watts.value == pytest.approx(NODE_WATTS, rel=1e-4)
    other = (NODE_WATTS - 2 * WATTS) * SECONDS / TOKENS
    assert nodes.other_joules_per_token.value == pytest.approx(other, rel=1e-3)
    assert nodes.resolution_seconds == pytest.approx(0.1) and nodes.readings == 51
    assert nodes.sources == (SOURCE,)


def test_one_percent_shows(run: RunPaths) -> None:
    nodes = nodes_of(recorded(run, answers(lambda second: 1.01 * ripple(second))))
    assert nodes.joules.value == pytest.approx(1.01 * NODE_WATTS * SECONDS, rel=1e-4)


def test_only_the_window_counts(run: RunPaths) -> None:
    """Before the window, which begins after the second step, the node drew ten times as much."""
    nodes = nodes_of(recorded(run, answers(lambda second: ripple(second) * (10 if second < 0.8 else 1))))
    assert nodes.joules.value == pytest.approx(NODE_WATTS * SECONDS, rel=1e-3)


def test_the_source_names_a_certificate_that_was_not_checked(run: RunPaths) -> None:
    (source,) = nodes_of(recorded(run, answers(ripple), verify=False)).sources
    assert source.split(", ")[0] == SOURCE
    assert "certificate" in source


def error(text: str) -> Event:
    return {"time_ns": BEGIN_NS, "wall_ns": WALL_NS, "node": 0, "error": text}


def stale(lines: Lines) -> Lines:
    return [{**line, "stamp": "the same"} for line in lines]


# A change of the answers, and a part of the reason. The run stays valid with each.
FAULTS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "no answer": (lambda lines: [error("answers 401: x")], "no reading of its power: answers 401: x"),
    "nothing": (lambda lines: [], "no reading of its power: nothing was read"),
    "few": (lambda lines: lines[::8], "readings in a window of 5 s, at least 10 are needed"),
    "stale times": (stale, "0 readings in a window of 5 s (70 had the time of the one before)"),
    "one value": (lambda lines: [{**line, "watts": 500.0} for line in lines], "the source repeats an old one"),
    "a gap": (lambda lines: lines[:21] + lines[-14:], "readings cover"),
    "an early end": (lambda lines: [*lines[:50], error("no answer")], "readings cover 76% of the window"),
    "a zero": (lambda lines: [*lines[:40], {**lines[40], "watts": 0.0}, *lines[41:]], "zero, negative or not finite"),
    "a negative": (lambda lines: [*lines[:40], {**lines[40], "watts": -1.0}, *lines[41:]], "zero, negative or not"),
    "an infinite": (lambda lines: [*lines[:40], {**lines[40], "watts": "inf"}, *lines[41:]], "zero, negative or not"),
    "a NaN": (lambda lines: [*lines[:40], {**lines[40], "watts": "nan"}, *lines[41:]], "zero, negative or not finite"),
    "milliwatts": (lambda lines: [{**x, "watts": 1000 * x["watts"]} for x in lines], "no node's power: units differ"),
    "kilowatts": (lambda lines: [{**x, "watts": x["watts"] / 1000} for x in lines], "less than their chips' 1000 J"),
    "another machine": (lambda lines: [{**x, "watts": x["watts"] - 310} for x in lines], "other machines, or units"),
    "a long average": (lambda lines: [{**x, "period_seconds": 60.0} for x in lines], "averages over 60 s"),
    "an hour ahead": (
        lambda lines: [{**x, "time_ns": x["time_ns"] + HOUR_NS} for x in lines],
        "the clocks of the node",
    ),
    "an hour behind": (
        lambda lines: [{**x, "time_ns": x["time_ns"] - HOUR_NS} for x in lines],
        "the clocks of the node",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_readings_that_give_no_figure_leave_the_run_valid(run: RunPaths, name: str) -> None:
    change, words = FAULTS[name]
    result = recorded(run, change(answers(ripple)))
    nodes = nodes_of(result)
    figures = (nodes.joules, nodes.joules_per_token, nodes.mean_watts, nodes.other_joules_per_token)
    assert [figure.value for figure in figures] == [None] * 4
    assert all(words in (figure.reason or "") for figure in figures), figures
    assert result.energy.joules_per_token.value == pytest.approx(2 * WATTS * SECONDS / TOKENS), "the chips' own stays"


def test_the_last_error_is_beside_the_reason(run: RunPaths) -> None:
    text = "no answer within 10 s"
    nodes = nodes_of(recorded(run, [*answers(ripple)[:50], error(text)]))
    assert (nodes.joules.reason or "").endswith(f" (node power: {text})")


def test_without_the_chips_own_energy_the_nodes_have_theirs(run: RunPaths) -> None:
    edit(
        run.telemetry,
        lambda lines: [{**x, "samples": [{**s, "power_watts": None} for s in x["samples"]]} for x in lines],
    )
    result = recorded(run, answers(ripple))
    nodes = nodes_of(result)
    assert nodes.joules.value == pytest.approx(NODE_WATTS * SECONDS, rel=1e-4)
    assert nodes.other_joules_per_token.value is None
    assert nodes.other_joules_per_token.reason == result.energy.joules.reason


@pytest.mark.parametrize("broken", ['{"time_ns": 1, "wall_ns": 1, "node": 0, "watts"\n', '{"watts": NaN}\n'])
def test_a_damaged_line_makes_the_run_invalid_as_one_of_telemetry_does(run: RunPaths, broken: str) -> None:
    recorded(run, answers(ripple))
    run.node_power.write_text(run.node_power.read_text() + broken)
    seal_again(run)
    assert collect(run).status.word == "invalid"


def test_a_reading_that_was_changed_breaks_the_seal(run: RunPaths) -> None:
    recorded(run, answers(ripple))
    run.node_power.write_text(run.node_power.read_text().replace("501.0", "301.0", 1))
    assert collect(run).status.word == "tampered"


# --- two nodes, each with a clock of its own


def two(run: RunPaths, ahead_ns: int, wall_ahead_ns: int, of_second: Callable[[float], float]) -> Result:
    spread(run, ahead_ns=ahead_ns, wall_ahead_ns=wall_ahead_ns)
    plan = read_plan(run)
    launch = {"launcher": "ssh", "site": {"schema": "levelfield.site/1"}}
    content = json.loads(dump(plan)) | {"launch": {**launch, "site": {}}}
    run.plan.write_text(dump(parse(Plan, content, "plan")))
    return recorded(run, [*answers(ripple), *answers(of_second, node=1)])


@pytest.mark.parametrize("ahead_ns", [0, HOUR_NS, -HOUR_NS])
def test_each_node_is_placed_by_the_time_of_day(run: RunPaths, ahead_ns: int) -> None:
    nodes = nodes_of(two(run, ahead_ns, 0, lambda second: 2 * ripple(second)))
    assert nodes.mean_watts.value == pytest.approx(3 * NODE_WATTS, rel=1e-3)


def test_a_node_whose_time_of_day_is_wrong_is_named(run: RunPaths) -> None:
    nodes = nodes_of(two(run, 0, HOUR_NS, ripple))
    assert (nodes.joules.reason or "").startswith("node1: ")
    assert "the clocks" in (nodes.joules.reason or "")


def test_a_node_without_readings_is_named_and_nothing_is_summed(run: RunPaths) -> None:
    joules = nodes_of(two(run, 0, 0, lambda second: 0.0)).joules
    assert joules.value is None
    assert (joules.reason or "").startswith("node1: ")
    assert "zero" in (joules.reason or "")


# --- the formula, with readings that come every two seconds


def every(seconds: float, watts: Sequence[float], stamps: Sequence[str | None] | None = None) -> list[PowerReading]:
    times = [round(n * seconds * SECOND_NS) for n in range(len(watts))]
    return [PowerReading(t, t, w, s) for t, w, s in zip(times, watts, stamps or [None] * len(watts), strict=True)]


def test_a_ramp_is_integrated_exactly_between_readings() -> None:
    use = node_energy(every(2, [100.0 + n for n in range(20)]), 3 * SECOND_NS, 30 * SECOND_NS)
    assert use.joules == pytest.approx(27 * (100 + 16.5 / 2)) and (use.readings, use.resolution_seconds) == (14, 2)


def test_ten_readings_are_enough_and_nine_are_not() -> None:
    watts = [100.0 + n % 3 for n in range(20)]
    assert node_energy(every(2, watts), 0, 18 * SECOND_NS).joules is not None
    reason = node_energy(every(2, watts), 0, 17 * SECOND_NS).reason or ""
    assert reason.startswith("9 readings ")
    assert [word for word in ("17 s", "least 10") if word not in reason] == [], reason


def test_a_repeated_answer_counts_once() -> None:
    """The source is read each second and measures every three: the resolution is three seconds."""
    stamps = [str(n // 3) for n in range(60)]
    use = node_energy(every(1, [100.0 + n // 3 % 7 for n in range(60)], stamps), 0, 57 * SECOND_NS)
    assert (use.readings, use.resolution_seconds) == (20, 3) and use.joules is not None
    assert "8 readings" in (
        node_energy(every(1, [100.0 + n % 7 for n in range(60)], stamps), 0, 21 * SECOND_NS).reason or ""
    )


# --- cost, report


def test_the_cost_is_of_the_nodes_power_where_it_was_measured() -> None:
    owned = {"capital": 87660.0, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.3, "pue": 1.5}
    chips = {"X1": {"per": "node", "own": owned}}
    prices = parse(Prices, {"schema": "levelfield.prices/1", "currency": "EUR", "chips": chips}, "prices")

    def power(joules_per_token: float | None, node_joules_per_token: float | None) -> tuple[float | None, str | None]:
        use = ResourceUse("X1", False, 2, 16, 20_000.0, joules_per_token, node_joules_per_token=node_joules_per_token)
        paid = cost_per_million_tokens(use, prices)
        return paid.power and round(paid.power, 9), paid.power_of

    assert power(0.6, 1.2) == (0.15, "nodes")
    assert power(None, 1.2) == (0.15, "nodes")
    assert power(0.6, None) == (0.075, "chips")


def test_the_cost_of_a_run_names_whose_power_it_has(run: RunPaths) -> None:
    owned = {"capital": 1000.0, "years": 4, "utilisation": 1, "power_per_kwh": 0.3, "pue": 1}
    content = {"schema": "levelfield.prices/1", "currency": "EUR", "chips": {"F1": {"per": "node", "own": owned}}}
    costs = RunCosts(parse(Prices, content, "prices"))
    before, after = collect(run), recorded(run, answers(ripple))
    assert "its chips" in costs.explain(before)[1]
    assert "its nodes" in costs.explain(after)[1]
    assert [word for word in ("of chips", "of nodes") if word not in costs.notes([before, after])[-1]] == []
    per_token = nodes_of(after).joules_per_token.value
    assert per_token is not None and costs.cost_of(after).power == pytest.approx(per_token * 0.3 / 3.6)


def energy_rows(run: RunPaths, result: Result) -> list[list[str]]:
    return [cells for name, cells in report_rows(run, result).items() if name.startswith("energy")]


def test_the_report_shows_both_and_how_well_they_are_known(run: RunPaths) -> None:
    chips, nodes, other = energy_rows(run, recorded(run, answers(ripple)))
    assert chips == ["1.5625 J/token", "boundary: chip"]
    assert re.fullmatch(r"3\.906\d J/token", nodes[0])
    assert nodes[1].startswith("500 W ")
    assert "51 readings, " in nodes[1] and " 0.1 s; " in nodes[1]
    assert nodes[1].endswith(SOURCE)
    assert re.fullmatch(r"2\.34\d+ J/token", other[0])
    assert other[1].startswith("60 % ")


def test_the_report_shows_why_the_energy_of_nodes_is_not_known(run: RunPaths) -> None:
    result = recorded(run, [error("answers 401: x")])
    _, nodes, _ = energy_rows(run, result)
    assert nodes == ["- J/token", f"{nodes_of(result).joules.reason}; {SOURCE}"]


def test_the_file_is_one_of_the_sealed(run: RunPaths, tmp_path: Path) -> None:
    recorded(run, answers(ripple))
    assert "node_power.jsonl" in json.loads(run.outcome.read_text())["seal"]["files"]
    assert lines_of(run.node_power)[1]["watts"] in (499.0, 501.0)
