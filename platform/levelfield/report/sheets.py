"""A sheet: a heading, a table and notes, as text within 80 columns and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from levelfield.report.escapes import markdown, one_line, printable, table
from levelfield.report.words import WIDTH

_GAP = "  "
_LEAST = 8  # columns that a cell keeps when the table is too wide


@dataclass(frozen=True)
class Sheet:
    """One table. header empty: only heading and notes. Cells may hold anything; each output escapes them."""

    heading: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def as_text(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as text. A table that is too wide has its widest cells on several lines."""
    return "\n\n".join("\n".join(_lines(sheet)) for sheet in sheets) + "\n"


def as_markdown(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as Markdown, each with its heading."""
    parts = []
    for sheet in sheets:
        parts += [f"### {markdown(sheet.heading)}", ""] if sheet.heading else []
        parts += [*table(sheet.header, sheet.rows), ""] if sheet.header else []
        parts += [line for note in sheet.notes for line in (markdown(note), "")]
    return "\n".join(parts)


def _lines(sheet: Sheet) -> list[str]:
    heading = _filled(sheet.heading, "", "  ") if sheet.heading else []
    notes = [line for note in sheet.notes for line in _filled(note, "  ", "    ")]
    return [*heading, *(_rows([sheet.header, *sheet.rows]) if sheet.header else []), *notes]


def _filled(text: str, first: str, others: str) -> list[str]:
    """Return the lines of a sentence; a word that is longer than a line is broken."""
    fill = textwrap.TextWrapper(WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)
    return fill.wrap(_plain(text))


def _rows(rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[_plain(cell) for cell in row] for row in rows]
    widths = _widths([max(len(row[i]) for row in rows) for i in range(len(rows[0]))])
    return [line for row in rows for line in _row(row, widths)]


def _plain(text: str) -> str:
    return printable(one_line(text))


def _widths(widths: list[int]) -> list[int]:
    """Return widths that fit together: the widest columns become narrower, and their cells take several lines."""
    widths, room = list(widths), WIDTH - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row."""
    parts = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, parts))
    filled = [[*part, *[""] * (height - len(part))] for part in parts]
    return [
        _GAP.join(line.ljust(width) for line, width in zip(lines, widths, strict=True)).rstrip()
        for lines in zip(*filled, strict=True)
    ]
