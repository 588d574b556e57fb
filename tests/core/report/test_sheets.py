"""Sheets: text that never leaves 80 columns, Markdown without markup of others, and no lost word."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.explain.step_tables import step_sheets
from levelfield.report.sheets import Sheet, align_rows, format_markdown, format_text, labelled_line, pad_row
from levelfield.specs.step_parts import StepParts
from plans import ROOT

CELLS = st.text(max_size=120)


def lines(sheet: Sheet) -> list[str]:
    return format_text([sheet]).splitlines()


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=4), CELLS, st.lists(CELLS, max_size=2))
def test_every_line_fits(rows: list[tuple[str, ...]], heading: str, notes: list[str]) -> None:
    sheet = Sheet(heading, ("one", "two", "three", "four"), tuple(rows), tuple(notes))
    assert all(len(line) <= 80 for line in lines(sheet))


@given(st.lists(st.text("abc xyz", max_size=60), min_size=3, max_size=3))
def test_wrapping_loses_nothing(cells: list[str]) -> None:
    texts = lines(Sheet("", ("a", "b", "c"), (tuple(cells),)))[1:]
    for letter in "abcxyz":
        assert sum(line.count(letter) for line in texts) == "".join(cells).count(letter)


def test_columns_stand_below_their_headers() -> None:
    text = lines(Sheet("", ("name", "value"), (("a", "1.0"), ("longer", "2.0"))))
    assert text == ["name    value", "a       1.0", "longer  2.0"]


def test_a_step_has_no_column_that_is_empty() -> None:
    def first_lines(**more: object) -> list[list[str]]:
        time = {"mean": 9.0, **more.pop("time", {})}  # type: ignore[dict-item]
        overhead = {"plain_ms": time, "recorded_ms": time, "ratio": 0.0, "low": None, "high": None}
        of_run = {"run_id": "a", "framework": "torch", "profiler": "k", "device": "processor", "recorded_steps": 1}
        parts = [{"part": "mlp", "time": time, **more}]
        step = StepParts.model_validate({**of_run, "step": time, "overhead": overhead, "parts": parts, "ranks": []})
        table = list(step_sheets(step))[1]
        return [list(table.header), *map(list, table.rows)]

    assert first_lines() == [["part", "ms", "share"], ["mlp", "9.00", "100.0%"], ["step", "9.00", "100.0%"]]
    assert first_lines(time={"low": 8.0, "high": 10.0}, overlapped_ms=2.0) == [
        ["part", "ms", "95 %", "share", "overlapped"],
        ["mlp", "9.00", "±1.00", "100.0%", "2.00"],
        ["step", "9.00", "±1.00", "100.0%", ""],
    ]


@pytest.mark.parametrize(
    "hostile", ["\x1b[31mred", "a\nb", "\u202eabc", "<img src=x>", "a|b", "`code`", "[x](http://y)"]
)
def test_foreign_text_is_harmless(hostile: str) -> None:
    sheet = Sheet(hostile, ("cell",), ((hostile,),), (hostile,))
    text, markdown = format_text([sheet]), format_markdown([sheet])
    assert "\x1b" not in text + markdown and "\u202e" not in text + markdown and "<img" not in markdown
    assert len(text.splitlines()) == 4 and sum("|" in line for line in markdown.splitlines()) >= 3
    assert "\\|" in markdown if "|" in hostile else True
    assert "[x](" not in markdown


def test_markdown_is_a_heading_a_table_and_notes() -> None:
    text = format_markdown([Sheet("Speed", ("side", "ratio"), (("A", "1.0"),), ("a note",))])
    assert text.splitlines() == ["### Speed", "", "| side | ratio |", "|---|---|", "| A | 1.0 |", "", "a note"]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (pad_row(("a", 12, "b"), (3, -4)), "a      12  b"),
        (pad_row(("a", ""), (3, 4), " "), "a"),
        ("\n".join(align_rows([("a", "bb", "c"), ("aaa", "", "c")])), "a    bb  c\naaa      c"),
        ("\n".join(align_rows([("a", "1"), ("b", "22")], right_aligned=(1,))), "a   1\nb  22"),
        (labelled_line("long label", "text", 4), "long label text"),
        (labelled_line("", "text", 4), "    text"),
    ],
)
def test_columns_to_the_left_and_to_the_right(row: str, text: str) -> None:
    assert row == text


# What is no table: a chart, and a line that is drawn over the one before.
BY_HAND = {"report/sheets.py", "nights/series_history.py", "cli/terminal.py"}


def test_columns_are_padded_nowhere_else() -> None:
    folder = ROOT / "platform" / "levelfield"
    pads = re.compile(r"\.[lr]just\(|:[<>](?:\{|\d)")
    padding = {str(path.relative_to(folder)) for path in folder.rglob("*.py") if pads.search(path.read_text())}
    assert {name for name in padding if not name.startswith("worker/")} == BY_HAND


def test_a_column_without_a_word_takes_no_part_in_wrapping() -> None:
    """A table that is too wide, whose last column is empty in every row."""
    texts = lines(Sheet("", ("part", ""), (("x" * 30 + " " + "y" * 90, ""),)))
    assert "".join(texts).count("y") == 90
