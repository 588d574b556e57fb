"""A step that real trainings sample: honest ones are within every limit, and planted faults are told by their layer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import sampled_power
from faults.by_a_second_stranger import FAULTS as SECOND_STRANGERS_FAULTS
from faults.by_a_stranger import FAULTS as STRANGERS_FAULTS
from faults.by_an_insider import FAULTS as INSIDERS_FAULTS
from faults.in_sampled_step import (
    FAULTS,
    HONEST,
    HonestTraining,
    SampledFault,
    failed_layer,
    figures,
    sampled_layers,
    trained_layers,
)
from layouts import MODELS
from levelfield.testing.framework_kit.small_jobs import PART_MODELS
from matrix import VARIANTS
from power import PAGE

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

# A training of each kind; the others are thorough.
FIRST = ("E4M3 weights in all products, late", "no clipping", "moments in bf16", "scales 16 times too small")
ALSO_FIRST = (
    *("TF32 in the blocks' weight gradients", "two sequences' targets swapped, late"),
    *("the last micro-batch left out of the gradients, late", "the embedding without its lookups' gradient"),
    "grouped keys and values with the gradient of one query of each group",
)
ALL = (*STRANGERS_FAULTS, *INSIDERS_FAULTS, *SECOND_STRANGERS_FAULTS)
SELECTED = {name: next(fault for fault in FAULTS if fault.name == name) for name in FIRST}


def id_of(fault: SampledFault) -> str:
    return f"{fault.name}, {fault.precision}"


@pytest.mark.parametrize("fault", SELECTED.values(), ids=id_of)
def test_a_fault_is_told_by_its_layer(fault: SampledFault) -> None:
    assert failed_layer(trained_layers(fault)) == fault.layer


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in SELECTED.values()], ids=id_of)
def test_every_other_fault_is_told_by_its_layer(fault: SampledFault) -> None:
    assert failed_layer(trained_layers(fault)) == fault.layer


@pytest.mark.parametrize("fault", [fault for fault in ALL if fault.name in ALSO_FIRST], ids=id_of)
def test_a_fault_between_products_or_at_an_end_is_told_by_its_layer(fault: SampledFault) -> None:
    assert failed_layer(trained_layers(fault)) == fault.layer


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [fault for fault in ALL if fault.name not in ALSO_FIRST], ids=id_of)
def test_another_fault_is_told_by_its_layer_or_by_none(fault: SampledFault) -> None:
    assert failed_layer(trained_layers(fault)) == fault.layer


def layers_of(run: HonestTraining) -> tuple[str, ...]:
    """A rank that has parts of sequences does not sample their tokens."""
    return ("products", "update") if run.variant.layout.get("context") else ("products", "tokens", "update")


@pytest.mark.parametrize("run", HONEST[:4], ids=str)
def test_an_honest_training_is_within(run: HonestTraining, tmp_path: Path) -> None:
    run.check(tmp_path, layers_of(run))


@pytest.mark.thorough
@pytest.mark.parametrize("run", HONEST[4:], ids=str)
def test_other_honest_trainings_are_within(run: HonestTraining, tmp_path: Path) -> None:
    run.check(tmp_path, layers_of(run))


WRONG_NORM = """
import model.attention
class Wrong(model.attention.RMSNorm):
    def forward(self, x):
        return super().forward(x) * 1.02
build = model.attention.Attention.__init__
def build_wrong(self, *arguments):
    build(self, *arguments)
    self.query_norm.__class__ = Wrong
