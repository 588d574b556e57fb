"""`case check` names each value that a case's schema leaves open and no run can use, by its file and key."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from changed_documents import written
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.testing.case_checks import DEFAULT_HARDWARE, CaseSubject, check_case
from levelfield.testing.findings import CheckFinding
from plans import PLUGINS, make_plan

# The changes to the case `tiny`, whose global batch is 8, and the words of `case check` after the file.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tuning.smoke.micro_batch": 5}, "key 'tuning.smoke.micro_batch': found 5, expected a divisor of global_batch 8"),
    ({"tuning.full.micro_batch": 3}, "key 'tuning.full.micro_batch': found 3, expected a divisor of global_batch 8"),
    ({"tuning.full.micro_batch": 8, "tuning.full.layout": "DP2"},
     "key 'tuning.full.micro_batch': found 8, expected a divisor of global_batch 8 / 2 data-parallel ranks"),
    ({"tuning.smoke.layout": "DP3QX"}, "key 'tuning.smoke.layout': layout 'DP3QX' has an unknown notation; write"),
    ({"tuning.full.layout": "TP3"}, "key 'tuning.full.layout': found TP3, expected a layout that the work allows: "),
    ({"evidence.gradient_steps": [2, 1, 1]}, "key 'evidence.gradient_steps': found [2, 1, 1], expected [1, 2]: each"),
    ({"smoke.evidence.gradient_steps": [2, 1]},
     "key 'smoke.evidence.gradient_steps': found [2, 1], expected [1, 2]: each step once, in order"),
    ({"data.split": [0, 0, 100]}, "key 'data.split': found [0.0, 0.0, 100.0], expected three parts from 0 on"),
    ({"data.split": [90, -1, 11]}, "key 'data.split': found [90.0, -1.0, 11.0], expected three parts from 0 on"),
]  # fmt: skip


def values(registry: Registry, name: str) -> CheckFinding:
    return next(
        f for f in check_case(CaseSubject(registry, registry.case(name), DEFAULT_HARDWARE)) if f.check == "values"
    )


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_a_value_that_no_run_can_use_is_named_by_file_and_key(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, {"name": "case", **change})
    finding = values(Registry([PLUGINS], case_files=[path]), "case")
    assert finding.status == "fails"
    assert finding.says.startswith(f"{path}: {words}")
    assert finding.says.count(str(path)) == 1


def test_an_unreadable_layout_is_reported_once(tmp_path: Path) -> None:
    path = written(tmp_path, {"name": "case", "tuning.smoke.layout": "DP3QX"})
    registry = Registry([PLUGINS], case_files=[path])
    findings = list(check_case(CaseSubject(registry, registry.case("case"), DEFAULT_HARDWARE)))
    assert sum("DP3QX" in finding.says for finding in findings) == 1
    assert [finding.check for finding in findings if not finding.is_good] == ["values"]


def test_a_run_takes_the_nearest_micro_batch_in_place_of_one_that_does_not_divide(tmp_path: Path) -> None:
    path = written(tmp_path, {"name": "case", "tuning.smoke.micro_batch": 5})
    plan = make_plan(Registry([PLUGINS], case_files=[path]), "case:fake:F1:1:1", scale="smoke", may_lack_hardware=True)
    assert plan.tuning.micro_batch == 4
    assert re.search(r"\b5\b", plan.origins["micro_batch"])  # the value that was replaced


def test_an_extended_case_names_the_file_that_has_the_value(tmp_path: Path) -> None:
    base = written(tmp_path, {"name": "case", "tuning.smoke.micro_batch": 5, "evidence.gradient_steps": [1, 1]})
    child: dict[str, Any] = {"schema": "levelfield.case/1", "source": "tests"}
    child |= {"name": "child", "title": "A child", "extends": "case"}
    child |= {"changes": {"evidence": {"gradient_steps": [2, 1]}}, "tuning": {"full": {"micro_batch": 3}}}
    path = tmp_path / "child.yaml"
    path.write_text(yaml.safe_dump(child))
    says = values(Registry([PLUGINS], case_files=[base, path]), "child").says
    assert set(re.findall(r"(\S+): key '(\S+)': found (\[.*?\]|\d+)", says)) == {
        (str(path), "changes.evidence.gradient_steps", "[2, 1]"),
        (str(path), "tuning.full.micro_batch", "3"),
        (str(base), "tuning.smoke.micro_batch", "5"),
    }


@pytest.mark.parametrize("change", [{}, {"tuning.full.layout": "DP2TP2"}, {"evidence.gradient_steps": [1, 2]}])
def test_values_that_a_run_can_use_pass(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(tmp_path, {"name": "case", **change})
    assert values(Registry([PLUGINS], case_files=[path]), "case").status == "ok"


def test_a_smoke_scale_with_dropout_does_not_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = yaml.safe_load((PLUGINS / "configs/cases/tiny.yaml").read_text())
    content["name"] = "wrong"
    content["smoke"].setdefault("model", {})["hidden_dropout"] = 0.1
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(content))
    assert main(["case", "check", "wrong", "--case-file", str(path), "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert [c["check"] for c in report["checks"] if c["status"] == "fails"] == ["smoke"] and not report["passes"]
    assert main(["case", "check", "wrong", "--case-file", str(path), "--hardware", "eight"]) == 2
    assert "--hardware: found 'eight'" in capsys.readouterr().err


def test_every_shipped_case_has_sizes_and_values_that_a_run_can_use() -> None:
    registry = Registry()
    checks = ["digests", "parameters", "smoke", "values"]  # those that plan nothing
    for name in registry.all_cases:
        findings = list(islice(check_case(CaseSubject(registry, registry.case(name), DEFAULT_HARDWARE)), len(checks)))
        assert [finding.check for finding in findings] == checks
        assert [finding for finding in findings if not finding.is_good] == [], name


# A dense and a wide model, mixtures and a precision; the plans of the others are thorough.
PLANNED = ("deepseek_v3", "gpt2_small", "llama3_8b_fp8", "mixtral_8x7b")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in PLANNED else [pytest.mark.thorough]) for n in sorted(Registry().all_cases)],
)
def test_every_shipped_case_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this Python can import what 8 bits need is not asked: that takes seconds."""
    monkeypatch.setattr("levelfield.plan.environment.import_problems", lambda *_: ())
    registry = Registry()
    findings = check_case(CaseSubject(registry, registry.case(name), DEFAULT_HARDWARE))
    assert [finding for finding in findings if not finding.is_good] == []
