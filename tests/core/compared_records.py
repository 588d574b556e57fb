"""Records of runs for tests of comparisons: one valid, sealed run, and changes of it that stay consistent."""

from __future__ import annotations

import zlib
from typing import Any

from levelfield.measure.flops import FormulaId, formula_version
from levelfield.specs.layout import Layout
from levelfield.specs.record import Conditions, Point, RunRecord, Series, StoredResult, Subject
from levelfield.specs.result import Result
from levelfield.specs.run_figures import HEADLINE_FORMULA

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
    series = Series(**{**_SERIES, **parts[Series]})
    plain = {
        "run_id": f"20261122T1000{number:02}Z_{series.case}_{series.framework}",
        "content": f"sha256:{number:064x}",
        "began": f"2026-11-22T10:00:{number:02}+00:00",
        "evidence": "sealed",
        "series": series,
        "conditions": Conditions(**{**_CONDITIONS, **parts[Conditions]}),
        "subject": Subject(**{**_SUBJECT, **parts[Subject]}),
        "node": "node-1",
        "word": "valid",
        "failure": None,
        "reason": None,
        "verdict": "aligned",
        "window": (11, 30),
        "step_seconds": (0.5 + zlib.crc32(f"{number} {rate} {changes}".encode()) * 1e-12,) * 30,  # no two are alike
        "losses": (loss,) * 30,
        "telemetry": {},
        "result": result_content(series, **_figures(series.devices, rate, memory, joules, mfu, loss)),
    }
    return RunRecord(**{**plain, **changes})


def with_result(run: RunRecord, **sections: Any) -> RunRecord:
    """Return the run with other sections of its result, and with the figures that it then has."""
    stored = StoredResult({**run.stored_result.content, **sections})
    fields = {name: getattr(run, name) for name in RunRecord.model_fields if name != "stored_result"}
    return RunRecord(**{**fields, "result": stored})


def repeats(*rates: float, first: int = 1, **changes: Any) -> list[RunRecord]:
    """Return a run for each speed, of one series: the repeats of a command."""
    runs = [record(number, rate, **changes) for number, rate in enumerate(rates, start=first)]
    return [with_result(run, repeat=number) for number, run in enumerate(runs, start=1)]


def point(run: RunRecord, **changes: Any) -> Point:
    """Return a stored night of a run."""
    same = {name: getattr(run, name) for name in Point.model_fields if hasattr(run, name)}
    digests = {"conditions": run.conditions.fingerprint(), "subject": run.subject.fingerprint()}
    return Point(**{**same, **digests, **changes})


def _taken(changes: dict[str, Any], cls: type) -> dict[str, Any]:
    return {name: changes.pop(name) for name in [*changes] if name in cls.model_fields}  # type: ignore[attr-defined]


def result_content(series: Series, **sections: Any) -> dict[str, Any]:
    """Return a whole result.json of a valid run. sections: its keys with other values."""
    values = series.model_dump(mode="json")
    return {
        "schema": Result.schema_name(),
        "run_id": "a run",
        **{name: values[name] for name in _OF_SERIES},
        "framework_version": "2.13.0",
        "parameters": 1_000_000,
        "repeat": 1,
        "status": {"word": "valid"},
        "steps_done": 30,
        "steps_planned": 30,
        "window": [11, 30],
        "identity": {"work": series.work, "corpus": series.corpus, "initial_weights": None, "tokens": None},
        "alignment": {"verdict": "aligned", "reason": "every layer within its limit"},
        "deviations": [],
        **sections,
    }


def figure(value: float | None, unit: str, reason: str | None = None) -> dict[str, Any]:
    return {"value": value, "unit": unit, "reason": reason}


def other_use(cores: float | None, host_cores: int | None, **device: bool | None) -> dict[str, Any]:
    """What others used. device: `in_use` of the one device, where there is one."""
    uses = [{"device": "0", "memory_used": figure(None, "B"), "load": None, **device}] if device else []
    return {
        **{"devices": uses, "host_before": figure(0.0, "cores"), "host_in_window": figure(cores, "cores")},
        "host_cores": host_cores,
    }


def time_to_loss(level: float, seconds: float | None) -> dict[str, Any]:
    return {
        **{"level": level, "source": None, "averaged_steps": 1, "step": None, "tokens": None, "seconds": seconds},
        **{"uncounted_steps": 0, "reason": "x"},
    }


def step_times(seconds: float, *flags: str) -> dict[str, Any]:
    times = dict.fromkeys(("median", "mean", "p90", "minimum", "maximum"), seconds)
    return {"steps": 20, **times, "spread": 0.01, "flags": flags, "unchecked": None}


def mfu_row(mfu: float | None, formula: FormulaId = HEADLINE_FORMULA, **changes: Any) -> dict[str, Any]:
    row = {
        **{
            "kind": "MFU",
            "formula": formula_version(formula),
            "value": mfu,
            "low": mfu,
            "high": mfu,
            "flops_per_token": None,
        },
        **{"achieved_tflops": None, "peak_tflops": 100.0, "peak_source": None, "reason": None},
    }
    return {**row, **changes}


def _figures(devices: int, rate: float, memory: float, joules: float | None, mfu: float, loss: float) -> dict[str, Any]:
    whole = rate * devices
    energy = figure(joules, "J/token", None if joules else "no reading")
    return {
        "throughput": {
            "tokens_per_second": whole,
            "tokens_per_second_per_device": rate,
            "wall_seconds": WINDOW_TOKENS / whole,
            "step_seconds": {**step_times(0.5), "unchecked": "not checked"},
        },
        "utilisation": [mfu_row(1.5 * mfu, "palm"), mfu_row(mfu)],  # no two formulas give one number
        "memory": {
            **{f"{name}_peak": figure(memory, "B") for name in ("device_used", "process", "allocated", "reserved")},
            **{"capacity_bytes": None, "expected_bytes": 1},
        },
        "energy": {"joules": energy, "joules_per_token": energy, "mean_watts": energy, "boundary": "chip"},
        "loss": {"first": None, "last": None, "tail_mean": loss, "floor": None},
    }


_OF_SERIES = (
    "case", "scale", "framework", "vendor", "chip", "device_is", "nodes", "devices", "precision", "layout",
    "micro_batch", "accumulation", "recompute", "compile",
)  # fmt: skip
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
    "formulas": ("6n/1", "megatron/1", "palm/1"),
}  # fmt: skip
