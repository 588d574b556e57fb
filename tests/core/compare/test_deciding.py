"""The commands that decide an inconclusive ratio: read, planned, and none that decides nothing."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from compared_records import record, repeats, with_result
from levelfield.catalog.registry import Registry
from levelfield.cli import duel_command
from levelfield.cli.command_line import parse_command_line
from levelfield.cli.main import main
from levelfield.compare.deciding import deciding_commands
from levelfield.compare.sides import side_of
from levelfield.plan.request import UserRequest
from levelfield.specs.record import RunRecord
from levelfield.store.run_record import series_of

HERE: dict[str, Any] = {"case": "gpt3_6.7B", "vendor": "cpu", "chip": "cpu"}  # what is planned on any machine


def tuned(run: RunRecord, word: str = "peak", **chosen: str) -> RunRecord:
    return with_result(run, tuning={"word": word, "chosen": chosen})


def commands(first: list[RunRecord], second: list[RunRecord]) -> list[tuple[str, str]]:
    both = deciding_commands(side_of("B", second), side_of("A", first))
    return [(command.machine, command.text.removeprefix("run_benchmarks.py ")) for command in both]


@pytest.mark.parametrize(
    ("changes", "a", "b"),
    [
        ({"framework": "jax"}, "", ""),
        ({"micro_batch": 4}, "--micro-batch 8", "--micro-batch 4"),
        ({"threads": 1}, "", "--threads 1"),
        ({"compile": True}, "--no-compile", "--compile"),
        ({"recompute": "full"}, "--recompute none", "--recompute full"),
    ],
)
def test_a_duel_names_the_free_fields_in_which_its_sides_differ(changes: dict[str, Any], a: str, b: str) -> None:
    ((machine, command),) = commands([record(1, **HERE)], [record(2, **{**HERE, **changes})])
    assert machine == "the same machine"
    options = parse_command_line(shlex.split(command))
    assert (options.a, options.b) == (a, b)
    request = UserRequest(scale=options.scale, repeats=1)
    arms = duel_command._plan_arms(Registry(), options.case, (options.a, options.b), request)
    first, second = (series_of(jobs[0].plan) for jobs in arms.values())
    assert first != second
    assert all(getattr(second, name) == value for name, value in changes.items())


def test_what_a_user_chose_for_both_is_named_for_both() -> None:
    both = [
        tuned(record(n, framework=name, threads=2), threads="command line") for n, name in ((1, "torch"), (2, "jax"))
    ]
    ((_, command),) = commands(both[:1], both[1:])
    assert command.endswith("--a='--threads 2' --b='--threads 2'")


def test_a_base_run_beside_a_tuned_one_has_the_defaults() -> None:
    peak = tuned(record(2, micro_batch=4), micro_batch="vendor")
    ((_, command),) = commands([tuned(record(1), "base")], [peak])
    assert command.endswith("--scale smoke --a=--base --b='--micro-batch 4'")


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}},
        {"commit": "other"},
        {"framework_version": "2.14.0"},
        {"nodes": 2, "devices": 2, "framework": "jax"},
    ],
)
def test_no_command_stands_where_none_decides(changes: dict[str, Any]) -> None:
    assert commands([record(1)], [record(2, **changes)]) == []


def test_a_variable_that_a_user_set_is_in_no_command() -> None:
    runs = [tuned(record(n, framework=name), environment="command line") for n, name in ((1, "torch"), (2, "jax"))]
    assert commands(runs[:1], runs[1:]) == []


@pytest.mark.parametrize("changes", [{"node": "node-2"}, {"runtime": "docker"}])
def test_on_two_machines_each_side_that_has_too_few_runs_is_repeated(changes: dict[str, Any]) -> None:
    few, enough = [record(9, **{**HERE, "framework": "jax", **changes})], repeats(1000.0, 1001.0, 1002.0, **HERE)
    docker = " --runtime docker" if "runtime" in changes else ""
    again = f"--case gpt3_6.7B:jax:cpu:1:1 --repeat 3 --scale smoke{docker}"
    assert commands(enough, few) == [("the machine of B", again)]
    other = "--case gpt3_6.7B:torch:cpu:1:1 --repeat 3 --scale smoke"
    assert commands(enough[:1], few) == [("the machine of A", other), ("the machine of B", again)]
    assert main([*shlex.split(other), "--dry-run"]) == 0


def test_a_hostile_name_is_one_word_of_the_shell() -> None:
    ((_, command),) = commands([record(1, case="x; rm y")], [record(2, case="x; rm y", framework="jax")])
    assert parse_command_line(shlex.split(command)).case == ["x; rm y:torch:X1:1:1", "x; rm y:jax:X1:1:1"]
