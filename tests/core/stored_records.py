"""Records for tests of a store: one real record of a run that was never trained, and changed copies of it."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from levelfield.run.runner import finish
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord, StoredResult
from levelfield.specs.run_figures import STORED_FIGURES, value_at
from levelfield.specs.vendor import HOST_SHARE
from levelfield.store.run_record import record_of

FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def real_record(folder: Path) -> RunRecord:
    """The record of a run directory, whose result is computed first."""
    finish(RunPaths(folder))
    return record_of(RunPaths(folder))


def changed(record: RunRecord, number: int, **change: Any) -> RunRecord:
    """A run of the same series, `number` nights later. Other fields as given; `series` as a change of its fields."""
    began = FIRST + timedelta(days=number)
    series = record.series.model_copy(update=change.pop("series", {}))
    identity = {"run_id": f"{began:%Y%m%dT%H%M%SZ}_tiny_fake_fake_{number:06x}", "content": f"sha256:{number:064x}"}
    rate = (record.tokens_per_second_per_device or 1.0) * (1 + number / 1000)
    figures = {"tokens_per_second_per_device": rate, **{c: change[c] for c in change.keys() & STORED_FIGURES.keys()}}
    stored = {"stored_result": with_figures(record, figures), "began": began.isoformat(), "series": series}
    return record.model_copy(update={**identity, **stored, **figures, **change})


def with_figures(record: RunRecord, figures: dict[str, float | None]) -> StoredResult:
    """The result of the record with other figures, by their columns."""
    content = copy.deepcopy(record.stored_result.content)
    for column, value in figures.items():
        figure = STORED_FIGURES[column]
        is_host = record.series.device_is == HOST_SHARE and figure.host_path
        *keys, last = figure.host_path if is_host else figure.path
        place = value_at(content, *keys)
        if isinstance(place, list):
            place = value_at(place, last)
        place, last = (place[last], "value") if isinstance(place.get(last), dict) else (place, last)
        place["value" if "formula" in place else last] = value
    if content["throughput"]:
        speed = content["throughput"]
        speed["tokens_per_second"] = (speed["tokens_per_second_per_device"] or 0) * record.series.devices
    return StoredResult(content)
