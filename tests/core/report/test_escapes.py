"""Escapes: a text reads the same and does nothing, in a terminal and in Markdown."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from levelfield.report.escapes import code_span, escape_markdown, markdown_table, printable
from levelfield.report.tables import csv_text

SOURCES = Path(__file__).resolve().parents[3] / "platform" / "levelfield"
MARKS = st.text(alphabet="|`[]()<>\\*_~#-+=&;!\n\r\t \x1b\x9b\u202e\u2066ab1", max_size=40)


def obeyed(text: str) -> list[str]:
    """The characters of a text that a terminal obeys, or that turn the direction of what follows."""
    return [c for c in text if (unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t") or _turns(c)]


def _turns(char: str) -> bool:
    return unicodedata.bidirectional(char) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


@given(st.text())
@example("\x1b]0;title\x07\x1b[2J\x9b31m\r\u202eabc\u2066\u2028\ud800\U000e0041")
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    assert obeyed(printable(text)) == [] and obeyed(escape_markdown(text)) == [] and obeyed(code_span(text)) == []


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
@example("\x7f\x9b\u202e \U000e0041 \\u202e")
def test_json_stays_the_same_json(text: str) -> None:
    """What follows a backslash of JSON is never taken apart."""
    assert json.loads(printable(json.dumps([text], ensure_ascii=False))) == [text]


@pytest.mark.parametrize("text", ["plain", "größe 数字 №5", "a\tb\nc", "e\u0301", "👍🏽"])
def test_a_usual_text_stays(text: str) -> None:
    assert printable(text) == text


@given(MARKS)
def test_a_cell_ends_only_at_its_own_bar(text: str) -> None:
    *_, row = markdown_table(("a", "b"), [(text, "end")])
    assert "\n" not in row and len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3


@given(MARKS)
@example("<script>alert(1)</script>")
@example("[x](javascript:x)")
@example("![x][y]")
@example("`` `")
@example("# heading")
@example("- item")
@example("~~~ fence")
def test_markdown_has_no_tag_link_code_or_heading(text: str) -> None:
    unescaped = re.sub(r"\\[\\`*_\[\]|#>=+~-]", "x", escape_markdown(text))
    assert not re.search(r"[<`\[\]|]", unescaped) and not re.match(r"\s*(#|>|=|~~~|[-+*]\s)", unescaped)


@given(MARKS)
def test_a_code_span_is_whole_or_plain_text(text: str) -> None:
    span = code_span(text)
    inner = span[1:-1] if len(span) > 2 and span[0] == span[-1] == "`" else None
    assert (inner is not None and not re.search("[`|<\n]", inner)) or span == escape_markdown(" ".join(text.split()))


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("gpt3_6.7B", "gpt3_6.7B"),
        ("17.23 * 2048 / 8", "17.23 * 2048 / 8"),
        ("1x8*80G", "1x8*80G"),
        ("-", "-"),
        ("-1.5", "-1.5"),
        ("x -> y", "x -> y"),
        ("a | b", r"a \| b"),
        ("**valid**", r"\*\*valid\*\*"),
        ("__init__.py", r"\_\_init\_\_.py"),
        ("|x| < 2 & y", r"\|x\| &lt; 2 &amp; y"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_figures_and_names_stay_readable(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped and escape_markdown(escape_markdown(text)) == escaped


def test_no_other_module_writes_a_markdown_table() -> None:
    """A table that is put together elsewhere could forget the escapes."""
    writes = [p.name for p in SOURCES.rglob("*.py") if re.search(r"-{3} ?\||f\"\| \{", p.read_text())]
    assert writes == ["escapes.py"]


def test_the_report_of_a_run_is_escaped_by_its_template_alone() -> None:
    """`{% autoescape %}`, `safe` or a second environment would let a text through."""
    template = (SOURCES / "report" / "run.md.j2").read_text()
    assert "safe" not in template and "autoescape" not in template
    assert (SOURCES / "report" / "one_run.py").read_text().count("finalize=escape_markdown") == 1


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "  =1", "\r=1"])
def test_no_cell_of_a_csv_is_a_formula(text: str) -> None:
    (row,) = list(csv.reader(io.StringIO(csv_text([{"a": text, "b": -1.5, "c": "a=1", "d": None}]), newline="")))[1:]
    assert row[0].startswith("'") and row[1:] == ["-1.5", "a=1", ""]
