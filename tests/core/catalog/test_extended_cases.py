"""Cases that extend another: merged key by key, one level, and what is wrong is said with file and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from levelfield.catalog.lookup import reference_of
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import DocumentError
from levelfield.specs.case import Case
from plans import PLUGINS, make_plan

CHILD: dict[str, Any] = {
    "schema": "levelfield.case/1",
    "name": "child",
    "title": "The tiny case with more heads",
    "source": "made for the tests",
    "extends": "tiny",
    "changes": {"model": {"heads": 8, "kv_heads": 8}, "training": {"optimizer": {"beta2": 0.99}}},
}


def registry_with(folder: Path, **cases: dict[str, Any]) -> Registry:
    """The tests' plugins and cases of the test's own."""
    place = folder / "configs" / "cases"
    place.mkdir(parents=True, exist_ok=True)
    for name, content in cases.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump({**CHILD, "name": name, **content}))
    return Registry([PLUGINS, folder])


def child(folder: Path, **content: Any) -> Case:
    return registry_with(folder, child=content).case("child")


def test_changes_replace_single_keys_and_leave_their_neighbours(tmp_path: Path) -> None:
    base, found = Registry([PLUGINS]).case("tiny"), child(tmp_path)
    assert (found.name, found.title, found.tokenizer) == ("child", CHILD["title"], base.tokenizer)
    assert found.work("full").model == base.model.model_copy(update={"heads": 8, "kv_heads": 8})
    assert (found.training.optimizer.beta1, found.training.optimizer.beta2) == (0.9, 0.99)
    assert (found.smoke, found.tuning, found.data) == (base.smoke, base.tuning, base.data)


def test_smoke_and_tuning_are_the_other_cases_but_for_what_is_changed(tmp_path: Path) -> None:
    found = child(tmp_path, smoke={"training": {"steps": 14}}, tuning={"full": {"recompute": "full"}})
    assert found.work("smoke").training.steps == 14 and found.work("smoke").window.last_step == 12
    assert (found.tuning["full"].recompute, found.tuning["full"].micro_batch) == ("full", 2)
    assert found.tuning["smoke"].micro_batch == 4


def test_null_takes_a_value_away(tmp_path: Path) -> None:
    scaled = {"training": {"precision": "fp16", "loss_scale": {"initial": 1024, "growth_interval": 10}}}
    assert child(tmp_path, changes=scaled).training.loss_scale is not None
    assert child(tmp_path, changes={"training": {"loss_scale": None}}).training.loss_scale is None


def test_the_digest_is_of_the_whole_case(tmp_path: Path) -> None:
    digest = child(tmp_path).fingerprint()
    whole = Case.model_validate(child(tmp_path).model_dump())
    assert digest == whole.fingerprint() != Registry([PLUGINS]).case("tiny").fingerprint()
    assert child(tmp_path, changes={"model": {"heads": 8, "kv_heads": 4}}).fingerprint() != digest


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"extends": "tiney"}, "key 'extends': unknown case 'tiney'; nearest: tiny"),
        ({"extends": "child"}, "extends: found the case's own name 'child', expected another case"),
        ({"changes": {"modle": {}}}, "changes: unknown key ['modle']; known: ['acceptance', 'data', 'evidence'"),
        ({"changes": {"tuning": {}}}, "changes: unknown key ['tuning']"),
        ({"changes": {"model": {"layer": 3}}}, "changes to tiny: key 'model.layer': unknown key (found 3)"),
        ({"changes": {"model": {"layers": 0}}}, "changes to tiny: key 'model.layers': found 0, expected:"),
        ({"changes": {"model": {"heads": 5}}}, "changes to tiny: key 'model': hidden_size 16 is not divisible by"),
        ({"changes": {"training": {"steps": 5}}}, "changes to tiny: document: at scale full: work: window"),
        ({"changes": {"model": 3}}, "key 'changes.model': found 3, expected: input should be a valid dictionary"),
        ({"smoke": {"model": {"layer": 3}}}, "changes to tiny: document: at scale smoke: model.layer: Extra inputs"),
        ({"tuning": {"full": {"steps": 3}}}, "'steps' is locked, the case fixes it"),
        ({"tuning": {"half": {}}}, "key 'tuning.half.[key]': found 'half', expected: input should be"),
        ({"model": {"layers": 3}}, "key 'model': unknown key"),
        ({"name": "another"}, "found the name 'another', expected 'child' as in its path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    registry = registry_with(tmp_path, other={}, child=content)
    with pytest.raises(DocumentError) as caught:
        registry.case("child")
    assert str(caught.value).startswith(str(tmp_path / "configs/cases/child.yaml")) and says in str(caught.value)


def test_show_says_what_a_case_extends_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "llama3_70b", "--scale", "full"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["extends"] == "llama3_8b" and found["changes"]["model"]["layers"] == 80
    assert found["full"]["model"]["vocab_size"] == 128256 and found["full"]["parameters"] == 70553706496
    assert main(["show", "llama3_8b"]) == 0 and "extends" not in yaml.safe_load(capsys.readouterr().out)


def test_the_very_same_smoke_work_is_held_against_the_reference_there_is(registry: Registry) -> None:
    plan = make_plan(registry, "gpt2_small_b8:torch:cpu")
    shared = reference_of(registry, plan)
    assert shared is not None and shared.identity.work == plan.work_digest and shared.case != plan.case
    full = make_plan(registry, "gpt2_small_b8:deepspeed:A100", scale="full", assume=True)
    assert reference_of(registry, full) is None
    works = [registry.reference(name).identity.work for name in registry.references]
    assert len(works) == len(set(works))  # no copy of one: this finds it for every case with its work
    for case, other in (("gpt2_medium", "gpt2_small"), ("gpt3_13B", "gpt3_6.7B")):
        held = reference_of(registry, make_plan(registry, f"{case}:torch:cpu"))
        assert held is not None and held.name == f"{other}_smoke_fp32"


def test_a_case_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    registry = registry_with(
        tmp_path,
        grandchild={"extends": "child", "changes": {"training": {"global_batch": 12}}},
        child={"changes": {"training": {"global_batch": 24}, "model": {"layers": 4}}},
    )
    found, below = registry.case("grandchild"), registry.case("child")
    assert (found.training.global_batch, below.training.global_batch) == (12, 24)
    assert found.model.layers == below.model.layers == 4
    assert found.model.hidden_size == registry.case("tiny").model.hidden_size


def test_a_circle_of_extensions_is_named(tmp_path: Path) -> None:
    registry = registry_with(tmp_path, one={"extends": "two"}, two={"extends": "three"}, three={"extends": "one"})
    with pytest.raises(DocumentError, match="found a circle, one -> two -> three -> one"):
        registry.case("one")
