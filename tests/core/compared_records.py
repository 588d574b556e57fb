"""Records of runs for tests of comparisons: one valid, sealed run, and changes of it that stay consistent."""

from __future__ import annotations

import zlib
from typing import Any

from levelfield.specs.layout import Layout
from levelfield.specs.record import Conditions, Point, RunRecord, Series, Subject

STEPS, WINDOW_TOKENS = 20, 10_240
WORK, CORPUS = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def record(
    number: int = 1,
    rate: float = 1000.0,
    memory: float = 2.0**30,
    joules: float | None = 0.5,
    mfu: float = 0.4,
    loss: float = 2.5,
    **changes: Any,
) -> RunRecord:
    """Return a run; changes: fields of the record, of its series, conditions or subject, by their names."""
    parts = {cls: _taken(changes, cls) for cls in (Series, Conditions, Subject)}
    series = Series(**{**_SERIES, **parts[Series]})  # type: ignore[arg-type]
    plain = {
        "run_id": f"20261122T1000{number:02}Z_{series.case}_{series.framework}",
        "content": f"sha256:{number:064x}",
        "began": f"2026-11-22T10:00:{number:02}+00:00",
        "evidence": "sealed",
        "series": series,
        "conditions": Conditions(**{**_CONDITIONS, **parts[Conditions]}),  # type: ignore[arg-type]
        "subject": Subject(**{**_SUBJECT, **parts[Subject]}),  # type: ignore[arg-type]
        "node": "node-1",
        "word": "valid",
        "failure": None,
        "reason": None,
        "verdict": "aligned",
        "tokens_per_second_per_device": rate,
        "memory_bytes": memory,
        "joules_per_token": joules,
        "mfu": mfu,
        "loss_tail": loss,
        "window": (11, 30),
        "step_seconds": (0.5 + zlib.crc32(f"{number} {rate} {changes}".encode()) * 1e-12,) * 30,  # no two are alike
        "losses": (loss,) * 30,
        "telemetry": {},
        "result": _result(series.devices, rate, memory, joules, mfu, loss),
    }
    return RunRecord(**{**plain, **changes})  # type: ignore[arg-type]


def repeats(*rates: float, first: int = 1, **changes: Any) -> list[RunRecord]:
    """Return a run for each speed, of one series: the repeats of a command."""
    runs = [record(number, rate, **changes) for number, rate in enumerate(rates, start=first)]
    return [
        run.model_copy(update={"result": {**run.result, "repeat": number}}) for number, run in enumerate(runs, start=1)
    ]


def point(run: RunRecord, **changes: Any) -> Point:
    """Return a stored night of a run."""
    same = {name: getattr(run, name) for name in Point.model_fields if hasattr(run, name)}
    digests = {"conditions": run.conditions.fingerprint(), "subject": run.subject.fingerprint()}
    return Point(**{**same, **digests, **changes})


def _taken(changes: dict[str, Any], cls: type) -> dict[str, Any]:
    return {name: changes.pop(name) for name in [*changes] if name in cls.model_fields}  # type: ignore[attr-defined]


def _result(devices: int, rate: float, memory: float, joules: float | None, mfu: float, loss: float) -> dict[str, Any]:
    whole = rate * devices
    speed = {
        "tokens_per_second": whole,
        "tokens_per_second_per_device": rate,
        "wall_seconds": WINDOW_TOKENS / whole,
    }
    return {
        "throughput": speed,
        "utilisation": [{"kind": "MFU", "formula": "palm/1", "value": mfu, "peak_tflops": 100.0}],
        "memory": {name: {"value": memory, "reason": None} for name in ("device_used_peak", "process_peak")},
        "energy": {
            "joules_per_token": {"value": joules, "unit": "J/token", "reason": None if joules else "no reading"}
        },
        "loss": {"tail_mean": loss},
        "parameters": 1_000_000,
        "repeat": 1,
    }


_SERIES: dict[str, Any] = {
    "case": "gpt", "work": WORK, "corpus": CORPUS, "scale": "smoke", "framework": "torch", "vendor": "acme",
    "chip": "X1", "device_is": "card", "nodes": 1, "devices": 1, "precision": "fp32", "layout": Layout(),
    "micro_batch": 8, "accumulation": 1, "virtual_pipeline": 1, "recompute": "none", "compile": False,
    "attention": "sdpa", "threads": None, "runtime": "process",
}  # fmt: skip
_CONDITIONS: dict[str, Any] = {
    "software": {"driver": "550"}, "kernel": "6.1", "os": "Debian 12", "processor": "EPYC", "cores": 64,
    "memory_gib": 512, "engine": None, "variables": {},
}  # fmt: skip
_SUBJECT: dict[str, Any] = {
    "framework_version": "2.13.0", "environment": "sha256:" + "3" * 64, "packages": None, "image": None,
    "implementation": "sha256:" + "4" * 64, "commit": "abc", "is_dirty": False, "platform_version": "0.1",
    "formulas": ("6n/1", "palm/1"),
}  # fmt: skip
