"""A part of a suite, and a suite through another framework: OneFlow's 18 rows by OneFlow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from levelfield.cli import run_entries
from levelfield.cli.main import main
from levelfield.errors import UsageError


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--dry-run", "--json"]) == 0
    return [each["plan"] for each in json.loads(capsys.readouterr().out)]


def test_the_report_s_18_rows_are_planned_on_the_framework_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--suite", "oneflow_gpt")
    assert len(found) == 18
    assert {plan["implementation"]["framework"] for plan in found} == {"oneflow"}
    assert {(plan["scale"], plan["work"]["training"]["precision"]) for plan in found} == {("full", "fp16")}
    assert {(plan["tuning"]["recompute"], plan["work"]["model"]["hidden_dropout"]) for plan in found} == {("full", 0.1)}
    assert not any(plan["refusal"] for plan in found)
    memory = [plan["expected_memory"] for plan in found]
    assert all(each["total_bytes"] <= each["available_bytes"] for each in memory)


def test_one_entry_is_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(
        capsys, "--suite", "oneflow_gpt", "--entry", "MP_1x8x1_16_1536x16", "--entry", "2D_2x4x1_16_1536x16"
    )
    assert [plan["entry"]["name"] for plan in found] == ["MP_1x8x1_16_1536x16", "2D_2x4x1_16_1536x16"]
    assert found[0]["implementation"]["framework"] == "oneflow"


def test_a_case_beside_a_suite_stays(capsys: pytest.CaptureFixture[str]) -> None:
    given = (
        "--case",
        "gpt2_small:torch:cpu",
        "--suite",
        "osdi_gpt2",
        "--entry",
        "test-10-1",
        "--framework",
        "megatron",
    )
    found = planned(capsys, *given)
    assert [plan["implementation"]["framework"] for plan in found] == ["torch", "megatron"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--case", "gpt2_small:torch", "--framework", "paddle"], "--framework: found no --suite"),
        (["--case", "gpt2_small:torch", "--entry", "x"], "--entry: found no --suite"),
        (["--suite", "osdi_gpt2", "--entry", "test-10"], "unknown entry of the suites 'test-10'; nearest: test-10-"),
        (["--suite", "osdi_gpt2", "--framework", "none"], "unknown framework 'none'"),
    ],
)
def test_wrong_use(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--dry-run"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "numbers"), [(None, ()), ("0-3", (0, 1, 2, 3)), ("0,2,5", (0, 2, 5)), ("6,0-1", (6, 0, 1))]
)
def test_devices_are_numbers_and_ranges(text: str | None, numbers: tuple[int, ...]) -> None:
    assert run_entries._devices(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "0,", "0-", "3-0", "0,3-1", "0,0", "0-2,1", "-1", "0;1", "0-99999"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--devices: found '.*', expected different device numbers"):
        run_entries._devices(text)
