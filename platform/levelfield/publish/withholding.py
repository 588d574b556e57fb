"""The figures of each withheld field, the figures from which others could compute them, and results without them.

MFU = FLOPs per token x tokens/s per device / peak, and the case gives the FLOPs per token. So any two of the other
three give the third. Joules per token and watts give tokens/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from levelfield.errors import UnknownName, UsageError
from levelfield.report.escapes import printable
from levelfield.report.tables import as_markdown, as_text, csv_text, plain
from levelfield.report.words import COLUMNS, NONE, utilisation
from levelfield.specs.plan import Plan
from levelfield.specs.readable_json import json_text
from levelfield.specs.result import Result
from levelfield.specs.vendor import PeakDtype

Withheld = Literal["mfu", "peak", "throughput", "energy", "memory"]
WORD = "withheld"
FIELDS: tuple[Withheld, ...] = get_args(Withheld)
# The keys of a result that are published, and those that never are. A new key must be added to one of the two.
PUBLISHED = (
    "run_id", "case", "scale", "framework", "framework_version", "vendor", "chip", "device_is", "nodes", "devices",
    "precision", "layout", "micro_batch", "virtual_pipeline", "accumulation", "recompute", "repeated", "compile",
    "compile_seconds", "recompute_layers", "graph",
    "attention_kernel", "kernels", "fp8_library", "tuning",
    "parameters", "active_parameters", "repeat", "status", "steps_done", "steps_planned", "window", "loss", "experts",
    "throughput", "utilisation", "memory", "energy", "identity", "work_but_precision", "alignment", "certificate",
    "deviations", "runtime", "allowed",
)  # fmt: skip
# Free text of the suite's author; sentences of an engine or a tool; figures of the machine's other users, and the load
# of its devices; single step times with the power drawn in them, and how long ranks waited in them; the user's own
# variables; the machines and their software; digests of the raw files and of the machine, by which a guess of them
# could be checked; a prediction, which shows the peak; what a preflight measured; a time that shows the speed.
LEFT_OUT = (
    "entry", "warnings", "other_use", "load", "disturbance", "inherited", "system", "origin", "pace", "machines",
    "seal", "predicted_rate", "preflight", "to_loss",
)  # fmt: skip
# HFU is MFU times a number that the case gives, so `mfu` covers both. A reason may contain a peak or a ratio to it.
_UTILISATION: dict[Withheld, tuple[str, ...]] = {
    "mfu": ("value", "low", "high", "reason"),
    "peak": ("peak_tflops", "peak_source", "reason"),
    "throughput": ("achieved_tflops",),
}
# What is published all the same of a section that is withheld: a new figure of it is withheld by itself.
_STAYS: dict[Withheld, tuple[str, ...]] = {"energy": ("boundary",), "memory": ("capacity_bytes", "expected_bytes")}
# And of each utilisation and each row of the CSV, whatever is withheld.
STAYS_OF_UTILISATION = ("formula", "kind", "flops_per_token", "parameters")
STAYS_OF_CSV = (
    "run_id", "case", "scale", "framework", "framework_version", "vendor", "chip", "device_is", "nodes", "devices",
    "layout", "micro_batch", "virtual_pipeline", "precision", "tuning", "tuned", "status", "failure",
    "expected_memory_bytes", "loss_first", "loss_tail_mean", "loss_level", "tokens_to_loss", "expert_imbalance",
    "alignment",
)  # fmt: skip
_STARTED = re.compile(r"^\d{8}T\d{6}Z_")
_SAID: dict[Withheld, str] = {"mfu": "MFU", "peak": "the peak", "throughput": "tokens/s", "energy": "the energy"}

FILES = {"table": "table.txt", "markdown": "table.md", "csv": "table.csv", "json": "results.json"}
_COLUMN_OF: dict[Withheld, str] = {
    "mfu": "MFU (palm)",
    "peak": "peak",
    "throughput": "tokens/s/device",
    "energy": "J/token",
    "memory": "memory",
}
_CSV_NAMES: dict[Withheld, tuple[str, ...]] = {
    "mfu": ("mfu_", "hfu_"),
    "peak": ("peak_",),
    "throughput": ("tokens_per_second", "step_seconds", "seconds_to_loss"),
    "energy": ("joules",),
    "memory": ("device_used_peak", "process_peak", "memory_over_expected"),
}


# A reader who knows all of the second fields can compute the first.
LEAKS: tuple[tuple[Withheld, tuple[Withheld, ...]], ...] = (
    ("peak", ("mfu", "throughput")),
    ("mfu", ("peak", "throughput")),
    ("throughput", ("mfu", "peak")),
    ("throughput", ("energy",)),
)


def parse_fields(text: str) -> tuple[Withheld, ...]:
    """Read `mfu,peak` as fields, in the platform's order. Raises UnknownName or UsageError."""
    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in FIELDS:
            raise UnknownName("field", name, FIELDS, hint=f"--withhold takes {', '.join(FIELDS)}.")
    if not asked:
        raise UsageError(f"--withhold: found nothing, expected one or more of {', '.join(FIELDS)}, joined by commas")
    return tuple(field for field in FIELDS if field in asked)


