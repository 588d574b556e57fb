"""Tables as text and as Markdown. Every column of the platform's text is padded here."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from levelfield.report.escapes import escape_markdown, markdown_table, one_line, printable
from levelfield.report.words import WIDTH, wrapped

COLUMN_GAP = "  "
LabelledText = tuple[str, str]
_SHELL_WORD = re.compile(r"(?:'[^']*'|[^\s'])+")
_MIN_WIDTH = 8  # of a cell when the table is too wide


@dataclass(frozen=True)
class Sheet:
    """One table. header empty: only heading and notes. Cells may hold anything; each output escapes them."""

    heading: str
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()  # what each is for, and a command line that can be pasted


def pad_row(cells: Iterable[object], widths: Iterable[int], gap: str = COLUMN_GAP) -> str:
    """Return one row. A width below zero puts its cell to the right; cells without a width follow as they are."""
    texts = [str(cell) for cell in cells]
    cells_and_widths = zip(texts, [*widths, *[0] * len(texts)], strict=False)
    return gap.join(
        cell.ljust(width) if width >= 0 else cell.rjust(-width) for cell, width in cells_and_widths
    ).rstrip()


def align_rows(rows: Sequence[Sequence[str]], right_aligned: Iterable[int] = ()) -> list[str]:
    """Return the rows with columns as wide as their widest cells. right_aligned: places of columns."""
    widths = column_widths(rows)
    for column in right_aligned:
        widths[column] *= -1
    return [pad_row(row, widths) for row in rows]


def entry_lines(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each entry: its `name` and what it `says`, cut where that is too long."""
    lines = align_rows([(f"  {entry['name']}", entry["says"]) for entry in entries])
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines] or ["  none"]


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def labelled_line(label: str, text: object, width: int) -> str:
    """Return a label and its text, which goes on below itself. An empty label goes on with the one above."""
    return wrapped(f"{label:<{width - 1}} {text}", width)


def format_text(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as text in WIDTH columns. Of a wider table the widest cells take several lines."""
    wrap_text = partial(textwrap.wrap, break_on_hyphens=False)  # a word that is longer than a line is broken
    tables = []
    for sheet in sheets:
        lines = wrap_text(printable(one_line(sheet.heading)), WIDTH, subsequent_indent="  ")
        texts = (sheet.header, *sheet.rows) if sheet.header else ()
        rows = [[printable(one_line(cell)) for cell in row] for row in texts]
        widths = column_widths(rows)
        while sum(widths) > WIDTH - len(COLUMN_GAP) * (len(widths) - 1) and max(widths) > _MIN_WIDTH:
            widths[widths.index(max(widths))] -= 1
        for row in rows:
            parts = [wrap_text(cell, max(1, width)) for cell, width in zip(row, widths, strict=True)]
            lines += [pad_row(line, widths) for line in zip_longest(*parts, fillvalue="")] or [""]
        for note in sheet.notes:
            lines += wrap_text(printable(one_line(note)), WIDTH, initial_indent="  ", subsequent_indent="    ")
        for purpose, command in sheet.commands:
            lines += wrap_text(printable(one_line(f"{purpose}:")), WIDTH, initial_indent="  ", subsequent_indent="    ")
            lines += [f"    {line}" for line in _shell_lines(printable(one_line(command)))]
        tables.append("\n".join(lines))
    return "\n\n".join(tables) + "\n"


def _shell_lines(command: str) -> list[str]:
    """Return a command line in lines that a shell joins again."""
    lines = [""]
    for word in _SHELL_WORD.findall(command):
        if lines[-1] and len(lines[-1]) + len(word) > WIDTH - 8:  # of 4 spaces before it, and a backslash
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines


def format_markdown(sheets: Iterable[Sheet]) -> str:
    """Return the sheets as Markdown, each with its heading."""
    parts = []
    for sheet in sheets:
        parts += [f"### {escape_markdown(sheet.heading)}", ""] if sheet.heading else []
        parts += [*markdown_table(sheet.header, sheet.rows), ""] if sheet.header else []
        parts += [line for note in sheet.notes for line in (escape_markdown(note), "")]
        for purpose, command in sheet.commands:
            lines = (f"    {line}" for line in _shell_lines(printable(one_line(command))))
            parts += [escape_markdown(f"{purpose}:"), "", *lines, ""]
    return "\n".join(parts)


def format_sheets(form: str, sheets: Iterable[Sheet]) -> str:
    """Return the sheets as Markdown where that is the form, else as text."""
    return format_markdown(sheets) if form == "markdown" else format_text(sheets)
