"""The planner against published runs that it was not fitted to, and the command that measures it."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.predict.machines import Link, MachineRates
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_ERRORS, SPEED_VENDORS
from levelfield.specs.layout import parse_layout

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "planner_unseen.py")]


@pytest.fixture(scope="module")
def unseen(request: pytest.FixtureRequest) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    request.addfinalizer(lambda: sys.path.remove(str(ROOT / "benchmarks")))
    return import_module("pages.unseen")


@pytest.fixture(scope="module")
def planned_runs(unseen: ModuleType) -> list[Any]:
    return list(unseen.judge_runs(unseen.runs_of(unseen.RUNS), unseen.Questions(Registry())))


def test_half_of_the_runs_are_held_out(planned_runs: list[Any]) -> None:
    held_out = [j for j in planned_runs if not j.run.fitted]
    assert len(planned_runs) == 486 and 230 <= len(held_out) <= 243
    assert sum(j.run.ran_out for j in planned_runs) == 200


def test_speed_and_memory_of_the_held_out_half(unseen: ModuleType, planned_runs: list[Any]) -> None:
    held_out = [j for j in planned_runs if not j.run.fitted]
    count, middle, high = unseen.spread(j.speed_off for j in held_out)
    assert count > 120 and middle < 0.08 and high < 0.25
    _, middle, high = unseen.spread(j.memory_off for j in held_out)
    assert middle < 0.07 and high < 0.20


@pytest.fixture(scope="module")
def rows(unseen: ModuleType) -> list[Any]:
    assert unseen  # its folder is on the path
    return list(import_module("pages.program_fit").fit_rows(Registry()))


def test_the_interval_is_of_the_vendors_whose_chips_set_the_rates(unseen: ModuleType, rows: list[Any]) -> None:
    chips = {row.chip for row in rows if row.fitted}
    vendors_chips = {unseen.LIKE[chip][0] if chip in unseen.LIKE else chip for chip in chips}
    assert {find_chip(Registry(), chip)[0].name for chip in vendors_chips} == set(SPEED_VENDORS) and len(
        vendors_chips
    ) > 3


def test_the_ratio_of_two_chips_is_off_as_plan_says(unseen: ModuleType) -> None:
    chip_ratios = import_module("pages.chip_ratios")
    registry = Registry()
    ratios = chip_ratios.chip_ratios(unseen.OwnQuestions(registry))
    pairs, *off = chip_ratios.known_pairs(ratios, registry)
    assert pairs == CHIP_PAIRS == len(chip_ratios.errors_by_chips(ratios)) - 1
    assert tuple(round(error, 2) for error in off) == CHIP_RATIO_ERRORS
    for error in ratios:
        one, other = error.one.run, error.other.run
        assert one.row["chip"] < other.row["chip"] and one.program == other.program
        assert error.off == pytest.approx((1 + error.one.speed_off) / (1 + error.other.speed_off) - 1)


def test_the_residuals_of_the_platform_are_those_of_its_plans(unseen: ModuleType) -> None:
    row_errors, registry = import_module("pages.row_errors"), Registry()
    rows = row_errors.residuals(registry)
    assert rows == registry.planner_residuals and len(rows) > 300
    fitted = {row.name for row in import_module("pages.program_fit").fit_rows(registry) if row.fitted}
    assert len(fitted) > 150 and {row.run for row in rows}.isdisjoint(fitted), "these set the rates"


def test_the_interval_holds_for_publications_that_are_not_in_it(unseen: ModuleType) -> None:
    assert unseen  # its folder is on the path
    row_errors, registry = import_module("pages.row_errors"), Registry()
    rows = registry.planner_residuals
    inside = row_errors.covered(rows, True)
    assert 0.8 <= statistics.mean(inside) <= 0.95
    halved = tuple(replace(row, over_program=row.over_program / 2) for row in rows if row.publication == "mlperf51")
    others = tuple(row for row in rows if row.publication != "mlperf51")
    planted = row_errors.covered((*others, *halved), True)
    assert not any(planted[len(others) :]), "no run of half its speed is within the interval of the others"
    assert not row_errors.covers(None, 1.0)
    assert not row_errors.covers(row_errors.plan_error(rows, rows[0].kind, True), math.nan)


def test_a_program_whose_runs_set_no_rate(rows: list[Any]) -> None:
    """The fit without the table of Aleph Alpha, which has most of the rows, and what it says of that table."""
    program_fit = import_module("pages.program_fit")
    set_aside = [row for row in rows if row.family == "aleph_alpha"]
    rates = program_fit.fitted_rates((row for row in rows if row.fitted and row not in set_aside), steps=0.1)
    errors = sorted(abs(math.exp(row.off(rates)) - 1) for row in set_aside)
    assert len(set_aside) == 131 and errors[len(set_aside) // 2] < 0.12 and errors[len(set_aside) * 9 // 10] < 0.30


def test_a_fit_finds_planted_rates(rows: list[Any]) -> None:
    """Rows whose published rates are those of other rates give these, and one wild row among them changes little."""
    program_fit = import_module("pages.program_fit")
    planted = {"matmul_efficiency": 0.8, "memory_efficiency": 0.8, "network_efficiency": 0.5, "launch_seconds": 1e-5}
    some = [replace(row, rate=row.rate * math.exp(row.off(planted))) for row in rows if row.fitted][::3]
    some[0] = replace(some[0], rate=some[0].rate * 3)
    fitted = program_fit.fitted_rates(some)
    for name, value in planted.items():
        assert fitted[name] == pytest.approx(value, rel=0.12), name


def test_a_program_without_its_own_rows_is_not_in_its_fit(rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    program_fit = import_module("pages.program_fit")
    seen: list[set[str]] = []

    def no_rates(some: list[Any], means: object) -> dict[str, float]:
        seen.append({row.family for row in some})
        return {}

    monkeypatch.setattr(program_fit, "fitted_rates", no_rates)
    alone = program_fit.without_own(rows)
    families = sorted({row.family for row in rows})
    assert [set(families) - some for some in seen] == [{name} for name in families]
    assert len(alone) == len(rows)


def test_what_is_set_aside_is_in_no_fit(rows: list[Any]) -> None:
    assert sum(row.fitted for row in rows) == 198 and sum(not row.fitted for row in rows) == 183


def test_no_group_is_off_by_more_than_a_fifth_in_the_middle(unseen: ModuleType, planned_runs: list[Any]) -> None:
    groups = {j.run.group for j in planned_runs}
    middles = {g: unseen.spread(j.speed_off for j in planned_runs if j.run.group == g)[1] for g in groups}
    assert {g for g, middle in middles.items() if middle > 0.2} == set()


def test_what_ran_fits_and_what_did_not_does_not(planned_runs: list[Any]) -> None:
    ran, out = (
        [j for j in planned_runs if not j.run.ran_out and j.run.has_all_settings],
        [j for j in planned_runs if j.run.ran_out],
    )
    assert sum(j.estimate.fits for j in ran) >= len(ran) - 2
    assert sum(not j.estimate.fits for j in out) >= 0.9 * len(out)


def test_own_constants_with_all_that_is_said_of_a_program_are_those_of_the_program(unseen: ModuleType) -> None:
    registry, runs = Registry(), unseen.runs_of(unseen.RUNS)[::25]
    everything = [name for _, fields in unseen.DESCRIPTION for name in fields]
    plain, stated, described = (
        [j.estimate.time.compute for j in unseen.judge_runs(runs, questions)]
        for questions in (
            unseen.OwnQuestions(registry),
            unseen.OwnQuestions(registry, everything),
            unseen.Questions(registry),
        )
    )
    assert stated == described and plain != described


def test_no_plan_of_own_code_is_faster_than_its_rehearsed_work(unseen: ModuleType) -> None:
    own_bound = import_module("pages.own_bound")
    registry = Registry()
    bounds = own_bound.bounded(registry)
    assert len(bounds) >= 30 and all(bound.holds for bound in bounds)
    for bound in bounds:
        assert sum(bound.beyond.values()) == pytest.approx(bound.planned - bound.bound)
        assert min(bound.beyond.values()) > -0.01 * bound.planned
    row = bounds[0].row
    for planted in ({"product_flops": 100 * row.product_flops}, {"all_reduced_bytes": 10**15}):
        assert not own_bound.beside(registry, row.model_copy(update=planted)).holds
    assert not replace(bounds[0], planned=math.nan).holds
    assert own_bound.bound_words([replace(bounds[0], planned=0.0), bounds[1]]).startswith("1 of 2 ")


def test_the_rows_behind_the_page_are_what_its_command_writes(planned_runs: list[Any], shared: list[Any]) -> None:
    tables, bounded = import_module("pages.accuracy_page").tables, import_module("pages.own_bound").bounded
    written = tables(planned_runs, shared, bounded(Registry()), Registry())
    assert len(written) > 5
    assert [name for name, rows in written.items() if (ROOT / "docs/data" / name).read_text() != rows] == []


@pytest.mark.thorough  # the page's errors are those of these rows, and of fits that take most of its 8 seconds
def test_the_page_is_what_its_command_writes(unseen: ModuleType) -> None:
    assert unseen  # its folder is on the path
    planner_unseen = import_module("planner_unseen")
    assert planner_unseen.repage(write=False) == []


def test_own_constants_are_within_their_goal_on_what_chips_ran(unseen: ModuleType, tmp_path: Path) -> None:
    own_runs = import_module("pages.own_runs")
    runs = own_runs.own_runs()
    assert len(runs) >= 7 and {run.result.framework for run in runs} >= {"torch", "deepspeed", "megatron", "jax"}
    _, middle, high = unseen.spread(run.off for run in runs)
    assert middle <= 0.10 and high <= 0.25
    (tmp_path / "h100").mkdir()
    text = (own_runs.RESULTS / "h100" / "llama-one-device.json").read_text()
    for name, (old, other) in {
        "a invalid": ('"word": "valid"', '"word": "invalid"'),
        "b smoke": ('"scale": "full"', '"scale": "smoke"'),
        "c compiled": ('"compile": false', '"compile": true'),
        "d other micro-batch": ('"micro_batch": 4', '"micro_batch": 1'),
    }.items():
        assert old in text
        (tmp_path / "h100" / f"{name}.json").write_text(text.replace(old, other, 1))
    (smaller,) = own_runs.own_runs(tmp_path)
    same = next(run for run in runs if run.name == "H100 llama-one-device")
    assert smaller.measured == same.measured and smaller.planned < 0.97 * same.planned and smaller.off < -0.03


def test_the_first_ranked_layout_ran_in_all_sweeps(unseen: ModuleType, planned_runs: list[Any]) -> None:
    sweeps = unseen.sweeps_of(planned_runs)
    assert len(sweeps) == 11 and all(s.first_ran for s in sweeps)
    assert sum(s.regret <= 0.1 for s in sweeps) >= 8
    taus = sorted(s.tau for s in sweeps if s.tau is not None)
    assert taus[len(taus) // 2] > 0.7


@pytest.fixture(scope="module")
def mixtures(unseen: ModuleType) -> list[Any]:
    return list(unseen.judge_runs(unseen.runs_of(unseen.MIXTURE_RUNS), unseen.Questions(Registry())))


def test_mixtures_of_experts(unseen: ModuleType, mixtures: list[Any]) -> None:
    """Ten published runs with stated settings of four models on three chips, in no fit."""
    count, middle, high = unseen.spread(j.speed_off for j in mixtures)
    assert count == 10 and middle < 0.15 and high < 0.30
    assert {j.run.model for j in mixtures if j.speed_off is not None} == {
        *("mixtral_8x7b", "qwen3_30b_a3b", "qwen3_235b_a22b", "deepseek_v3")
    }
    assert all(j.run.tuning.layout.world_size == j.run.devices for j in mixtures)
    assert all(j.run.program is not None for j in mixtures)


def test_the_exchange_of_tokens_is_no_small_part_of_a_mixture(mixtures: list[Any]) -> None:
    """Without it the runs between nodes would be a third too fast, and the median of the errors twice as large."""
    share = {j.run.name: j.estimate.time.expert / j.estimate.time.total for j in mixtures}
    assert 0.3 < share["automodel-DeepSeek-V3-256"] < 0.45 and share["nemo2504-GB200-Mixtral-8x7B"] < 0.1


def test_a_loss_that_is_compiled_with_its_cast_keeps_16_bit_logits(unseen: ModuleType) -> None:
    runs = [run for run in unseen.runs_of(unseen.RECENT_RUNS) if run.group == "torchtitan_h200_202506"]
    rows = unseen.judge_runs(runs, unseen.Questions(Registry()))
    assert len(rows) == 2 and {j.run.program for j in rows} == {"torchtitan_2025"}
    assert all(abs(j.memory_off or 1) < 0.1 for j in rows)


@pytest.fixture(scope="module")
def shared(unseen: ModuleType) -> list[Any]:
    return list(unseen.judge_runs(unseen.runs_of(unseen.CONTEXT_RUNS), unseen.Questions(Registry())))


def test_context_parallelism_in_a_ring(unseen: ModuleType, shared: list[Any]) -> None:
    """Thirteen runs of two to 32 context ranks, from 8,192 tokens to a million, in no fit."""
    ring = [j for j in shared if j.run.framework == "megatron" and j.run.tuning.layout.context > 1]
    count, middle, high = unseen.spread(j.speed_off for j in ring)
    assert count == 13 and middle < 0.08 and high < 0.12
    # attention takes most of the time there: without its division over the ranks the error is a factor
    whole = [j for j in ring if j.run.row["sequence_length"] >= 2**20]
    assert len(whole) == 1 and whole[0].run.tuning.layout.context == 32


def test_memory_does_not_grow_with_context_ranks(unseen: ModuleType, shared: list[Any]) -> None:
    """Eight runs with equal tokens on each rank need equal memory, as published."""
    gathered = [j for j in shared if j.run.framework == "torch"]
    count, _, high = unseen.spread(j.memory_off for j in gathered)
    assert count == 8 and high < 0.10
    assert [j.run.name for j in gathered if not j.estimate.fits] == []


def test_no_run_with_context_parallelism_is_in_a_fit(unseen: ModuleType, shared: list[Any]) -> None:
    fitted = {r.name for r in unseen.runs_of(unseen.RUNS)}
    assert not fitted & {j.run.name for j in shared}
    assert all(j.run.tuning.layout.world_size == j.run.devices for j in shared)


def test_a_wrong_prediction_is_seen(unseen: ModuleType) -> None:
    """An order turned about, an error of a third and a layout that ran out are each in the figures."""
    assert unseen.kendall([(1, 10), (2, 20), (3, 30)]) == 1
    assert unseen.kendall([(3, 10), (2, 20), (1, 30)]) == -1
    assert unseen.kendall([(1, 20), (2, 10), (3, 30)]) == pytest.approx(1 / 3)
    count, middle, high = unseen.spread([0.01, -0.3, None, 0.02])
    assert (count, middle, high) == (3, 0.02, 0.3)


def test_a_first_ranked_run_that_ran_out_is_seen(unseen: ModuleType, planned_runs: list[Any]) -> None:
    out = next(j for j in planned_runs if j.run.ran_out and not j.estimate.fits)
    ran = next(j for j in planned_runs if j.run.rate and j.estimate.fits)
    fits = unseen.replace(out.estimate, fits=True, tokens_per_second=1e9)
    sweep = unseen.Sweep("planted", (ran, unseen.Judged(out.run, fits)))
    assert not sweep.first_ran and sweep.regret == 1
    assert unseen.Sweep("as it was", (ran, out)).first_ran


def test_another_file_of_runs_is_in_no_fit(unseen: ModuleType, tmp_path: Path) -> None:
    run = next(r for r in unseen.runs_of(unseen.RUNS) if r.name == "sc21-39B")
    row = {**run.row, "tokens_per_second_per_device": 2 * run.rate}
    (tmp_path / "runs.json").write_text(json.dumps({"rows": [row]}))
    command = [*COMMAND, "--runs", str(tmp_path / "runs.json"), "--rows"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "platform")})
    assert done.returncode == 0, done.stderr
    assert "1 runs, 0 of them out of memory; 1 all in no fit" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("all "))
    assert float(line.split()[1].rstrip("%")) == pytest.approx(50, abs=5)


def test_every_program_is_that_of_a_row(unseen: ModuleType) -> None:
    """Those of configs/planner are of rows of today, which are in no fit; the others have rows of their own."""
    questions = unseen.Questions(Registry())
    todays = {name: set(Registry().planner_constants(name).programs) for name in Registry().planner_constants_files}  # type: ignore[union-attr]
    current = {(name, program) for name in todays for program in questions.constants_with_programs(name).programs}
    paths = (unseen.CONTEXT_RUNS, unseen.MIXTURE_RUNS, unseen.RECENT_RUNS, unseen.LATER_RUNS, unseen.RUNS)
    *recent, old = ({(run.framework, run.program) for run in unseen.runs_of(path)} for path in paths)
    assert {name for _, name in unseen.PROGRAMS} == {program for _, program in current}
    assert {(name, program) for name in todays for program in todays[name]} <= set().union(*recent)
    assert current <= old.union(*recent)


@pytest.mark.thorough
def test_what_is_committed_is_what_the_fit_of_programs_finds() -> None:
    done = subprocess.run(
        [*COMMAND, "--check"], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "platform")}
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the runs of 2025 and 2026


def _recent(unseen: ModuleType, content: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    document = content or json.loads(unseen.RECENT_RUNS.read_text())
    return [{"group": name, **g["shared"], **row} for name, g in document["groups"].items() for row in g["rows"]]


def _wrong(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows that contradict their model, their devices or another row: TFLOP/s over tokens/s is one number of
    a model, whatever runs it, but for a layer of multi-token prediction, 4 % of DeepSeek-V3."""
    wrong = []
    for row in rows:
        layout, batch = parse_layout(row["layout"]).layout, row["micro_batch"]
        devices, rate = row["nodes"] * row["devices_per_node"], row["tokens_per_second_per_device"]
        if layout.world_size != devices or row["global_batch"] % (batch * layout.data) or not 0 < rate < 1e6:
            wrong.append(row["id"])
        alike = [
            other["tflops_per_second_per_device"] / other["tokens_per_second_per_device"]
            for other in rows
            if other["model"] == row["model"] and "tflops_per_second_per_device" in other
        ]
        flops = row.get("tflops_per_second_per_device", 0) / rate
        if flops and not abs(flops / statistics.median(alike) - 1) < 0.045:
            wrong.append(row["id"])
    return wrong


