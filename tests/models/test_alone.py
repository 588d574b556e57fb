"""What operations take alone: they are repeated with the shapes, strides and types that a step has."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import MODELS, Variant, events, launch_explained, shallow, small_job
from levelfield.explain.explanation import RecordedRun, parts_from_records, rank_layout, unpacked_trace
from levelfield.explain.step_alone import ChipRates, parse_alone_times
from levelfield.measure.step_timeline import add_arguments, build_timeline
from levelfield.specs.layout import Layout

pytestmark = [pytest.mark.torch, pytest.mark.layouts]
CPU = torch.device("cpu")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """models/torch/repeats.py, with short repeats."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "models" / "torch"))
    found = importlib.import_module("repeats")
    monkeypatch.setattr(found, "MAX_REPEATS", 3)
    monkeypatch.setitem(found.COPIED_BYTES, "cpu", 2**16)
    yield found
    del sys.modules["repeats"]


def step() -> None:
    """A product with a transposed operand, attention, whole numbers that choose rows, and a list of tensors."""
    torch.manual_seed(1)
    table = torch.randn(9, 32, requires_grad=True)
    x = torch.nn.functional.embedding(torch.tensor([[8, 1, 2, 3]]), table)
    heads = (x @ torch.randn(32, 32).t()).view(1, 4, 2, 16).transpose(1, 2)
    torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum().backward()
    torch._foreach_add_([torch.ones(3), torch.ones(4)], 1.0)


def test_each_operation_is_repeated_as_the_step_has_it(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_times, own = alone.StepCalls(), alone.best_seconds

    def watched(device: torch.device, work: Any, seconds: float) -> Any:
        with alone_times:
            return own(device, work, seconds)

    with alone.StepCalls() as seen:
        step()
    monkeypatch.setattr(alone, "best_seconds", watched)
    found = alone.measure(CPU, step)
    expected = {key: set(variants) for key, variants in seen.calls.items()}
    for key, variants in expected.items():
        assert variants <= set(alone_times.calls[key]), f"{key} was repeated with other shapes, strides or types"
    assert {(each["name"], each["dtype"], each["dims"]) for each in found["operations"]} == set(expected)
    assert found["left_out"] == [] and not {"aten::view", "aten::transpose"} & {name for name, *_ in expected}
    assert all(0 < each["seconds"] < math.inf for each in found["operations"])
    rows = next(each for each in seen.calls if each[0] == "aten::embedding")
    (((call, _),),) = [list(seen.calls[rows].values())]
    assert call.arguments[0][1].tensor().tolist() == [[8, 1, 2, 3]], "which rows are read is as in the step"


def test_what_is_too_large_or_cannot_be_repeated_is_said(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "MAX_BYTES", 1000)
    found = alone.measure(CPU, step)
    assert "aten::embedding: larger than what is repeated" in found["left_out"]
    assert "aten::embedding" not in {each["name"] for each in found["operations"]}


def test_two_ranks_repeat_their_messages_and_each_part_has_its_times(tmp_path: Path) -> None:
    variant = Variant("DP2", {"data": 2})
    job = small_job(shallow(MODELS["gpt"]), variant, 2)
    ends = launch_explained(job, tmp_path, 1)
    assert [end.returncode for end in ends] == [0, 0], ends[0].output[-2000:]
    for rank in (0, 1):
        values = events(tmp_path, rank)[-2]["values"]
        assert {each["kind"] for each in values["messages"]} >= {"all-reduce"}
        assert all(each["ranks"] == [0, 1] and each["count"] >= 1 for each in values["messages"])
    layout = rank_layout(Layout.model_validate(job["layout"]))
    run = RecordedRun("run", "torch", 2, layout, ChipRates({"float": 1e15}, 1e15))
    found = parts_from_records(run, tmp_path, tmp_path / "profile").alone
    assert found is not None
    by_part = {each.part: each for each in found.parts}
    compared = {"attention core", "attention projections", "mlp", "head and loss", "optimizer", "all-reduce"}
    assert compared <= {*by_part, *(each.partition(":")[0] for each in found.missing)}
    heavy = {"aten::mm", "mkldnn::_linear_pointwise", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}
    alone = parse_alone_times(events(tmp_path, 0)[-2]["values"]).seconds
    noted, record = (unpacked_trace((tmp_path / "profile" / f"rank0.step{n}.json.gz").read_bytes()) for n in (0, 1))
    ran = [each for each in build_timeline(add_arguments(record, noted), alone).slices if each.operation in heavy]
    assert {each.operation for each in ran} == heavy and all(each.is_repeated for each in ran)