model.attention.Attention.__init__ = build_wrong
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "layer"), [("", None), (WRONG_NORM, "products")], ids=["honest", "2 % too large"])
def test_norms_over_all_heads_are_sampled(
    code: str, layer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    olmo2 = {**PART_MODELS["joint_query_key_norm"], "norm_place": "after"}
    monkeypatch.setitem(MODELS, "olmo2", olmo2)
    assert failed_layer(sampled_layers(tmp_path, "fp32", "olmo2", code=code)) == layer


def test_a_training_with_factors_of_residuals_logits_and_scores_is_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = {"residual_scale": 0.5, "logit_scale": 0.5, "attention_scale": 0.2}
    monkeypatch.setitem(MODELS, "granite", {**MODELS["llama"], **factors})
    run = HonestTraining("fp32", "granite")
    run.check(tmp_path, layers_of(run))


SIDE_BY_SIDE = {
    **MODELS["llama"], "parallel_residual": "two_norms", "sliding_window": 5, "full_attention_interval": 4,
    "no_rope_interval": 4, "rotary_dim": 6,
}  # fmt: skip
ROTATES_ALL_LAYERS = """
import model.decoder
build = model.decoder.Block.__init__
def build_rotated(self, *arguments):
    build(self, *arguments)
    self.is_rotated = True
model.decoder.Block.__init__ = build_rotated
"""
A_WINDOW_IN_ALL_LAYERS = """
import parallelism.parallelize
parallelism.parallelize.layer_window = lambda model, layer: model.sliding_window
"""
ANGLES_OF_FEWER_NUMBERS = """
import model.decoder
tables = model.decoder.rotary_tables
model.decoder.rotary_tables = lambda size, *arguments: tables(size - 2, *arguments)
"""
ONE_AFTER_THE_OTHER = """
import model.decoder
def forward(self, x, rotary=None):
    x = x + self.attention(self.attention_norm(x), rotary if self.is_rotated else None)
    return x + self.mlp(self.mlp_norm(x))
model.decoder.Block.forward = forward
"""
A_LARGER_MLP = """
import model.decoder
def forward(self, x, rotary=None):
    attention = self.attention(self.attention_norm(x), rotary if self.is_rotated else None)
    return x + attention + 1.02 * self.mlp(self.mlp_norm(x))
model.decoder.Block.forward = forward
"""
FAULTS_BY_LAYER = {
    "rotates all layers": ROTATES_ALL_LAYERS,
    "a window in all layers": A_WINDOW_IN_ALL_LAYERS,
    "angles of fewer numbers": ANGLES_OF_FEWER_NUMBERS,
    "one after the other": ONE_AFTER_THE_OTHER,
    "a larger MLP": A_LARGER_MLP,
}


ONE_NORM = {
    **MODELS["gpt"], "positions": "rope", "rope_base": 10000.0, "bias": False, "norm_bias": False,
    "attention_bias": True, "parallel_residual": "one_norm", "residual_scale": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        (SIDE_BY_SIDE, "fp32"),
        (ONE_NORM, "fp32"),
        pytest.param(SIDE_BY_SIDE, "bf16", marks=pytest.mark.thorough),
        pytest.param(ONE_NORM, "bf16", marks=pytest.mark.thorough),
        pytest.param(ONE_NORM, "fp8", marks=pytest.mark.thorough),
    ],
)
def test_attention_and_mlp_side_by_side_are_within(
    model: dict[str, Any], precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "side by side", model)
    run = HonestTraining(precision, "side by side")
    run.check(tmp_path, layers_of(run))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS_BY_LAYER)
def test_a_fault_of_layers_of_other_kinds_is_told(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "side by side", SIDE_BY_SIDE)
    assert failed_layer(sampled_layers(tmp_path, "fp32", "side by side", code=FAULTS_BY_LAYER[fault])) == "products"


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.thorough), "fp8"])
def test_sampling_changes_no_digit(precision: str, tmp_path: Path) -> None:
    assert figures(tmp_path / "sampled", precision, spot_check=True) == figures(tmp_path / "plain", precision)


def test_a_compiled_training_samples_nothing(tmp_path: Path) -> None:
    code = "import torch\ntorch.compile = lambda program, **choices: program  # compiling takes seconds"
    assert sampled_layers(tmp_path, "fp32", "gpt", VARIANTS["compile"], code) == []


DATA = json.loads(sampled_power.DATA.read_text(encoding="utf-8"))


def test_the_record_has_every_fault_and_the_layer_that_tells_of_it() -> None:
    recorded = {(row["by"], row["fault"], row["precision"]): row["layer"] for row in DATA["faults"]}
    faults = list(sampled_power.all_faults())
    assert recorded == {(author, fault.name, fault.precision): fault.layer for author, fault in faults}
    assert len(recorded) == len(faults) == 144


def test_a_strangers_fault_changes_the_training() -> None:
    same = [row["fault"] for row in DATA["faults"] if row["by"] == "stranger" and not (row["loss"] or row["norm"])]
    assert same == []


def test_every_fault_that_is_not_seen_has_what_a_check_would_need() -> None:
    names = [name for group in sampled_power.UNSEEN.values() for name in group]
    assert sorted(names) == sorted(fault.name for _, fault in sampled_power.all_faults() if fault.layer is None)


def test_of_a_list_that_no_check_was_written_for_nothing_is_aligned() -> None:
    blind = [row for row in DATA["faults"] if row["by"] == "second stranger"]
    assert len(blind) == 24 and all(row["layer"] or row["verdict"] != "aligned" for row in blind)


def test_with_a_reference_and_a_certificate_no_fault_is_aligned() -> None:
    aligned = [row["fault"] for row in DATA["faults"] if row["layer"] is None and row["verdict"] == "aligned"]
    assert aligned == []


@pytest.mark.thorough
def test_a_reference_tells_of_a_fault_and_not_of_a_right_training() -> None:
    (fault,) = (f for f in INSIDERS_FAULTS if f.name == "norms and biases left out of the all-reduce")
    right = dataclasses.replace(fault, code="pass")
    assert sampled_power.reference_verdict(fault)["verdict"] == "different"
    assert sampled_power.reference_verdict(right)["verdict"] == "aligned"


def test_the_record_has_every_honest_training_and_no_false_alarm() -> None:
    assert len(DATA["honest"]) == len(HONEST) and not any(row["layer"] for row in DATA["honest"])


def test_the_page_has_the_table_of_the_record() -> None:
    assert sampled_power.section(**DATA) in PAGE.read_text(encoding="utf-8")
