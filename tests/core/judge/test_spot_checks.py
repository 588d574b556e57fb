"""A sampled step that does not follow from its inputs makes a run different, with or without a reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.judge.spot_checks import add_spot_checks, spot_check_layers
from levelfield.measure.raw_facts import StepRecord
from levelfield.measure.sampled_operations import SampledOperation, SampledStep, TokenChecksums
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.result import Alignment
from levelfield.worker.job import Schedule
from levelfield.worker.schedule import learning_rate
from levelfield.worker.spot_check import pack_array
from plans import make_plan

X, W = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(2, 4)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


@pytest.fixture(scope="module")
def plan(registry: Registry) -> Plan:
    return make_plan(registry, "gpt3_6.7B_bf16:torch:cpu:1:1", scale="smoke")


def product(name: str = "layers.0.mlp.up", factor: float = 1.0) -> SampledOperation:
    return SampledOperation("product", name, {"inputs": X, "weight": W, "output": factor * (X @ W.T)})


def sampled(*operations: SampledOperation) -> RawRecords:
    return RawRecords(sampled=(SampledStep(0, 20, True, operations),))


def judge(verdict: Any, plan: Plan, raw: RawRecords) -> Alignment:
    return add_spot_checks(Alignment(verdict=verdict, reason="because"), plan, raw)


def test_frameworks_that_sample_are_asked_to(registry: Registry) -> None:
    paths = RunPaths(Path("/run"))
    names = ("torch", "deepspeed", "jax", "paddle", "oneflow")
    plans = {name: make_plan(registry, f"gpt3_6.7B:{name}:cpu:1:1", scale="smoke") for name in names}
    assert all(plan.spot_check and job_content(plan, paths)["spot_check"] is True for plan in plans.values())
    other = plans["torch"].model_copy(update={"spot_check": False})
    assert "spot_check" not in job_content(other, paths)


@pytest.mark.parametrize("verdict", ["aligned", "consistent", "inconclusive", "unchecked"])
def test_a_wrong_product_makes_the_run_different(verdict: str, plan: Plan) -> None:
    finding = judge(verdict, plan, sampled(product(), product("layers.1.mlp.up", 1.05)))
    assert (finding.verdict, finding.layers[-1].passed) == ("different", False)
    assert [word for word in ("layers.1.mlp.up", "step 20", "E4M3", "bf16") if word not in finding.reason] == []


@pytest.mark.parametrize("verdict", ["not comparable", "different", "diverged"])
def test_a_verdict_that_names_a_difference_stays(verdict: str, plan: Plan) -> None:
    finding = judge(verdict, plan, sampled(product(factor=1.05)))
    assert (finding.verdict, finding.reason) == (verdict, "because")


@pytest.mark.parametrize("verdict", ["aligned", "consistent", "unchecked", "different"])
def test_right_products_change_no_verdict(verdict: str, plan: Plan) -> None:
    finding = judge(verdict, plan, sampled(product()))
    assert (finding.verdict, [layer.name for layer in finding.layers]) == (verdict, ["products"])


def test_a_run_below_fp32_that_sampled_nothing_is_consistent(plan: Plan, registry: Registry) -> None:
    finding = judge("aligned", plan, RawRecords())
    assert finding.verdict == "consistent" and "no step was sampled" in finding.reason
    in_fp32 = make_plan(registry, "gpt3_6.7B:torch:cpu:1:1", scale="smoke")
    assert judge("aligned", in_fp32, RawRecords()).verdict == "aligned"
    assert judge("different", plan, RawRecords()).verdict == "different"


def test_a_plan_that_did_not_ask_is_judged_as_before(plan: Plan) -> None:
    older = plan.model_copy(update={"spot_check": False})
    assert judge("aligned", older, sampled(product(factor=2.0))) == Alignment(verdict="aligned", reason="because")


def test_a_layer_that_skips_a_part_is_told(plan: Plan) -> None:
    names = ("layers.0.mlp.up", "layers.0.mlp.down", "layers.1.mlp.up")
    (layer,) = spot_check_layers(sampled(*map(product, names)), plan.work, 1, 1)
    assert layer.passed is False and layer.detail.startswith("layers.1.mlp.down was not computed at step 20")


def update(gradients: Sequence[float]) -> SampledOperation:
    zeros = np.zeros(len(gradients))
    names = ("value", "mean", "square", "new_value", "new_mean", "new_square")
    arrays = {**dict.fromkeys(names, zeros), "gradient": np.array(gradients)}
    return SampledOperation("update", "embedding.weight", arrays, dimensions=2)


def test_an_update_is_judged_by_the_norm_of_its_step(plan: Plan) -> None:
    steps = tuple(StepRecord(0, step, step, grad_norm=1.0) for step in range(1, 41))
    still = RawRecords(steps=steps, sampled=(SampledStep(0, 20, True, (update([0.0, 0.0]),)),))
    moved = RawRecords(steps=steps, sampled=(SampledStep(0, 20, True, (update([0.1, 0.3]),)),))
    assert [layer.passed for layer in spot_check_layers(still, plan.work, 2, 2)] == [True]
    assert [layer.passed for layer in spot_check_layers(moved, plan.work, 2, 2)] == [False]
    skipped = RawRecords(steps=tuple(StepRecord(0, s, s, skipped=True) for s in range(1, 41)), sampled=moved.sampled)
    assert spot_check_layers(skipped, plan.work, 2, 2) == []


def right_update(plan: Plan, gradient: float, step: int, updates: int) -> SampledOperation:
    """AdamW's update of a number of 0 without moments, by a gradient that is not clipped."""
    training, settings = plan.work.training, plan.work.training.optimizer
    mean, square = (1 - settings.beta1) * gradient, (1 - settings.beta2) * gradient**2
    rate = learning_rate(Schedule(**training.schedule.model_dump()), step)
    direction = mean / (1 - settings.beta1**updates) / ((square / (1 - settings.beta2**updates)) ** 0.5 + settings.eps)
    numbers = {"value": 0.0, "mean": 0.0, "square": 0.0, "gradient": gradient}
    numbers |= {"new_value": -rate * direction, "new_mean": mean, "new_square": square}
    arrays = {name: np.array([number]) for name, number in numbers.items()}
    return SampledOperation("update", "embedding.weight", arrays, dimensions=2)


