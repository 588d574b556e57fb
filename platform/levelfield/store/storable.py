"""Whether every database can hold a record. One that cannot is refused alone, and not with the batch that it is in."""

from __future__ import annotations

import re
from datetime import datetime

from levelfield.errors import DocumentError
from levelfield.specs.base import Document
from levelfield.specs.record import RunRecord
from levelfield.specs.result import PRETENDED

_MOST = 2**31  # PostgreSQL's whole numbers
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")  # in this form times sort as texts
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it; behind an even number of backslashes


def storable(record: RunRecord, origin: str) -> RunRecord:
    """Return the record. Raises DocumentError for a text, a number or a time that no database can hold or sort, and for
    a run on pretended devices, which no series may have."""
    if record.failure == PRETENDED:
        raise DocumentError(f"{origin}: found a run on pretended devices, expected real ones; no store takes it")
    check_texts(record, origin)
    return with_storable_numbers(record, origin)


def check_texts(document: Document, origin: str) -> None:
    """Raises DocumentError for a text that no database can hold."""
    try:
        text = document.model_dump_json()
    except ValueError:  # half of a pair of characters, which has no form in UTF-8
        raise DocumentError(f"{origin}: found a text that is not Unicode, expected whole characters") from None
    if _NUL.search(text):
        raise DocumentError(f"{origin}: found a NUL character in a text, expected none")


def with_storable_numbers(record: RunRecord, origin: str) -> RunRecord:
    """Return the record. Raises DocumentError for a number or a time, whose texts are known to be right."""
    series, window = record.series, record.window
    numbers = {name: getattr(series, name) for name in ("nodes", "devices", "micro_batch", "accumulation")}
    for name, value in {**numbers, "window": max(window, key=abs)}.items():
        if not abs(value) < _MOST:
            raise DocumentError(f"{origin}: key '{name}': found {value}, expected less than {_MOST:,}")
    if not _is_time(record.began):
        raise DocumentError(
            f"{origin}: key 'began': found '{record.began}', expected UTC such as 2026-11-22T03:04:05+00:00"
        )
    return record


def _is_time(text: str) -> bool:
    try:
        return bool(_UTC.fullmatch(text) and datetime.fromisoformat(text))
    except ValueError:
        return False
