"""Cases that extend another: merged key by key, one level, and what is wrong is said with file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from levelfield.catalog.lookup import find_reference
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
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
    base, case = Registry([PLUGINS]).case("tiny"), child(tmp_path)
    assert (case.name, case.title, case.tokenizer) == ("child", CHILD["title"], base.tokenizer)
    assert case.work("full").model == base.model.model_copy(update={"heads": 8, "kv_heads": 8})
    assert (case.training.optimizer.beta1, case.training.optimizer.beta2) == (0.9, 0.99)
    assert (case.smoke, case.tuning, case.data) == (base.smoke, base.tuning, base.data)


def test_smoke_and_tuning_are_the_other_cases_but_for_what_is_changed(tmp_path: Path) -> None:
    case = child(tmp_path, smoke={"training": {"steps": 14}}, tuning={"full": {"recompute": "full"}})
    assert case.work("smoke").training.steps == 14 and case.work("smoke").window.last_step == 12
    assert (case.tuning["full"].recompute, case.tuning["full"].micro_batch) == ("full", 2)
    assert case.tuning["smoke"].micro_batch == 4


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
    ("content", "message"),
    [
        ({"extends": "tiney"}, "key 'extends': unknown case 'tiney'; nearest: tiny"),
        ({"extends": "child"}, "extends: found the case's own name 'child', expected another case"),
        ({"changes": {"modle": {}}}, "changes: unknown key ['modle']; known: ['acceptance', 'data', 'evidence'"),
        ({"changes": {"tuning": {}}}, "changes: unknown key ['tuning']"),
        ({"changes": {"model": {"layer": 3}}}, "changes to tiny: key 'model.layer': unknown key (found 3)"),
        ({"changes": {"model": {"layers": 0}}}, "changes to tiny: key 'model.layers': found 0, expected at least 1"),
        ({"changes": {"model": {"heads": 5}}}, "changes to tiny: key 'model': hidden_size 16 is not divisible by"),
        ({"changes": {"training": {"steps": 5}}}, "changes to tiny: document: at scale full: work: window"),
        ({"changes": {"model": 3}}, "key 'changes.model': found 3, expected a mapping of keys to values"),
        ({"smoke": {"model": {"layer": 3}}}, "changes to tiny: key 'smoke': model.layer: unknown key (found 3)"),
        ({"tuning": {"full": {"steps": 3}}}, "'steps' is locked, the case fixes it"),
        ({"tuning": {"half": {}}}, "key 'tuning.half.[key]': found 'half', expected 'full'"),
        ({"model": {"layers": 3}}, "key 'model': unknown key"),
        ({"name": "another"}, "found the name 'another', expected 'child' as in its path"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    registry = registry_with(tmp_path, other={}, child=content)
    with pytest.raises(DocumentError) as refusal:
        registry.case("child")
    assert str(refusal.value).startswith(str(tmp_path / "configs/cases/child.yaml")) and message in str(refusal.value)


def test_show_says_what_a_case_extends_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "llama3_70b", "--scale", "full"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["extends"] == "llama3_8b" and shown["changes"]["model"]["layers"] == 80
    assert shown["full"]["model"]["vocab_size"] == 128256 and shown["full"]["parameters"] == 70553706496
    assert main(["show", "llama3_8b"]) == 0 and "extends" not in yaml.safe_load(capsys.readouterr().out)


def test_the_very_same_smoke_work_is_held_against_the_reference_there_is(registry: Registry) -> None:
    plan = make_plan(registry, "gpt2_small_b8:torch:cpu")
    shared = find_reference(registry, plan)
    assert shared is not None and shared.identity.work == plan.work_digest and shared.case != plan.case
    full = make_plan(registry, "gpt2_small_b8:deepspeed:A100", scale="full", may_lack_hardware=True)
    assert find_reference(registry, full) is None
    works = [registry.reference(name).identity.work for name in registry.references]
    assert len(works) == len(set(works))  # no copy of one: this finds it for every case with its work
    for case, other in (("gpt2_medium", "gpt2_small"), ("gpt3_13B", "gpt3_6.7B")):
        reference = find_reference(registry, make_plan(registry, f"{case}:torch:cpu"))
        assert reference is not None and reference.name == f"{other}_smoke_fp32"


def test_a_case_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    registry = registry_with(
        tmp_path,
        grandchild={"extends": "child", "changes": {"training": {"global_batch": 12}}},
        child={"changes": {"training": {"global_batch": 24}, "model": {"layers": 4}}},
    )
    case, below = registry.case("grandchild"), registry.case("child")
    assert (case.training.global_batch, below.training.global_batch) == (12, 24)
    assert case.model.layers == below.model.layers == 4
    assert case.model.hidden_size == registry.case("tiny").model.hidden_size


def test_a_circle_of_extensions_is_named(tmp_path: Path) -> None:
    registry = registry_with(tmp_path, one={"extends": "two"}, two={"extends": "three"}, three={"extends": "one"})
    with pytest.raises(DocumentError, match=rf"one\.yaml: .*\b{' -> '.join(('one', 'two', 'three', 'one'))}\b"):
        registry.case("one")


# ---- cases that only rows of a suite train


def suite_with(folder: Path, *cases: dict[str, Any]) -> Registry:
    """The tests' plugins and a suite of the test's own."""
    place = folder / "configs" / "suites"
    place.mkdir(parents=True)
    rows = [{key: value for key, value in {**CHILD, **case}.items() if key != "schema"} for case in cases]
    suite = {"schema": "levelfield.suite/1", "title": "rows", "entries": [{"case": "child:torch"}], "cases": rows}
    (place / "rows.yaml").write_text(yaml.safe_dump(suite))
    return Registry([PLUGINS, folder])


def test_a_case_of_a_suite_is_the_case_that_its_own_file_would_give(tmp_path: Path) -> None:
    of_file, registry = child(tmp_path / "file"), suite_with(tmp_path / "suite", {})
    assert registry.case("child") == of_file and registry.case("CHILD").fingerprint() == of_file.fingerprint()
    assert registry.case("child+batch8").training.global_batch == 8
    assert "child" in registry.all_cases and "child" not in registry.cases


def test_the_batches_of_reports_have_the_digests_that_results_hold() -> None:
    digests = {
        "gpt2_small_b8": "00e4b1ded030b",
        "oneflow_2304x24_b512": "5f4d3ad9dde51",
        "flagperf_llama3_8b_b1760": "e11b530ba6731",
    }
    registry = Registry()
    for name, digest in digests.items():
        assert registry.case(name).fingerprint().startswith(f"sha256:{digest}"), name


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([{"extends": "tiney"}], "rows.yaml: key 'extends': unknown case 'tiney'; nearest: tiny"),
        ([{"changes": {"model": {"layer": 3}}}], "rows.yaml: changes to tiny: key 'model.layer': unknown key"),
        ([{"changes": {"modle": {}}}], "rows.yaml: key 'cases.0': changes: unknown key ['modle']"),
        ([{}, {}], "rows.yaml: document: cases: found the name 'child' twice; expected one case of each name"),
        ([{}, {"name": "tiny", "extends": "llama3_8b"}], "two files claim the case 'tiny': "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_case_of_a_suite_names_the_suite(
    tmp_path: Path, cases: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        suite_with(tmp_path, *cases).case("child")
    assert message in str(refusal.value) and str(tmp_path / "configs/suites/rows.yaml") in str(refusal.value)


def test_cases_that_people_mean_are_listed_and_those_of_rows_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "cases"]) == 0
    lines = capsys.readouterr().out.splitlines()
    registry = Registry()
    assert len(lines) == 1 + len(registry.cases) + 1 and all(len(line) <= 80 for line in lines)
    suites = sorted(name for name in registry.suites if registry.suite(name).cases)
    assert lines[-1].split()[1] == str(len(registry.all_cases) - len(registry.cases))
    assert lines[-1].endswith(": " + ", ".join(suites))
    assert [line.split()[0] for line in lines if "no reference" in line] == ["deepseek_v3"]
    assert main(["show", "cases", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["cases"]}
    assert (
        set(rows) == set(registry.all_cases)
        and rows["gpt2_small_b64"]["suite"] == "osdi_gpt2"
        and rows["gpt2_small"]["suite"] is None
    )
