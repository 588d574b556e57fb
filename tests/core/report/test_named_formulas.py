"""Beside every printed MFU stands the name of its formula: two formulas give one run 51 % and 70 %."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from compared_records import record
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.compare.comparison import compare, comparison_sheets
from levelfield.compare.published_rows import format_figure_rows
from levelfield.compare.sides import side_of
from levelfield.judge.collector import collect
from levelfield.measure.flops import VERSIONS
from levelfield.pages.page_rendering import LANGUAGES, translate
from levelfield.publish.foreign_columns import format_report
from levelfield.publish.foreign_tables import exported_runs
from levelfield.report import repeats
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.sheets import format_text
from levelfield.report.tables import format_markdown as results_markdown
from levelfield.report.tables import format_text as results_text
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.run_figures import HEADLINE_FORMULA

FORMULA = re.compile("|".join(map(re.escape, VERSIONS)))


def unnamed(output: str) -> list[str]:
    """Return the lines that have an MFU and no formula."""
    return [line for line in output.splitlines() if "MFU" in line and not FORMULA.search(line)]


def outputs(run: RunPaths) -> Iterator[tuple[str, str]]:
    """Yield what prints an MFU, by where it stands."""
    result, plan = collect(run), read_plan(run)
    again = result.model_copy(update={"run_id": "again", "repeat": 2})
    yield "terminal", "\n".join(result_lines(result))
    yield "table", results_text([result, again])
    yield "wide table", results_text([result, again], width=10_000)
    yield "Markdown", results_markdown([result, again])
    yield "report.md", run_report(result, plan)
    yield "repeats", "\n".join(repeats.repeat_lines([result, again], ["one plan"] * 2))
    yield "repeats in Markdown", "\n".join(repeats.repeat_lines([result, again], ["one plan"] * 2, is_markdown=True))
    for form in ("table", "markdown"):
        yield f"published, {form}", format_figure_rows(form, [result], Registry())
    comparison = compare([side_of("A", [record(1)]), side_of("B", [record(2, mfu=0.5)])])
    yield "compare", format_text(comparison_sheets(comparison))


def test_every_printed_mfu_names_its_formula(run: RunPaths) -> None:
    for where, output in outputs(run):
        assert "MFU" in output and unnamed(output) == [], where


@pytest.mark.parametrize("language", LANGUAGES)
def test_pages_name_it_in_headings_links_and_sentences(language: str) -> None:
    for key in ("figure.mfu", "by.mfu", "how-roof", "published-lead", "guide.figures-text"):
        assert "MFU" in translate(language, key) and HEADLINE_FORMULA in translate(language, key), key
    assert HEADLINE_FORMULA in translate(language, "answer.mfu", best="X", other="Y", ratio="1.2")


def test_the_plan_names_it_in_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama3_8b", "--chip", "H100", "--devices", "8", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (heading,) = [line for line in lines if line.startswith("row ")]
    assert heading.endswith(f"MFU, {HEADLINE_FORMULA}") and max(map(len, lines)) <= 80


def test_columns_of_other_reports_have_their_formula_below(run: RunPaths) -> None:
    result, plan = collect(run), read_plan(run)
    llama = plan.work.model.model_copy(update={"family": "llama"})
    other = plan.model_copy(update={"work": plan.work.model_copy(update={"model": llama})})
    for foreign, used, column, formula in (
        ("flagperf", other, "MFU", "6n"),
        ("oneflow", plan, "Percentage of theoretical peak FLOP/s", "megatron-2021"),
    ):
        lines = format_report(foreign, exported_runs([result], [used], Registry())).splitlines()
        (note,) = [line.removeprefix(f"{column}: ") for line in lines if line.startswith(f"{column}: ")]
        words = note.split()
        assert words[words.index("by") + 1].rstrip(",.;") == formula, foreign
