"""The cases that ship, and what a smoke block may and may not say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from changed_documents import written
from levelfield.catalog.lookup import find_selection
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, NotHere
from levelfield.measure.parameter_counts import count_parameters
from levelfield.specs.base import load
from levelfield.specs.case import Case
from levelfield.specs.selector import Selector
from plans import ROOT
from published_models import MODELS

# What a published shape leaves open in tests/core/published_models.py, or a case sets by its own source.
OPEN_FIELDS = {"family", "rope_base", "norm_eps", "init_std", "scaled_residual_init", "experts"}
NAMES = sorted(p.stem for p in (ROOT / "configs/cases").glob("*.yaml"))


SIZES = {
    *("layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "vocab_size", "head_dim", "sliding_window"),
    "rotary_dim",
    "rope_scaling.original_length",
    *(f"latent_attention.{n}" for n in ("query_rank", "key_value_rank", "plain_size", "rotary_size", "value_size")),
    *(f"experts.{n}" for n in ("count", "chosen", "ffn_hidden_size", "first_layer")),
    *("experts.router.groups.count", "experts.router.groups.chosen"),
}


def leaves(content: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings, by its keys with dots between."""
    for name, value in content.items():
        yield from leaves(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]


def case(name: str) -> Case:
    return Registry().case(name)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3_6.7B", 6.66),
        ("gpt3_13B", 12.85),
        ("llama3_8b", 8.03),
        ("flagperf_llama3_8b", 7.54),
        ("gpt2_small", 0.124),
        ("gpt2_small_b8", 0.124),
        ("oneflow_1536x16_b2", 0.534),
        ("oneflow_768x12_b8", 0.1255),
        ("oneflow_2304x24_b512", 1.651),
        ("oneflow_3072x32_b16", 3.787),
        ("llama3_70b", 70.55),
    ],
)
def test_a_full_case_has_the_parameters_of_its_name(name: str, billions: float) -> None:
    work = case(name).work("full")
    assert count_parameters(work.model, work.training.sequence_length).total / 1e9 == pytest.approx(billions, rel=0.006)


@pytest.mark.parametrize("name", [name for name in NAMES if name in MODELS])
def test_a_case_of_a_published_model_has_its_parameters(name: str) -> None:
    model = case(name).work("full").model
    count = count_parameters(model, 4096)
    assert (count.total, count.active) == (MODELS[name].total, MODELS[name].active)
    published = MODELS[name].model().model_dump()
    assert {key for key, value in model.model_dump().items() if published.get(key) != value} <= OPEN_FIELDS


def test_the_published_models_have_cases() -> None:
    assert set(MODELS) - set(NAMES) == {"deepseek_v2_lite"}  # the arithmetic of its shape is tested, as of the others


@pytest.mark.parametrize("name", Registry().frameworks)
def test_a_part_that_a_framework_does_not_have_is_named(name: str) -> None:
    file, _ = Registry().implementation(name)
    if "latent_attention" in file.architecture:
        return
    with pytest.raises(NotHere, match=rf"^{name} .*latent_attention.*\bdeepseek_v3\b"):
        find_selection(Registry(), Selector(case="deepseek_v3", framework=name, target="cpu"))


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_scale_is_the_same_architecture_with_less_of_it(name: str) -> None:
    full, smoke = case(name).work("full"), case(name).work("smoke")
    whole, less = dict(leaves(full.model.model_dump())), dict(leaves(smoke.model.model_dump()))
    assert set(whole) == set(less) and set(full.model.parts) - {"dropout"} == set(smoke.model.parts)
    random = {"hidden_dropout", "attention_dropout", "init_std"}  # a small size may need larger weights
    assert {key for key, value in whole.items() if less[key] != value} <= SIZES | random
    assert less["init_std"] >= whole["init_std"]
    assert all(less[key] <= whole[key] for key in SIZES & set(whole) if whole[key] is not None)
    assert smoke.model.hidden_dropout == smoke.model.attention_dropout == 0
    assert smoke.training.optimizer.name == full.training.optimizer.name
    # These cases are of their precision at smoke scale too.
    precisions = {"gpt3_6.7B_bf16": "bf16", "llama3_8b_bf16": "bf16", "llama3_8b_fp8": "fp8"}
    assert smoke.training.precision == precisions.get(name, "fp32")


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_scale_ends_soon_and_shows_learning(name: str) -> None:
    smoke = case(name).work("smoke")
    tokens = smoke.training.steps * smoke.training.tokens_per_step
    count = count_parameters(smoke.model, smoke.training.sequence_length).total
    assert 6 * count * tokens < 2e13  # two processor cores do that within about two minutes
    assert smoke.training.schedule.decay_steps <= smoke.training.steps
    assert smoke.acceptance.final_loss_below_fraction <= 0.6
    assert smoke.window.last_step - smoke.window.first_step >= 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"smoke.model": {"layer": 1}}, "key 'smoke': model.layer: unknown key (found 1); nearest: layers; all: act"),
        ({"smoke.model": {"layers": 0}}, "at scale smoke: model.layers: Input should be greater than or equal to 1"),
        ({"smoke.model": {"heads": 5}}, "at scale smoke: model: hidden_size 16 is not divisible by heads 5"),
        ({"smoke.training": {"optimizer": {"beta3": 1}}}, "'smoke': training.optimizer.beta3: unknown key"),
        ({"smoke.training": {"steps": 5}}, "at scale smoke: work: window 3..12 does not lie within the 5"),
        ({"smoke.data": {"alphabet": 65}}, "at scale smoke: work: data.alphabet 65 is above vocab_size 64"),
        (
            {"smoke.acceptance": {"tail_steps": 12}},
            "at scale smoke: work: acceptance.tail_steps: found 12, expected below",
        ),
        ({"window.last_step": 25}, "at scale full: work: window 3..25 does not lie within the 24 steps"),
        (
            {"smoke.tuning": {"micro_batch": 1}},
            "key 'smoke': tuning: unknown key (found {'micro_batch': 1}); nearest: training; all: acceptance, data,",
        ),
        ({"smoke.model": 3}, "key 'smoke.model': found 3, expected a mapping of keys to values"),
    ],
)
def test_a_smoke_block_that_makes_no_work_is_refused_by_scale_and_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, change)
    with pytest.raises(DocumentError) as refusal:
        load(Case, path)
    assert str(path) in str(refusal.value) and message in str(refusal.value)


