"""OneFlow trains what torch trains; minutes, in many processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, compare, events, first_steps, launch, planted, script_of, small_job, train
from levelfield.specs.recorded_runs import Difference
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("oneflow")


FRAMEWORK = "oneflow"


# ---- planted faults


def test_gradients_of_one_tensor_rank_alone_are_seen(
    tmp_path: Path, python: Path, differs: Callable[..., Difference]
) -> None:
    """The clipping's norm without what the other tensor-parallel process holds."""
    fault = """
import training
right = training.Trainer.total
def alone(self, figures):
    return right(self, figures if self.place.tensor == 0 or len(figures) == 1 else [figures[0], 0.0])
training.Trainer.total = alone
"""
    found = differs(tmp_path, "oneflow", python, fault, variant=VARIANTS["TP2"])
    assert found.total_norm is not None
    assert found.total_norm > 1e-2
    assert not found.is_within_limits()


# ---- fp16, which OneFlow has on accelerators only

# In place of its automatic mixed precision: products of operands rounded to fp16, forward and backward.
ROUNDED = """
import contextlib
import decoder
right = decoder.flow.matmul
def rounded(a, b):
    return right(a.half().float(), b.half().float()).half().float()
@contextlib.contextmanager
def rounding(precision):
    decoder.flow.matmul = rounded if precision == "fp16" else right
    yield
    decoder.flow.matmul = right
decoder.auto_cast = rounding
"""


def unchecked(folder: Path, fault: str) -> Path:
    """A training with `fault` that does not refuse fp16."""
    script = planted(folder, "oneflow", fault)
    allowing = "import limits\nlimits.check_precision = lambda job: None\nimport train\n"
    script.write_text(script.read_text().replace("import train\n", allowing, 1))
    return script


def fp16_job(initial: float, steps: int = 5, growth_interval: int = 1000) -> dict[str, Any]:
    scale = {"initial": initial, "growth_interval": growth_interval}
    return small_job(MODELS["gpt"], SINGLE, steps, precision="fp16", loss_scale=scale)


def test_a_step_in_fp16_is_scaled_and_unscaled(tmp_path: Path, python: Path, reference: Callable[[str], Curve]) -> None:
    curve = train(fp16_job(256.0), unchecked(tmp_path, ROUNDED), python)
    found = compare(curve, first_steps(reference("gpt"), 5))
    assert found.is_within_limits("fp16"), found
    assert found.loss is not None
    assert found.loss > 1e-6  # it was rounded


@pytest.mark.thorough
def test_a_step_that_overflows_is_skipped_and_halves_the_scale(tmp_path: Path, python: Path) -> None:
    job = fp16_job(2.0**24, steps=14, growth_interval=2)
    assert {end.returncode for end in launch(job, tmp_path, unchecked(tmp_path, ROUNDED), python)} == {0}
    found = [event for event in events(tmp_path, 0) if event["event"] == "step"]
    skipped, scales = [event["skipped"] for event in found], [event["loss_scale"] for event in found]
    assert skipped[0] and not all(skipped)
    assert [event["grad_norm"] is None for event in found] == skipped
    value, good = 2.0**24, 0
    for step, scale in enumerate(scales):
        assert scale == value
        good = 0 if skipped[step] else good + 1
        value *= 0.5 if skipped[step] else 2.0 if good % 2 == 0 else 1.0
    assert any(later > earlier for earlier, later in itertools.pairwise(scales))


@pytest.mark.thorough
def test_a_gradient_norm_that_is_not_unscaled_is_seen(
    tmp_path: Path, python: Path, reference: Callable[[str], Curve]
) -> None:
    fault = """
import training
update = training.Trainer.update
def scaled(self):
    self.norm *= self.loss_scale.value
    update(self)
training.Trainer.update = scaled
"""
    curve = train(fp16_job(256.0), unchecked(tmp_path, ROUNDED + fault), python)
    found = compare(curve, first_steps(reference("gpt"), 5))
    assert found.grad_norm is not None
    assert found.grad_norm > 1 and not found.is_within_limits("fp16")


# ---- dropout, which draws the same numbers when a block is computed again

RANDOM = {**MODELS["gpt"], "hidden_dropout": 0.2, "attention_dropout": 0.1}


def recomputed_jobs() -> list[dict[str, Any]]:
    """The same job without and with recomputation."""
    return [small_job(RANDOM, VARIANTS[name], 3) for name in (SINGLE.name, "recompute full")]


def test_recomputation_draws_the_same_dropout(tmp_path: Path, python: Path) -> None:
    kept, again = (
        train(small_job(RANDOM, VARIANTS[name], 3), TRAIN, python) for name in (SINGLE.name, "recompute full")
    )
    assert compare(again, kept).is_within_limits()


@pytest.mark.thorough
def test_dropout_that_is_drawn_anew_is_seen(tmp_path: Path, python: Path) -> None:
    """So there is dropout, too."""
    fault = "import decoder\ndecoder.seed_stage = lambda stage, seed: None"
    script = planted(tmp_path, "oneflow", fault)
    kept, again = (
        train(small_job(RANDOM, VARIANTS[name], 3), script, python) for name in (SINGLE.name, "recompute full")
    )
    assert not compare(again, kept).is_within_limits()


def test_ranks_find_each_other_where_a_proxy_is_set(
    monkeypatch: pytest.MonkeyPatch, python: Path, reference: Callable[[str], Curve]
) -> None:
    for name in ("http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    curve = train(small_job(MODELS["gpt"], VARIANTS["DP2"], 2), TRAIN, python)
    assert compare(curve, first_steps(reference("gpt"), 2)).is_within_limits()


def test_a_planted_fault_that_does_nothing_leaves_the_curve(
    tmp_path: Path, reference: Callable[[str], Curve], python: Path
) -> None:
    curve = train(small_job(MODELS["gpt"], SINGLE, 5), planted(tmp_path, "oneflow", "pass"), python)
    assert compare(curve, first_steps(reference("gpt"), 5)).is_within_limits()
