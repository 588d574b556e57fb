"""Records as rows for spreadsheets and programs: figures and what they belong to, without steps and losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.specs.record import RunRecord

_FIRST = ("run_id", "began", "purpose", "night", "entry", "evidence", "word", "failure", "reason", "verdict")
_FIGURES = ("tokens_per_second_per_device", "memory_bytes", "joules_per_token", "mfu", "loss_tail")
_SERIES = (
    *("case", "scale", "framework", "vendor", "chip", "device_is", "nodes", "devices", "precision", "layout"),
    *("micro_batch", "accumulation", "virtual_pipeline", "recompute", "compile", "attention", "threads", "runtime"),
)
_SUBJECT = ("framework_version", "commit", "is_dirty", "platform_version")


def row_of(record: RunRecord) -> Mapping[str, Any]:
    """Return one row: raw numbers, and an empty cell for what is not known."""
    found = {
        **{name: getattr(record, name) for name in (*_FIRST, *_FIGURES)},
        **{name: getattr(record.series, name) for name in _SERIES},
        **{name: getattr(record.subject, name) for name in _SUBJECT},
        "series": record.series.fingerprint(),
        "conditions": record.conditions.fingerprint(),
        "subject": record.subject.fingerprint(),
        "node": record.node,
        "formulas": " ".join(record.subject.formulas),
    }
    return {
        name: value if value is None or isinstance(value, (int, float)) else str(value) for name, value in found.items()
    }