def test_the_recent_runs_are_whole_and_half_of_them_are_for_no_fit(unseen: ModuleType) -> None:
    rows = _recent(unseen)
    assert len(rows) >= 170 and len({row["id"] for row in rows}) == len(rows)
    assert _wrong(rows) == []
    assert all(len(row["source"]) > 20 and row["settings"] in ("full", "partial") for row in rows)
    assert sum(row["chip"].startswith("MI") for row in rows) >= 5
    held_out = {row["id"] for row in rows if row["never_fitted"]}
    runs = unseen.runs_of(unseen.RECENT_RUNS)
    assert 0.4 < len(held_out) / len(rows) < 0.5 and held_out == {run.name for run in runs if not run.fitted}
    assert held_out.isdisjoint(run.name for path in (unseen.RUNS, unseen.CONTEXT_RUNS) for run in unseen.runs_of(path))


@pytest.mark.parametrize(
    "fault",
    [
        lambda row: {**row, "tokens_per_second_per_device": 1.1 * row["tokens_per_second_per_device"]},
        lambda row: {**row, "tokens_per_second_per_device": row["tflops_per_second_per_device"]},
        lambda row: {**row, "tokens_per_second_per_device": float("nan")},
        lambda row: {**row, "nodes": 2 * row["nodes"]},
        lambda row: {**row, "global_batch": row["global_batch"] + 1},
        lambda row: {**row, "tflops_per_second_per_device": 1000 * row["tflops_per_second_per_device"]},
    ],
    ids=["a tenth more", "columns swapped", "nan", "nodes", "batch", "unit"],
)
def test_a_wrong_row_is_found(unseen: ModuleType, fault: Any) -> None:
    rows = _recent(unseen)
    at = next(n for n, row in enumerate(rows) if row["id"] == "bridge2606-H100-LLAMA3.1_405B-1024-FP8")
    rows[at] = fault(rows[at])
    assert "bridge2606-H100-LLAMA3.1_405B-1024-FP8" in _wrong(rows)


