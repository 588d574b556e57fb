"""Names of cases in the spellings of other documents, and rows of reports by their names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import UnknownName, UsageError
from plans import ROOT, make_plan

REGISTRY = Registry()


@pytest.mark.parametrize(
    ("written", "name"),
    [("GPT3-6.7B", "gpt3_6.7B"), ("gpt-2 small", "gpt2_small"), ("gpt3_13B", "gpt3_13B")],
)
def test_a_spelling_of_another_document_is_the_case(written: str, name: str) -> None:
    assert REGISTRY.case(written) == REGISTRY.case(name)
    assert REGISTRY.case(f"{written}+steps20").name == f"{name}+steps20"


def test_the_plan_has_the_case_s_own_name_and_what_was_written() -> None:
    plan = make_plan(REGISTRY, "gpt3-13B:torch:cpu", scale="smoke")
    assert (plan.case, plan.asked) == ("gpt3_13B", "gpt3-13B:torch:cpu")
    assert plan.work_digest == make_plan(REGISTRY, "gpt3_13B:torch:cpu", scale="smoke").work_digest


@pytest.mark.parametrize("name", ["gpt3_13", "gpt3.13B", "gpt_13B", "llama3_80b", ""])
def test_another_name_stays_unknown(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown case"):
        REGISTRY.case(name)


def test_a_file_in_place_of_a_name_is_told_how_files_are_given() -> None:
    with pytest.raises(UnknownName, match=r"--case-file mine/own\.yaml,.*'own'"):
        REGISTRY.case("mine/own.yaml")


def test_no_two_shipped_cases_differ_in_spelling_only() -> None:
    assert [REGISTRY.canonical_case(name.upper().replace("_", "-")) for name in REGISTRY.all_cases] == list(
        REGISTRY.all_cases
    )


def test_a_spelling_of_two_cases_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "configs/cases"
    folder.mkdir(parents=True)
    for name in ("mine_a", "mine-a"):
        text = (ROOT / "configs/cases/gpt2_small.yaml").read_text(encoding="utf-8")
        (folder / f"{name}.yaml").write_text(text.replace("name: gpt2_small\n", f"name: {name}\n"), "utf-8")
    registry = Registry([tmp_path])
    assert registry.case("mine-a").name == "mine-a"
    with pytest.raises(UsageError, match=r"'MINE_A':.*\bmine-a.*\bmine_a\b"):
        registry.case("MINE_A")
    shutil.rmtree(tmp_path)


def test_the_row_of_a_report_says_how_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "2D_PP_2x8x2_512_2304x24:oneflow", "--dry-run"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--suite oneflow_gpt" in error
    assert '--entry "2D_PP_2x8x2_512_2304x24"' in error
