"""Measured and published lines as text, Markdown and CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from levelfield.catalog.registry import Registry
from levelfield.publish.published_rows import FIGURES, FigureRow, beside, remarks
from levelfield.report.escapes import markdown, table
from levelfield.report.sheets import padded
from levelfield.report.tables import csv_text
from levelfield.report.words import gib, number, wrapped
from levelfield.specs.result import Result

_CONVENTION = (
    "Published rows are converted: tokens/s per device as in the run's own figures, MFU by palm/1 with the case's "
    "parameters and Levelfield's peak of the chip, memory of one device in GiB."
)
_INDENT = 11


def beside_published(form: str, results: Sequence[Result], registry: Registry) -> str:
    """Return the table in one of the platform's formats: table, markdown, csv or json."""
    lines = beside(results, registry)
    said = list(remarks(results, lines))
    writers = {
        "table": lambda: as_text(lines, said),
        "markdown": lambda: as_markdown(lines, said),
        "csv": lambda: as_csv(lines),
        "json": lambda: as_json(lines, said),
    }
    return writers[form]()


def as_text(lines: Sequence[FigureRow], said: Sequence[str]) -> str:
    """Return three lines per row and the reasons for absent figures, within 80 columns."""
    text = [wrapped(_CONVENTION, 0), ""]
    text += [wrapped(part, _INDENT) for line in lines for part in _parts(line)]
    return "\n".join([*text, *(wrapped(remark, 2) for remark in said)]) + "\n"


def _parts(line: FigureRow) -> Iterator[str]:
    blank = " " * _INDENT
    yield padded((line.origin, line.name), (_INDENT,), gap="")
    hardware = f"{line.framework} on {line.hardware}, {line.layout}, micro-batch {line.micro_batch}, {line.precision}"
    yield f"{blank}{hardware}{'' if line.status in ('published', 'valid') else f', {line.status}'}"
    tokens = f"{number(line.tokens_per_second_per_device)} tokens/s/device{_converted(line, line.tokens_from)}"
    if len(line.absent) < FIGURES:
        yield f"{blank}{tokens}, {gib(line.memory_bytes)}"
        yield f"{blank}MFU {line.mfu}{_converted(line, line.mfu_from)}"
    yield from (f"{blank}{reason}" for reason in _absent(line))


def _absent(line: FigureRow) -> list[str]:
    return line.absent if len(line.absent) < FIGURES else [f"no figures: {line.status}"]


def _converted(line: FigureRow, how: str) -> str:
    return (
        f" ({how.partition(':')[0]})" if line.origin == "published" and how.startswith(("converted", "printed")) else ""
    )


def as_markdown(lines: Sequence[FigureRow], said: Sequence[str]) -> str:
    """Return one table; below it the conversion rules and the reasons for absent figures."""
    names = ("", "row", "framework", "devices", "layout", "micro-batch", "precision", "status")
    figures = ("tokens/s/device", "MFU (palm)", "memory")
    rows = table((*names, *figures), map(_row, lines))
    absent = [f"{line.name}: {reason}" for line in lines for reason in _absent(line)]
    return "\n".join([*rows, "", _CONVENTION, "", *(f"- {markdown(text)}" for text in (*absent, *said))]) + "\n"


def _row(line: FigureRow) -> tuple[str, ...]:
    return (
        line.origin,
        line.name,
        line.framework,
        line.hardware,
        line.layout,
        str(line.micro_batch),
        line.precision,
        line.status,
        f"{number(line.tokens_per_second_per_device)}{_converted(line, line.tokens_from)}",
        f"{line.mfu}{_converted(line, line.mfu_from)}",
        gib(line.memory_bytes),
    )


def as_csv(lines: Sequence[FigureRow]) -> str:
    """Return raw numbers with units in their names, each with its origin."""
    return csv_text([asdict(line) for line in lines])


def as_json(lines: Sequence[FigureRow], said: Sequence[str]) -> str:
    rows = [asdict(line) for line in lines]
    return json.dumps({"rows": rows, "remarks": list(said)}, indent=2, ensure_ascii=False) + "\n"
