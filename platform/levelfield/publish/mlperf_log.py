"""Runs as lines of MLPerf's logging format, `:::MLLOG {...}`, with the keys of its training rules.

It makes what reads such logs useful. It makes no run a submission: nothing is trained to a quality target here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from levelfield.specs.record import RunRecord

_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"


def mllog_lines(record: RunRecord) -> Iterator[str]:
    """Yield the lines of one run, each with its newline: what it is, every loss, its speed and how it ended."""
    began = datetime.fromisoformat(record.began).timestamp()
    series, sequences = record.series, _sequences_per_step(record)
    yield _line(began, _POINT, "submission_benchmark", series.case)
    yield _line(began, _POINT, "submission_platform", f"{series.nodes}x{series.devices // series.nodes} {series.chip}")
    yield _line(began, _POINT, "global_batch_size", sequences)
    yield _line(began, _POINT, "gradient_accumulation_steps", series.accumulation)
    yield _line(began, _START, "run_start", None, run_id=record.run_id)
    now = began
    for step, seconds in enumerate(record.step_seconds, 1):
        now += seconds
        if step <= len(record.losses) and record.losses[step - 1] is not None:
            yield _line(now, _POINT, "train_loss", record.losses[step - 1], samples_count=step * sequences)
    if record.tokens_per_second_per_device is not None:
        speed = {"throughput": record.tokens_per_second_per_device}
        yield _line(now, _POINT, "tracked_stats", speed, unit="tokens/s/device", window=list(record.window))
    status = "success" if record.word in ("valid", "unsealed") else "aborted"
    yield _line(now, _END, "run_stop", None, status=status, word=record.word)


def _sequences_per_step(record: RunRecord) -> int:
    series = record.series
    return series.micro_batch * series.accumulation * series.layout.data


def _line(seconds: float, kind: str, key: str, value: Any, **metadata: Any) -> str:
    content = {"namespace": "", "time_ms": round(1000 * seconds), "event_type": kind, "key": key, "value": value}
    # Every line names a place in a file; here it is this format's writer.
    place = {"file": "levelfield", "lineno": 0}
    return f":::MLLOG {json.dumps({**content, 'metadata': {**metadata, **place}})}\n"