def test_smoke_changes_single_keys_and_leaves_their_neighbours(tmp_path: Path) -> None:
    case = load(Case, written(tmp_path, {"smoke.training": {"steps": 12, "optimizer": {"beta1": 0.8}}}))
    smoke = case.work("smoke")
    assert (smoke.training.optimizer.beta1, smoke.training.optimizer.beta2) == (0.8, 0.95)
    assert case.work("full").training.optimizer.beta1 == 0.9


def test_work_in_another_precision_has_the_same_digest_but_for_it(registry: Registry) -> None:
    fp16, bf16, other = (registry.case(name).work("full") for name in ("gpt3_6.7B", "gpt3_6.7B_bf16", "gpt3_13B"))
    assert fp16.fingerprint() != bf16.fingerprint() and fp16.digest_without_precision == bf16.digest_without_precision
    assert fp16.digest_without_precision != other.digest_without_precision
    seeded = fp16.model_copy(update={"training": fp16.training.model_copy(update={"seed": 99})})
    assert seeded.digest_without_precision != fp16.digest_without_precision


def test_the_number_of_parameters_is_held_to_the_model(tmp_path: Path) -> None:
    """A Llama 3 8B whose head was left out, which ties it to the embedding."""
    llama = ROOT / "configs/cases/llama3_8b.yaml"
    right = {"name": "case", "parameters": 8_030_261_248}
    path = written(tmp_path, right, llama)
    assert Registry(case_files=[path]).case("case").parameters == 8_030_261_248
    derived = Registry(case_files=[path]).case("case+seq128")
    assert derived.parameters is None, "learned positions would be fewer"
    written(tmp_path, {**right, "model.tied_embeddings": True}, llama)
    numbers = r"8,030,261,248.*7,504,924,672.*embedding 525,336,576.*difference.* 525,336,576"
    with pytest.raises(DocumentError, match=rf"case\.yaml:.*'parameters'.*{numbers}"):
        Registry(case_files=[path]).case("case")


def test_parameters_are_no_part_of_the_work(tmp_path: Path) -> None:
    llama = ROOT / "configs/cases/llama3_8b.yaml"
    counted = load(Case, written(tmp_path, {"parameters": 8_030_261_248}, llama))
    assert counted.work("full") == load(Case, llama).work("full")


@pytest.mark.parametrize(("number", "is_right"), [(8_030_261_248, False), (7_504_924_672, True), (None, True)])
def test_an_extension_has_parameters_of_its_own(tmp_path: Path, number: int | None, is_right: bool) -> None:
    whole = written(tmp_path, {"name": "case", "parameters": 8_030_261_248}, ROOT / "configs/cases/llama3_8b.yaml")
    tied = tmp_path / "tied.yaml"
    keys = {"schema": "levelfield.case/1", "name": "tied", "title": "tied", "source": "made for the tests"}
    content = {**keys, "extends": "case", "changes": {"model": {"tied_embeddings": True}}, "parameters": number}
    tied.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    registry = Registry(case_files=[whole, tied])
    if is_right:
        assert registry.case("tied").parameters == number
    else:
        with pytest.raises(DocumentError, match=r"tied\.yaml: .*'parameters'"):
            registry.case("tied")
