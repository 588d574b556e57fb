"""One measured run sets one rate of the planner, and `plan --calibrate RUN` says which."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.catalog.lookup import find_selection
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import UsageError
from levelfield.plan.default_layout import LayoutTask, layout_question
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.predict.layout_search import LayoutQuestion, predict
from levelfield.predict.machines import Link
from levelfield.predict.questions import calibrate
from levelfield.specs.constants import Pace
from levelfield.specs.layout import parse_layout
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import Tuning
from levelfield.studies import chip_planner

ENTRY = "llama3_8b:torch:H100:1:8"


@pytest.fixture(scope="module")
def question() -> LayoutQuestion:
    selection = find_selection(Registry(), parse_selector(ENTRY))
    question = layout_question(LayoutTask(selection, selection.case.work("full"), 1, 8))
    assert question is not None
    return question


def with_pace(question: LayoutQuestion, **fields: Any) -> LayoutQuestion:
    constants = question.constants
    pace = constants.pace.model_copy(update=fields)
    return replace(question, constants=constants.model_copy(update={"pace": pace}))


def tuning(layout: str, micro_batch: int = 1) -> Tuning:
    return Tuning(layout=parse_layout(layout).layout, micro_batch=micro_batch)


def test_a_planted_rate_of_products_is_found(question: LayoutQuestion) -> None:
    row = tuning("DP8SH1SP8")
    measured = predict(with_pace(question, matmul_efficiency=0.61), row).tokens_per_second
    rate = calibrate(question, row, measured)
    assert (rate.rate_name, rate.old_rate) == ("matmul_efficiency", Pace.model_fields["matmul_efficiency"].default)
    assert rate.new_rate == pytest.approx(0.61, rel=1e-6)
    again = replace(question, constants=rate.apply_to(question.constants, False))
    assert predict(again, row).tokens_per_second == pytest.approx(measured, rel=1e-6)
    assert predict(question, row).tokens_per_second == rate.row.tokens_per_second, "the question stays as it was"


@pytest.mark.parametrize(("devices_per_node", "rate"), [(8, "communication_efficiency"), (4, "network_efficiency")])
def test_where_messages_take_most_of_a_step_the_link_is_free(
    question: LayoutQuestion, devices_per_node: int, rate: str
) -> None:
    machine = replace(
        question.machine, node=Link(1e-6, 2e10), network=Link(1e-5, 5e9), devices_per_node=devices_per_node
    )
    slow, row = replace(question, machine=machine), tuning("TP8")
    measured = predict(with_pace(slow, **{rate: 0.3}), row).tokens_per_second
    calibrated = calibrate(slow, row, measured)
    assert calibrated.rate_name == rate and calibrated.new_rate == pytest.approx(0.3, rel=1e-6)


def test_a_host_has_its_own_pace(question: LayoutQuestion) -> None:
    host = replace(question, on_host=True)
    row = tuning("DP8SH1SP8")
    calibrated = calibrate(host, row, 0.9 * predict(host, row).tokens_per_second)
    applied = calibrated.apply_to(host.constants, True)
    assert applied.pace == host.constants.pace and applied.host_pace != host.constants.host_pace


@pytest.mark.parametrize("measured", [math.nan, math.inf, 0.0, -1.0])
def test_no_speed_is_refused(question: LayoutQuestion, measured: float) -> None:
    with pytest.raises(UsageError, match="expected a positive speed"):
        calibrate(question, tuning("DP8SH1SP8"), measured)


@pytest.mark.parametrize("factor", [10, 0.01])
def test_a_speed_that_no_rate_explains_is_refused(question: LayoutQuestion, factor: float) -> None:
    row = tuning("DP8SH1SP8")
    with pytest.raises(UsageError, match=r"found [\d,]+ tokens/s on each device, expected [\d,]+ to [\d,]+: no rate"):
        calibrate(question, row, factor * predict(question, row).tokens_per_second)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A finished run of ENTRY. speed: what it had; None: it is not valid."""
    plan = resolve(place(Registry(), Entry(ENTRY, UserRequest(may_lack_hardware=True))), "default")
    run = SimpleNamespace(plan=plan, speed=(plan.predicted[0].tokens_per_second or 0) * 0.8)

    def figures(_paths: object) -> SimpleNamespace:
        rate = None if run.speed is None else SimpleNamespace(tokens_per_second_per_device=run.speed)
        return SimpleNamespace(throughput=rate)

    monkeypatch.setattr(chip_planner, "find_finished_run", lambda _options, _name: None)
    monkeypatch.setattr(chip_planner, "read_plan", lambda _paths: run.plan)
    monkeypatch.setattr("levelfield.judge.collector.collect", figures)
    return run


def test_the_plan_says_what_a_run_changed(ran: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", ENTRY, "--calibrate", "mine", "--top", "1"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "matrix products at 0." in output and "not at 0.9" in output and ran.plan.run_id in output
    assert f"{ran.speed:,.0f} tokens/s on each device" in output
    first = []
    for more in ((), ("--calibrate", "mine")):
        assert main(["plan", ENTRY, *more, "--top", "1", "--json"]) == 0
        first.append(json.loads(capsys.readouterr().out)["rows"][0]["tokens_per_second_per_device"])
    assert first[1] < 0.9 * first[0], "the rows are by the rate of before"


def test_a_run_of_something_else_is_refused(ran: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama3_8b:megatron:A100-SXM4-80GB:1:8", "--calibrate", "mine"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "chip H100-SXM5-80GB, expected A100-SXM4-80GB and framework torch, expected megatron" in error
    ran.speed = None
    assert main(["plan", ENTRY, "--calibrate", "mine"]) == 2
    assert "found no speed, expected a valid run; `report mine` says why" in " ".join(capsys.readouterr().err.split())
    ran.speed = 1e9
    assert main(["plan", ENTRY, "--calibrate", "mine"]) == 2
    assert "--calibrate mine: found 1,000,000,000 tokens/s" in " ".join(capsys.readouterr().err.split())