@pytest.mark.parametrize(("updates", "is_right"), [(18, True), (20, False), (17, False)])
def test_skipped_steps_are_no_updates_of_the_bias_correction(updates: int, is_right: bool, plan: Plan) -> None:
    steps = tuple(StepRecord(0, step, step, grad_norm=0.5, skipped=step in (1, 2)) for step in range(1, 41))
    operation = right_update(plan, 1 / 3, 20, updates)
    (layer,) = spot_check_layers(RawRecords(steps=steps, sampled=sampled(operation).sampled), plan.work, 1, 1)
    assert layer.passed is is_right


def test_sums_that_are_all_bf16_numbers_were_not_summed_in_float32(plan: Plan) -> None:
    steps = tuple(StepRecord(0, step, step, grad_norm=0.5) for step in range(1, 41))
    raw = RawRecords(steps=steps, sampled=sampled(right_update(plan, 0.25, 20, 20)).sampled)
    (layer,), (summed,) = spot_check_layers(raw, plan.work, 1, 1), spot_check_layers(raw, plan.work, 2, 2)
    assert (layer.passed, summed.passed) == (True, False) and "bf16 number" in summed.detail
    exact = RawRecords(steps=steps, sampled=sampled(right_update(plan, 1 / 3, 20, 20)).sampled)
    assert [layer.passed for layer in spot_check_layers(exact, plan.work, 2, 2)] == [True]


