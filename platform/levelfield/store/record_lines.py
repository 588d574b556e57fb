"""Records and statements as the lines of an export: JSON, which `store import` reads without trust; rows of tables.

A row has figures and what they belong to, without steps and losses.
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
from levelfield.specs.run_figures import STORED
from levelfield.store.run_record import check_texts, storable, with_storable_numbers
from levelfield.store.statements import StatedExpectation, StatedFinding, Statement

MOST_BYTES = 16 * 2**20  # of one line; the record of a run with 100,000 steps has 4 MB
_KINDS: dict[str, type[Document]] = {
    kind.schema_name(): kind for kind in (RunRecord, StoreEvent, StatedExpectation, StatedFinding)
}
_AROUND: dict[str, type[Value]] = {"series": Series, "conditions": Conditions, "subject": Subject}
_LONGEST_AROUND = 20_000  # bytes of one that is remembered
Line = RunRecord | Statement

_FIRST = ("run_id", "began", "purpose", "night", "entry", "evidence", "word", "failure", "reason", "verdict")
_SERIES = (
    *("case", "scale", "framework", "vendor", "chip", "device_is", "nodes", "devices", "precision"),
    *(*FREE_FIELDS, "accumulation", "runtime"),
)
_SUBJECT = ("framework_version", "commit", "is_dirty", "platform_version")


def line_of(document: Document) -> str:
    """Return a document as one line."""
    body = {"schema": document.schema_name(), **document.model_dump(mode="json")}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_lines(
    path: Path, wrong: Callable[[DocumentError], None], progress: Callable[[int, int], None]
) -> Iterator[Line]:
    """Yield the documents of a file, with the bytes read so far to `progress`. The error of a bad line goes to `wrong`.

    Raises DocumentError for a file that cannot be read.
    """
    try:
        with open_regular(path) as file:
            whole, done, number = path.stat().st_size, 0, 0
            while line := file.readline(MOST_BYTES + 1):
                number, done = number + 1, done + len(line)
                progress(done, whole)
                if len(line) > MOST_BYTES:
                    raise DocumentError(
                        f"{path} line {number}: found more than {MOST_BYTES:,} bytes, expected one record"
                    )
                try:
                    if line.strip():
                        yield document_of(line, f"{path} line {number}")
                except DocumentError as error:
                    wrong(error)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None


def document_of(line: bytes, origin: str) -> Line:
    """Return the record or statement of a line. Raises DocumentError for anything else, also for NaN and double keys,
    and for a figure of a run that is another one in its result."""
    try:
        content = strict_json(line)
    except ValueError as error:
        raise DocumentError(f"{origin}: not valid JSON: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise DocumentError(f"{origin}: found {type(content).__name__}, expected an object")
    kind = _KINDS.get(str(content.get("schema")))
    if kind is None:
        raise DocumentError(
            f"{origin}: key 'schema': found {content.get('schema')!r}, expected one of {', '.join(_KINDS)}"
        )
    around = _surroundings(content) if "result" in content else {}
    document: Line = parse(kind, {**content, **around}, origin)  # type: ignore[assignment]
    if isinstance(document, RunRecord):
        try:
            document.stored_result.document  # noqa: B018
        except DocumentError as error:
            raise DocumentError(f"{origin}: {error}") from None
        for column in STORED:
            value, figure = content.get(column), getattr(document, column)
            if value is not None and not value == figure:
                raise DocumentError(f"{origin}: key '{column}': found {value!r}, expected {figure} as in its result")
        return (storable if b"\\u" in line else with_storable_numbers)(document, origin)
    check_texts(document, origin)
    return document


def _surroundings(content: Mapping[str, Any]) -> dict[str, Value]:
    """Return the series, conditions and subject, which come again with most lines. What is wrong is left out."""
    values = {}
    for name, kind in _AROUND.items():
        text = to_json(content.get(name))
        if len(text) < _LONGEST_AROUND:
            with suppress(ValueError):
                values[name] = _validated(kind, text)
    return values


@lru_cache(maxsize=1000)
def _validated(kind: type[Value], text: bytes) -> Value:
    return kind.model_validate(from_json(text))


def row_of(record: RunRecord) -> Mapping[str, Any]:
    """Return one row: raw numbers, and an empty cell for what is not known."""
    cells = {
        **{name: getattr(record, name) for name in (*_FIRST, *STORED)},
        **{name: getattr(record.series, name) for name in _SERIES},
        **{name: getattr(record.subject, name) for name in _SUBJECT},
        "series": record.series.fingerprint(),
        "conditions": record.conditions.fingerprint(),
        "subject": record.subject.fingerprint(),
        "node": record.node,
        "formulas": " ".join(record.subject.formulas),
    }
    return {
        name: value if value is None or isinstance(value, (int, float)) else str(value) for name, value in cells.items()
    }