def test_the_recent_runs_are_predicted(unseen: ModuleType) -> None:
    rows = unseen.judge_runs(unseen.runs_of(unseen.RECENT_RUNS), unseen.Questions(Registry()))
    count, middle, high = unseen.spread(j.speed_off for j in rows)
    assert count > 170 and middle < 0.15 and high < 0.40


def test_the_later_runs_have_their_figures_and_are_in_no_other_file(unseen: ModuleType) -> None:
    runs = unseen.runs_of(unseen.LATER_RUNS)
    others = (unseen.RUNS, unseen.CONTEXT_RUNS, unseen.MIXTURE_RUNS, unseen.RECENT_RUNS)
    assert len(runs) == 43 and {run.name for run in runs}.isdisjoint(
        run.name for path in others for run in unseen.runs_of(path)
    )
    goals_of = import_module("pages.goals").goals_of_later_runs
    rows = unseen.judge_runs(runs, unseen.Questions(Registry()))
    speed, memory, interval, _ = goals_of(rows, Registry())
    assert "32 rows" in speed.figure and "4 rows" in memory.figure and "of 43 rows" in interval.figure
    stated = [j for j in rows if j.run.has_all_settings]
    wrong = [replace(j, estimate=replace(j.estimate, tokens_per_second=3 * j.run.rate, fits=False)) for j in stated]
    worse = goals_of(wrong, Registry())
    assert not any(goal.met for goal in worse if goal.name != "memory") and "0 of 32" in worse[3].figure
    exact = [replace(j, estimate=replace(j.estimate, tokens_per_second=j.run.rate, fits=True)) for j in stated]
    assert goals_of(exact, Registry())[0].met and goals_of(exact, Registry())[3].met


