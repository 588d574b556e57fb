"""Foreign text made harmless, with one function for each output: the terminal, Markdown, XML and spreadsheets.

A vendor's tool, a log, a lock file or a name may hold anything. Streams of the command line call `printable` for every
text, and Markdown is only written by `table`, `markdown` and the template of report.md, so no caller can forget it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What a terminal obeys instead of showing it: C0 (without tab and line feed), DEL and C1; marks that change the
# direction of text; invisible characters, and separators of lines; surrogates, which no file can hold.
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
# A star or an underscore within a word, or a star between blanks, is no emphasis: 2 * 8*80G, on_time.
_MARKUP = re.compile(r"[\\`\[\]|]|(?<![^\W_])_|_(?![^\W_])|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)")
# Characters that make an XML 1.0 document unreadable, and those that a terminal obeys.
_NOT_IN_XML = re.compile(f"{_CONTROL_CHARACTERS.pattern}|[\ufffe\uffff]")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_MARKUP_AT_START = re.compile(
    r"^(\s*)(?=[#>=]|[-+*][\s-]|~~~)"
)  # a heading, a quotation, an underline, an item, a fence


class Markdown(str):
    """Text that is Markdown already, and is not escaped again."""

    __slots__ = ()


def printable(text: str) -> str:
    """Return the text with `\\u001b` in place of an escape character, and so on. JSON stays the same JSON."""
    for character in set(_CONTROL_CHARACTERS.findall(text)):
        units = character.encode("utf-16-be", "surrogatepass")
        text = text.replace(character, "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)))
    return text


def spreadsheet_cell(value: object) -> object:
    """Return the cell of a CSV file. A text that a spreadsheet would take for a formula gets a quote in front.

    Numbers stay numbers, also negative ones.
    """
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.lstrip(" ").startswith(_FORMULA_STARTS) else printable(value)


def one_line(text: str) -> str:
    """Return the text with single blanks for all white space, so that it cannot begin a line of its own."""
    return " ".join(text.split())


def escape_markdown(value: object) -> Markdown:
    """Return one line of Markdown that shows the value's text as it is: no markup, link, HTML or end of a cell."""
    if isinstance(value, Markdown):
        return value
    line = printable(re.sub(r"\s+", " ", str(value))).replace("&", "&amp;").replace("<", "&lt;")
    return Markdown(_MARKUP_AT_START.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", line)))


def code_span(text: str) -> Markdown:
    """Return the text as a code span. A text that could end the span or the cell, or is like a tag, is plain text."""
    line = printable(one_line(text))
    return Markdown(f"`{line}`") if line and not re.search("[`|<]", line) else escape_markdown(one_line(text))


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]], rule: str = "---") -> list[str]:
    """Return the lines of a Markdown table. Every cell is escaped; the header is the platform's own text."""
    names = list(header)
    cells = [[escape_markdown(text).strip() for text in row] for row in rows]
    first, *others = [f"| {' | '.join(row)} |" for row in [names, *cells]]
    return [first, f"|{f'{rule}|' * len(names)}", *others]


def xml_text(text: str) -> str:
    """Return text that an XML 1.0 document can hold: without control characters. The writer escapes markup."""
    return _NOT_IN_XML.sub("", text)