def refuse_leaks(plan: Plan, result: Result, fields: Sequence[Withheld]) -> None:
    """Raise UsageError when a chosen field is public already, or follows from published figures that the run has."""
    used, public = _peak_dtypes(plan), _public_peaks(plan)
    chosen, where = f"--withhold {','.join(fields)}", f"{plan.run_id} on {plan.hardware.chip.name}"
    if "peak" in fields and used and used == public:
        sources = ", ".join(f"{d} ({plan.hardware.chip.peaks[d].source})" for d in sorted(public))
        raise UsageError(
            f"{chosen}: {where}: the peak is already public: {sources} is in the vendor's file. Withhold "
            "mfu, throughput and energy instead"
        )
    shown = {field for field in _measured(result) if field not in fields} | ({"peak"} if public else set())
    for field, through in LEAKS:
        if field in fields and set(through) <= shown:
            raise UsageError(f"{chosen}: {where}: {_explained(field, through, bool(public))}")


def _measured(result: Result) -> set[Withheld]:
    """Return the fields from which another one may follow and for which the run has a figure."""
    found: dict[Withheld, bool] = {
        "mfu": any(u.low is not None for u in result.utilisation),
        "peak": any(u.peak_tflops is not None for u in result.utilisation),
        "throughput": result.throughput is not None,
        "energy": result.energy.joules_per_token.value is not None,
    }
    return {field for field, there in found.items() if there}


def _explained(field: Withheld, through: Sequence[Withheld], peak_is_public: bool) -> str:
    known = [f"{_SAID[f]} (public)" if f == "peak" and peak_is_public else _SAID[f] for f in through]
    add = [f for f in through if f != "peak" or not peak_is_public]
    also = " and the FLOPs per token of the case" if "energy" not in through else ""
    return f"{_SAID[field]} follows from {', '.join(known)}{also}; withhold {' or '.join(add)} too"


def _peak_dtypes(plan: Plan) -> set[PeakDtype]:
    """Return the dtypes whose peaks utilisation refers to, as far as the chip has them."""
    precision, peaks = plan.work.training.precision, plan.hardware.chip.peaks
    sixteen: PeakDtype = "bf16" if "bf16" in peaks else "fp16"
    used: tuple[PeakDtype, ...] = (sixteen, "fp8") if precision == "fp8" else (precision,)
    return {dtype for dtype in used if dtype in peaks}


def _public_peaks(plan: Plan) -> set[PeakDtype]:
    """Return the dtypes whose peak is in vendor.yaml. Peaks of a private file and measured peaks are not public."""
    overlay = plan.hardware.overlay
    return {dtype for dtype in _peak_dtypes(plan) if not overlay or f"peaks.{dtype}" not in overlay.fields}


def hidden(result: Result, fields: Iterable[Withheld], word: str | None) -> dict[str, Any]:
    """Return the result's published content with `word` in every figure of the fields.

    Reasons and evidence of the status are removed too, because sentences and log lines may contain a figure.
    """
    fields = tuple(fields)
    row = {key: value for key, value in result.model_dump(mode="json").items() if key in PUBLISHED}
    row["run_id"] = published_id(result.run_id, fields)
    row["status"].update(reasons=[], evidence=None)
    for field in fields:
        if field == "throughput":
            row["throughput"] = word
        for each in row["utilisation"]:
            each.update(dict.fromkeys(_UTILISATION.get(field, ()), word))
        if field in _STAYS:
            row[field] = {k: v if k in _STAYS[field] else _covered(v, word) for k, v in row[field].items()}
    return row


def _covered(value: Any, word: str | None) -> Any:
    """Return a figure with the word as its value and its reason; the word for anything else, such as a ratio."""
    return {**value, "value": word, "reason": word} if isinstance(value, dict) and "value" in value else word


def published_id(run_id: str, fields: Sequence[Withheld]) -> str:
    """Return the run's id, without its start time if throughput is withheld: two start times show a run's duration."""
    return _STARTED.sub("", run_id) if "throughput" in fields else run_id


def without(result: Result, fields: Iterable[Withheld]) -> Result:
    """Return the result without the figures of the fields, so that no table can print them."""
    return Result.model_validate(hidden(result, fields, None))


def published(results: Sequence[Result], fields: Sequence[Withheld]) -> dict[str, str]:
    """Return the text of each format, by the format's name."""
    bare = [without(result, fields) for result in results]
    columns = {**COLUMNS, "peak": _peak, **{_COLUMN_OF[field]: lambda result: WORD for field in fields}}
    texts = {
        "table": as_text(bare, columns=columns),
        "markdown": as_markdown(bare, columns),
        "csv": csv_text([_csv_row(result, fields) for result in bare]),
        "json": _json(results, fields),
    }
    return {name: printable(text) for name, text in texts.items()}


def _peak(result: Result) -> str:
    found = utilisation(result, "palm")
    return f"{found.peak_tflops:.4g} TFLOP/s" if found and found.peak_tflops else NONE


def _csv_row(result: Result, fields: Sequence[Withheld]) -> dict[str, object]:
    found = utilisation(result, "palm")
    peak = {"peak_tflops": found and found.peak_tflops, "peak_source": found and found.peak_source}
    withheld = tuple(prefix for field in fields for prefix in _CSV_NAMES[field])
    return {name: WORD if name.startswith(withheld) else value for name, value in (plain(result) | peak).items()}


def _json(results: Sequence[Result], fields: Sequence[Withheld]) -> str:
    rows = [
        {"schema": "levelfield.published/1", "withheld": list(fields), **hidden(result, fields, WORD)}
        for result in results
    ]
    return json_text(rows) + "\n"