def test_less_power_slows_products_and_attention_and_not_memory(unseen: ModuleType) -> None:
    with_power = unseen.with_power
    machine = MachineRates(
        100e12, 200e12, 1e12, Link(1e-6, 100e9), None, 8, attention={"flash1": 20e12, "flash2": 40e12}
    )
    limited = with_power(machine, 0.5)
    assert (limited.matmul_flops_per_second, limited.fp8_matmul_flops_per_second) == (50e12, 100e12)
    assert limited.attention == {"flash1": 10e12, "flash2": 20e12}
    assert limited.memory_bytes_per_second == machine.memory_bytes_per_second and limited.node == machine.node
    bare = replace(machine, fp8_matmul_flops_per_second=None)
    assert with_power(bare, 0.5).fp8_matmul_flops_per_second is None


def test_each_sweep_that_misses_the_goal_has_its_reason(unseen: ModuleType, planned_runs: list[Any]) -> None:
    regret = import_module("pages.goals").REGRET
    misses = import_module("pages.accuracy_page").MISSES
    missed = {sweep.name for sweep in unseen.sweeps_of(planned_runs) if sweep.regret > regret}
    assert sorted(sweep.split("|")[0] for sweep in missed) == sorted(misses)


# ---- published recipes beside the planner's rows: the rank, the loss and its parts


