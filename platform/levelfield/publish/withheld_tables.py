"""Tables with withheld cells, in every format. Their input is results from which the figures were removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from levelfield.publish.withholding import WORD, Withheld, hidden, without
from levelfield.report.escapes import printable
from levelfield.report.tables import as_markdown, as_text, csv_text, plain
from levelfield.report.words import COLUMNS, NONE, utilisation
from levelfield.specs.result import Result

FILES = {"table": "table.txt", "markdown": "table.md", "csv": "table.csv", "json": "results.json"}
_COLUMN_OF: dict[Withheld, str] = {
    "mfu": "MFU (palm)",
    "peak": "peak",
    "throughput": "tokens/s/device",
    "energy": "J/token",
    "memory": "memory",
}
_CSV_NAMES: dict[Withheld, tuple[str, ...]] = {
    "mfu": ("mfu_", "hfu_"),
    "peak": ("peak_",),
    "throughput": ("tokens_per_second", "step_seconds"),
    "energy": ("joules",),
    "memory": ("device_used_peak", "process_peak", "memory_over_expected"),
}


def published(results: Sequence[Result], fields: Sequence[Withheld]) -> dict[str, str]:
    """Return the text of each format, by the format's name."""
    bare = [without(result, fields) for result in results]
    columns = _columns(fields)
    texts = {
        "table": as_text(bare, columns=columns),
        "markdown": as_markdown(bare, columns),
        "csv": csv_text([_csv_row(result, fields) for result in bare]),
        "json": _json(results, fields),
    }
    return {name: printable(text) for name, text in texts.items()}


def _columns(fields: Sequence[Withheld]) -> Mapping[str, Callable[[Result], str]]:
    return {**COLUMNS, "peak": _peak, **{_COLUMN_OF[field]: lambda result: WORD for field in fields}}


def _peak(result: Result) -> str:
    found = utilisation(result, "palm")
    return f"{found.peak_tflops:.4g} TFLOP/s" if found and found.peak_tflops else NONE


def _csv_row(result: Result, fields: Sequence[Withheld]) -> dict[str, object]:
    found = utilisation(result, "palm")
    peak = {"peak_tflops": found and found.peak_tflops, "peak_source": found and found.peak_source}
    withheld = tuple(prefix for field in fields for prefix in _CSV_NAMES[field])
    return {name: WORD if name.startswith(withheld) else value for name, value in (plain(result) | peak).items()}


def _json(results: Sequence[Result], fields: Sequence[Withheld]) -> str:
    rows = [
        {"schema": "levelfield.published/1", "withheld": list(fields), **hidden(result, fields, WORD)}
        for result in results
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
