"""OneFlow trains what torch trains; minutes, in many processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import MODELS, SINGLE, Variant, compare, events, first_steps, job_of, launch, planted, script_of, train
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("oneflow")


@pytest.fixture(scope="module")
def python(interpreter_of) -> Path:
    return interpreter_of("oneflow")


# ---- planted faults


def test_gradients_of_one_tensor_rank_alone_are_seen(tmp_path, python, differs):
    """The clipping's norm without what the other tensor-parallel process holds."""
    fault = """
import training
right = training.Trainer.total
def alone(self, figures):
    return right(self, figures if self.place.tensor == 0 or len(figures) == 1 else [figures[0], 0.0])
training.Trainer.total = alone
"""
    found = differs(tmp_path, "oneflow", python, fault, variant=VARIANTS["TP2"])
    assert found.total_norm > 1e-2
    assert not found.within()


# ---- what it is, and is not


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": {"tensor": 3}}, "heads 4"),
        ({"layout": {"pipeline": 5}}, "4 layers"),
        ({"layout": {"data": 2, "sharding_stage": 1, "sharding_degree": 2}}, "plain data parallelism"),
        ({"layout": {"tensor": 2, "sequence_parallel": True}}, "sequence parallelism"),
        ({"tuning": {"recompute": "selective"}}, "selective"),
        ({"tuning": {"recompute": "full"}, "model": {"hidden_dropout": 0.1}}, "other random numbers"),
        ({"tuning": {"compile": True}}, "eagerly"),
        ({"tuning": {"attention": "flash_attn"}}, "flash_attn"),
        ({"precision": "bf16"}, "fp32 only"),
    ],
)
def test_what_cannot_be_done_is_unsupported(change, words, tmp_path, python):
    variant = Variant("unsupported", change.get("layout", {}))
    model = {**MODELS["gpt"], **change.get("model", {})}
    job = job_of(model, variant, 2, precision=change.get("precision", "fp32"))
    job["tuning"].update(change.get("tuning", {}))
    assert {end.returncode for end in launch(job, tmp_path, TRAIN, python)} == {1}
    error = events(tmp_path, 0)[-1]
    assert error["class"] == "unsupported"
    assert words in error["message"]


def test_ranks_find_each_other_where_a_proxy_is_set(monkeypatch, python, reference):
    for name in ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    curve = train(job_of(MODELS["gpt"], VARIANTS["DP2"], 2), TRAIN, python)
    assert compare(curve, first_steps(reference("gpt"), 2)).within()


def test_the_framework_says_what_it_is(tmp_path, python):
    launch(job_of(MODELS["gpt"], SINGLE, 2), tmp_path, TRAIN, python)
    said = next(event for event in events(tmp_path, 0) if event["event"] == "framework")
    assert (said["name"], said["version"], said["device"]) == ("oneflow", "0.9.0", "cpu")


def test_a_planted_fault_that_does_nothing_leaves_the_curve(tmp_path, reference, python):
    curve = train(job_of(MODELS["gpt"], SINGLE, 5), planted(tmp_path, "oneflow", "pass"), python)
    assert compare(curve, first_steps(reference("gpt"), 5)).within()