def test_an_input_that_is_not_what_the_norm_gave_is_told(plan: Plan) -> None:
    rows = np.array([[1.0, -1.0], [-1.0, 1.0]])
    arrays = {"inputs": rows, "weight": np.ones(2), "bias": np.zeros(2), "output": rows}
    norm = SampledOperation("norm", "layers.0.mlp_norm", arrays)
    for factor, passed in ((1.0, True), (1.01, False)):
        x, weight = factor * rows, np.eye(2)
        product = SampledOperation(
            "product", "layers.0.mlp.up", {"inputs": x, "weight": weight, "output": x @ weight}, (0, 1)
        )
        (layer,) = spot_check_layers(sampled(norm, product), plan.work, 1, 1)
        assert layer.passed is passed, layer


def tokens_read(*read: int) -> RawRecords:
    return RawRecords(sampled=(SampledStep(0, 20, True, (), (TokenChecksums("targets", read, (1, 2)),)),))


def test_tokens_that_are_not_the_cases_make_a_run_different(plan: Plan) -> None:
    assert [layer.passed for layer in judge("aligned", plan, tokens_read(1, 2)).layers] == [True]
    finding = judge("unchecked", plan, tokens_read(1, 1))
    assert finding.verdict == "different"
    assert finding.reason == "tokens: targets of 1 micro-batches at step 20 are not the case's"


@pytest.mark.parametrize(("data_ranks", "judged"), [(1, True), (2, False)])
def test_a_loss_that_is_not_that_of_its_micro_batches_is_told(data_ranks: int, judged: bool, plan: Plan) -> None:
    steps = tuple(StepRecord(0, step, step, loss=3.03) for step in range(1, 41))
    raw = RawRecords(steps=steps, sampled=(SampledStep(0, 20, True, (), micro_batch_losses=(2.0, 4.0)),))
    layers = spot_check_layers(raw, plan.work, 2, data_ranks)
    assert [(layer.name, layer.passed) for layer in layers] == [("tokens", False)] * judged


def two_updates(plan: Plan, **arrays: Any) -> RawRecords:
    """Updates of one number in steps 20 and 21, by gradients that cancel what AdamW keeps."""
    first = right_update(plan, 1 / 3, 20, 20)
    second = right_update(plan, 1 / 3, 21, 21)
    arrays = {**first.arrays, **arrays}
    other = SampledOperation("update", "embedding.weight", second.arrays, dimensions=2)
    steps = tuple(StepRecord(0, step, step, grad_norm=0.5) for step in range(1, 41))
    changed = SampledOperation("update", "embedding.weight", arrays, dimensions=2)
    return RawRecords(steps=steps, sampled=(SampledStep(0, 20, True, (changed,)), SampledStep(0, 21, True, (other,))))


def test_numbers_that_change_between_two_steps_are_told(plan: Plan) -> None:
    (layer,) = spot_check_layers(two_updates(plan), plan.work, 1, 1)
    assert layer.passed is False and "step 21" in layer.detail and "what the step before left" in layer.detail


def test_a_gradient_that_is_not_the_sum_of_its_micro_batches_is_told(plan: Plan) -> None:
    operation = right_update(plan, 1 / 3, 20, 20)
    steps = tuple(StepRecord(0, step, step, grad_norm=0.5) for step in range(1, 41))
    for part, passed in ((1 / 6, True), (1 / 5, False)):
        summed = replace(operation, arrays={**operation.arrays, "micro_batches": np.array([[part], [1 / 6]])})
        raw = RawRecords(steps=steps, sampled=sampled(summed).sampled)
        (layer,) = spot_check_layers(raw, plan.work, 2, 1)
        assert layer.passed is passed and ("the sum of its micro-batches" in layer.detail) is not passed, layer


def test_a_step_that_the_loss_scale_skipped_is_not_judged(plan: Plan) -> None:
    infinite = replace(product(), kind="input gradient", arrays={**product().arrays, "output": np.full((3, 2), np.inf)})
    assert [layer.passed for layer in spot_check_layers(sampled(infinite), plan.work, 1, 1)] == [False]
    steps = (StepRecord(0, 20, 20, skipped=True),)
    assert spot_check_layers(replace(sampled(infinite), steps=steps), plan.work, 1, 1) == []


