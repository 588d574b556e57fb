"""A part of a suite, and a suite through another framework: OneFlow's rows by OneFlow."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli import run_entries
from levelfield.cli.main import main
from levelfield.errors import UsageError


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--dry-run", "--json"]) == 0
    return [entry["plan"] for entry in json.loads(capsys.readouterr().out)]


def test_the_report_s_rows_are_planned_on_the_framework_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    plans = planned(capsys, "--suite", "oneflow_gpt")
    assert len(plans) == len(Registry().suite("oneflow_gpt").entries)
    assert {plan["implementation"]["framework"] for plan in plans} == {"oneflow"}
    assert {(plan["scale"], plan["work"]["training"]["precision"]) for plan in plans} == {("full", "fp16")}
    assert {(plan["tuning"]["recompute"], plan["work"]["model"]["hidden_dropout"]) for plan in plans} == {("full", 0.1)}
    assert not any(plan["refusal"] for plan in plans)
    memories = [plan["expected_memory"] for plan in plans]
    assert all(memory["total_bytes"] <= memory["available_bytes"] for memory in memories)


def test_one_entry_is_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["MP_1x8x1_16_1536x16", "2D_2x4x1_16_1536x16"]
    plans = planned(capsys, "--suite", "oneflow_gpt", "--entry", names[0], "--entry", names[1])
    assert [plan["entry"]["name"] for plan in plans] == names
    assert plans[0]["implementation"]["framework"] == "oneflow"


def test_a_case_beside_a_suite_stays(capsys: pytest.CaptureFixture[str]) -> None:
    suite = ("--suite", "osdi_gpt2", "--entry", "test-10-1", "--framework", "megatron")
    plans = planned(capsys, "--case", "gpt2_small:torch:cpu", *suite)
    assert [plan["implementation"]["framework"] for plan in plans] == ["torch", "megatron"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--case", "gpt2_small:torch", "--framework", "paddle"], "--framework: found no --suite"),
        (["--case", "gpt2_small:torch", "--entry", "x"], "--entry: found no --suite"),
        (["--suite", "osdi_gpt2", "--entry", "test-10"], "unknown entry of the suites 'test-10'; nearest: test-10-"),
        (["--suite", "osdi_gpt2", "--framework", "none"], "unknown framework 'none'"),
    ],
)
def test_parts_of_suites_that_are_not_there_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--dry-run"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "numbers"), [(None, ()), ("0-3", (0, 1, 2, 3)), ("0,2,5", (0, 2, 5)), ("6,0-1", (6, 0, 1))]
)
def test_devices_are_numbers_and_ranges(text: str | None, numbers: tuple[int, ...]) -> None:
    assert run_entries._parse_device_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "0,", "0-", "3-0", "0,3-1", "0,0", "0-2,1", "-1", "0;1", "0-99999"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--devices: found '{re.escape(text)}',"):
        run_entries._parse_device_numbers(text)
