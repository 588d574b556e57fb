"""The newest valid run of each series as github-action-benchmark reads it, with the tool `customBiggerIsBetter`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from levelfield.specs.record import RunRecord

_DIGITS = 8  # of a series' digest, where two series have the same label


def benchmark_json(records: Iterable[RunRecord]) -> str:
    """Return a JSON list with tokens/s per device by series. records: in the order of time."""
    newest = {r.series.fingerprint(): r for r in records if r.is_comparable and r.tokens_per_second_per_device}
    labels = Counter(record.series.label for record in newest.values())
    rows = [_row(record, digest, labels[record.series.label] > 1) for digest, record in newest.items()]
    return json.dumps(sorted(rows, key=lambda row: str(row["name"])), indent=2, ensure_ascii=False) + "\n"


def _row(record: RunRecord, digest: str, is_shared: bool) -> dict[str, object]:
    label = record.series.label
    return {
        "name": f"{label} ({digest.rpartition(':')[2][:_DIGITS]})" if is_shared else label,
        "unit": "tokens/s/device",
        "value": record.tokens_per_second_per_device,
        "extra": f"run {record.run_id}\nbegan {record.began}\nalignment {record.verdict}",
    }