def test_a_norm_whose_rows_have_another_scale_is_told(plan: Plan) -> None:
    x = np.random.default_rng(1).normal(size=(16, 256))
    right = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + plan.work.model.norm_eps)
    for factor, passed in ((1.0, True), (1.003, False)):
        arrays = {"inputs": x, "weight": np.ones(256), "bias": np.zeros(256), "output": factor * right}
        (layer,) = spot_check_layers(sampled(SampledOperation("norm", "final_norm", arrays)), plan.work, 1, 1)
        assert layer.passed is passed, layer


def line(**changes: Any) -> dict[str, Any]:
    arrays = {name: pack_array(np.ones((2, 2), np.float32)) for name in ("inputs", "weight", "output")}
    return {"event": "product", "name": "layers.0.mlp.up", "bias": None, **arrays, **changes}


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([], "ValueError"),
        ([{"event": "sampled"}], "KeyError"),
        ([{"event": "sampled", "step": "5", "told": True}], "TypeError"),
        ([{"event": "sampled", "step": 5, "told": True}, line(event="unknown")], "KeyError"),
        ([{"event": "sampled", "step": 5, "told": True}, line(output=None)], "TypeError"),
        ([{"event": "sampled", "step": 5, "told": True}, line(bias={"shape": [9], "data": ""})], "ValueError"),
        ([{"event": "sampled", "step": 5, "told": True}, line(name="layers.0")], "found shapes"),
        ([line()], "ValueError"),
        ([{"event": "sampled", "step": 5, "told": True}, {"event": "sampled"}], "KeyError"),
        (
            [{"event": "sampled", "step": 5, "told": True}, {"event": "tokens", "name": "inputs", "read": [1]}],
            "KeyError",
        ),
        ([{"event": "sampled", "step": 5, "told": True}, {"event": "losses", "losses": ["x"]}], "ValueError"),
    ],
)
def test_a_damaged_file_of_samples_is_named(lines: list[dict[str, Any]], word: str, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    (events / "rank0.spot_check.jsonl").write_text("".join(json.dumps(content) + "\n" for content in lines))
    raw = read_raw(RunPaths(tmp_path))
    (sentence,) = raw.damage_sentences
    assert raw.sampled == () and sentence.startswith("rank0.spot_check.jsonl: ") and word in sentence, sentence


def test_samples_are_read_by_rank(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    lines = [{"event": "sampled", "step": 5, "told": False}, line(bias=pack_array(np.ones(2, np.float32)))]
    (events / "rank3.spot_check.jsonl").write_text("".join(json.dumps(content) + "\n" for content in lines))
    raw = read_raw(RunPaths(tmp_path))
    (step,) = raw.sampled
    assert raw.damage_sentences == () and (step.rank, step.step, step.told) == (3, 5, False)
    assert sorted(step.operations[0].arrays) == ["bias", "inputs", "output", "weight"]


def test_steps_are_read_apart(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    lines: list[dict[str, Any]] = []
    for step in (5, 6):
        checksums = {"event": "tokens", "name": "inputs", "read": [step], "expected": [7]}
        lines += [{"event": "sampled", "step": step, "told": True}, line(), checksums]
        lines.append({"event": "losses", "name": "losses", "losses": [1.5, float(step)], "factors": [0.5, 0.5]})
    (events / "rank0.spot_check.jsonl").write_text("".join(json.dumps(content) + "\n" for content in lines))
    raw = read_raw(RunPaths(tmp_path))
    assert raw.damage_sentences == () and [step.step for step in raw.sampled] == [5, 6]
    for sampled_step in raw.sampled:
        number = sampled_step.step
        assert len(sampled_step.operations) == 1 and sampled_step.micro_batch_losses == (1.5, float(number))
        assert sampled_step.tokens == (TokenChecksums("inputs", (number,), (7,)),)
