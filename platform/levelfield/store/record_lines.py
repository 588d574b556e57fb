"""Records and statements as the lines of an export, in JSON, and records as rows of a table.

`store import` checks every line. A row has figures and what they belong to, without steps and losses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from levelfield.errors import DocumentError
from levelfield.node.regular_files import open_regular
from levelfield.rundir.event_lines import strict_json
from levelfield.specs.base import Document, Value, parse
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.record import Conditions, RunRecord, Series, StoreEvent, Subject
from levelfield.specs.run_figures import STORED_FIGURES
from levelfield.store.run_record import require_storable, require_storable_numbers, require_storable_texts
from levelfield.store.statements import StatedExpectation, StatedFinding, Statement

MAX_LINE_BYTES = 16 * 2**20  # the record of a run with 100,000 steps has 4 MB
_DOCUMENT_TYPES: dict[str, type[Document]] = {
    kind.schema_name(): kind for kind in (RunRecord, StoreEvent, StatedExpectation, StatedFinding)
}
_REPEATED_PARTS: dict[str, type[Value]] = {"series": Series, "conditions": Conditions, "subject": Subject}
_MAX_CACHED_BYTES = 20_000  # of JSON: a longer part is parsed anew in each line
LineDocument = RunRecord | Statement

_RUN_COLUMNS = ("run_id", "began", "purpose", "night", "entry", "evidence", "word", "failure", "reason", "verdict")
_SERIES_COLUMNS = (
    *("case", "scale", "framework", "vendor", "chip", "device_is", "nodes", "devices", "precision"),
    *(*FREE_FIELDS, "accumulation", "runtime"),
)
_SUBJECT_COLUMNS = ("framework_version", "commit", "is_dirty", "platform_version")


def format_line(document: Document) -> str:
    """Return a document as one line."""
    body = {"schema": document.schema_name(), **document.model_dump(mode="json")}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_lines(
    path: Path, report_error: Callable[[DocumentError], None], progress: Callable[[int, int], None]
) -> Iterator[LineDocument]:
    """Yield the documents of a file, with the bytes read so far to `progress`. A bad line's error goes to
    `report_error`.

    Raises DocumentError for a file that cannot be read.
    """
    try:
        with open_regular(path) as file:
            total_bytes, read_bytes, number = path.stat().st_size, 0, 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number, read_bytes = number + 1, read_bytes + len(line)
                progress(read_bytes, total_bytes)
                if len(line) > MAX_LINE_BYTES:
                    raise DocumentError(
                        f"{path} line {number}: found more than {MAX_LINE_BYTES:,} bytes, expected one record"
                    )
                try:
                    if line.strip():
                        yield parse_line(line, f"{path} line {number}")
                except DocumentError as error:
                    report_error(error)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None


def parse_line(line: bytes, origin: str) -> LineDocument:
    """Return the record or statement of a line. Raises DocumentError for anything else, also for NaN and double keys,
    and for a figure that differs from the one in the run's result."""
    try:
        content = strict_json(line)
    except ValueError as error:
        raise DocumentError(f"{origin}: not valid JSON: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise DocumentError(f"{origin}: found {type(content).__name__}, expected an object")
    kind = _DOCUMENT_TYPES.get(str(content.get("schema")))
    if kind is None:
        raise DocumentError(
            f"{origin}: key 'schema': found {content.get('schema')!r}, expected one of {', '.join(_DOCUMENT_TYPES)}"
        )
    repeated = _repeated_parts(content) if "result" in content else {}
    document: LineDocument = parse(kind, {**content, **repeated}, origin)  # type: ignore[assignment]
    if isinstance(document, RunRecord):
        try:
            document.stored_result.document  # noqa: B018
        except DocumentError as error:
            raise DocumentError(f"{origin}: {error}") from None
        for column in STORED_FIGURES:
            value, figure = content.get(column), getattr(document, column)
            if value is not None and not value == figure:
                raise DocumentError(f"{origin}: key '{column}': found {value!r}, expected {figure} as in its result")
        return (require_storable if b"\\u" in line else require_storable_numbers)(document, origin)
    require_storable_texts(document, origin)
    return document


def _repeated_parts(content: Mapping[str, Any]) -> dict[str, Value]:
    """Return the parsed series, conditions and subject, which most lines repeat, without the invalid ones."""
    values = {}
    for name, kind in _REPEATED_PARTS.items():
        text = to_json(content.get(name))
        if len(text) < _MAX_CACHED_BYTES:
            with suppress(ValueError):
                values[name] = _parse_part(kind, text)
    return values


@lru_cache(maxsize=1000)
def _parse_part(kind: type[Value], text: bytes) -> Value:
    return kind.model_validate(from_json(text))


def table_row(record: RunRecord) -> Mapping[str, Any]:
    """Return a record as one row of a table: raw numbers, and None for what is unknown."""
    cells = {
        **{name: getattr(record, name) for name in (*_RUN_COLUMNS, *STORED_FIGURES)},
        **{name: getattr(record.series, name) for name in _SERIES_COLUMNS},
        **{name: getattr(record.subject, name) for name in _SUBJECT_COLUMNS},
        "series": record.series.fingerprint(),
        "conditions": record.conditions.fingerprint(),
        "subject": record.subject.fingerprint(),
        "node": record.node,
        "formulas": " ".join(record.subject.formulas),
    }
    return {
        name: value if value is None or isinstance(value, (int, float)) else str(value) for name, value in cells.items()
    }
