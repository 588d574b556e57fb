"""What the page of a run shows, for all runs of a month of a series in one data file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.site.series_history import DistinctValues, rounded
from levelfield.specs.record import RunRecord, Series

# Of result.json, by the name that the page uses. Values that many runs share are kept once.
_FACTS: dict[str, tuple[str, ...]] = {
    "reasons": ("status", "reasons"),
    "evidence_line": ("status", "evidence"),
    "framework_version": ("framework_version",),
    "parameters": ("parameters",),
    "planned": ("steps_planned",),
    "done": ("steps_done",),
    "median": ("throughput", "step_seconds", "median"),
    "p90": ("throughput", "step_seconds", "p90"),
    "spread": ("throughput", "step_seconds", "spread"),
    "flags": ("throughput", "step_seconds", "flags"),
    "disturbance": ("disturbance", "flags"),
    "outliers": ("disturbance", "outliers"),
    "device_used": ("memory", "device_used_peak"),
    "reserved": ("memory", "reserved_peak"),
    "allocated": ("memory", "allocated_peak"),
    "process": ("memory", "process_peak"),
    "capacity": ("memory", "capacity_bytes"),
    "expected_bytes": ("memory", "expected_bytes"),
    "expectation": ("memory", "expectation"),
    "joules": ("energy", "joules"),
    "mean_watts": ("energy", "mean_watts"),
    "boundary": ("energy", "boundary"),
    "utilisation": ("utilisation",),
    "alignment": ("alignment",),
    "certificate": ("certificate",),
    "deviations": ("deviations",),
    "warnings": ("warnings",),
    "allowed": ("allowed",),
    "inherited": ("inherited",),
    "system": ("system",),
    "other_use": ("other_use",),
    "repeated": ("repeated",),
}
_STEP_DIGITS, _LOSS_DIGITS = 6, 6


def month_file(
    series: Series, records: Sequence[RunRecord], reference: tuple[str, list[float]] | None
) -> dict[str, Any]:
    """Return the runs with their curves, and what they share. reference: name and losses of the case's own one."""
    pool = DistinctValues()
    runs = [_run(record, pool) for record in records]
    return {
        "label": series.label,
        "series": {**series.model_dump(mode="json"), "layout": str(series.layout), "in_words": series.layout.in_words},
        "reference": {"name": reference[0], "losses": reference[1]} if reference else None,
        "pool": pool.values,
        "runs": runs,
    }


def _run(record: RunRecord, pool: DistinctValues) -> dict[str, Any]:
    facts = {name: _at(record.result, path) for name, path in _FACTS.items()}
    return {
        "run": record.run_id,
        "began": record.began,
        "purpose": record.purpose,
        "night": record.night,
        "entry": record.entry,
        "node": record.node,
        "content": record.content,
        "evidence": record.evidence,
        "evidence_reason": record.evidence_reason,
        "word": record.word,
        "failure": record.failure,
        "reason": record.reason,
        "verdict": record.verdict,
        "counts": record.is_comparable,
        "tokens": record.tokens_per_second_per_device,
        "mfu": record.mfu,
        "memory": record.memory_bytes,
        "energy": record.joules_per_token,
        "loss": record.loss_tail,
        "window": record.window,
        "steps": [rounded(each, _STEP_DIGITS) for each in record.step_seconds],
        "losses": [rounded(each, _LOSS_DIGITS) for each in record.losses],
        "telemetry": record.telemetry,
        "command": command(record),
        "facts": {name: _pooled(pool, value) for name, value in facts.items() if value not in (None, [], {})},
    }


def _pooled(pool: DistinctValues, value: Any) -> int:
    if isinstance(value, (str, int, float)):
        return pool.index((type(value).__name__, value), value)
    return pool.index(json.dumps(value, sort_keys=True), value)


def _at(content: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of result.json; None where a part of the path is absent."""
    for part in path:
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def command(record: RunRecord) -> str:
    """Return the command that starts the same training again, as a shell reads it."""
    series = record.series
    target = (series.case, series.framework, series.chip, str(series.nodes), str(series.devices // series.nodes))
    words = ["python", "run_benchmarks.py", "--case", ":".join(target), "--scale", series.scale]
    words += ["--layout", str(series.layout), "--micro-batch", str(series.micro_batch)]
    words += ["--recompute", series.recompute, "--attention", series.attention]
    words += ["--compile" if series.compile else "--no-compile"]
    if series.virtual_pipeline > 1:
        words += ["--virtual-pipeline", str(series.virtual_pipeline)]
    if series.threads is not None:
        words += ["--threads", str(series.threads)]
    if series.runtime != "process":
        words += ["--runtime", series.runtime]
    return shlex.join(words)