@pytest.fixture(scope="module")
def recipes(unseen: ModuleType) -> ModuleType:
    assert unseen  # its folder is on the path
    return import_module("planner_recipes")


@pytest.fixture(scope="module")
def recipe(recipes: ModuleType) -> Any:
    run = next(run for run in recipes.runs_of(recipes.RUNS) if run.name == recipes.RECIPES[0])
    return recipes.ranked(run, recipes.Questions(Registry()), Registry())


def test_a_recipe_has_its_rank_and_its_loss(recipes: ModuleType, recipe: Any) -> None:
    assert recipe.rank is not None and 1 <= recipe.rank <= recipe.layouts
    assert recipe.loss == pytest.approx(1 - recipe.estimate.tokens_per_second / recipe.best.tokens_per_second)
    assert recipe.best.tokens_per_second >= recipe.estimate.tokens_per_second or recipe.over_gib > 0
    row = list(recipes.table([recipe]))[-1]
    assert row[:3] == ["titan-8B-8-bf16", "8", "DP8TP1PP1SH3SP8, 1"]
    assert row[3].startswith(f"{recipe.best.layout}, ")


def test_the_parts_of_a_loss_are_those_of_the_step(recipes: ModuleType, recipe: Any) -> None:
    slow = recipe.estimate.time._replace(data=recipe.estimate.time.data + recipe.best.time.total / 2)
    worse = replace(recipe, estimate=replace(recipe.estimate, time=slow), rank=9)
    name, share = worse.parts[0]
    difference = (recipe.estimate.time.data - recipe.best.time.data) / recipe.best.time.total
    assert name == "data" and share == pytest.approx(0.5 + difference)
    assert recipes.explain_loss(worse).startswith("data +") and "among" not in recipes.explain_loss(worse)
    assert "among the first three" in recipes.explain_loss(replace(recipe, rank=3))
    assert "GiB over the memory" in recipes.explain_loss(replace(worse, capacity_bytes=2**30))


def test_the_recipes_are_runs_of_the_data_by_six_programs(recipes: ModuleType) -> None:
    paths = (recipes.RUNS, recipes.CONTEXT_RUNS, recipes.MIXTURE_RUNS, recipes.RECENT_RUNS)
    runs = {run.name: run for path in paths for run in recipes.runs_of(path)}
    chosen = [runs[name] for name in recipes.RECIPES]
    assert len(chosen) == len(set(recipes.RECIPES)) >= 10
    assert {run.devices for run in chosen} >= {8, 64, 256, 1024} and len({run.model for run in chosen}) >= 7


@pytest.mark.thorough  # a recipe's rank and loss are tested above; this compares the file of all, by 13 seconds of sums
def test_the_ranks_of_recipes_are_those_of_now(recipes: ModuleType) -> None:
    rows = recipes.written(recipes.ranked_recipes())
    assert recipes.ROWS.read_text() == rows, "run `python benchmarks/planner_recipes.py --write`"
