"""What the page of a run shows, for all runs of a month of a series in one data file."""

from __future__ import annotations

import marshal
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from levelfield.pages.series_history import DistinctValues
from levelfield.report import result_words
from levelfield.specs.record import RunRecord, Series
from levelfield.specs.run_figures import value_at
from levelfield.specs.variables import report_variables
from levelfield.specs.vendor import HOST_SHARE

# Of result.json, by the name that the page uses. Most runs of a series share these: each group of values is kept once.
_SHARED_FIELDS: dict[str, tuple[str, ...]] = {
    "reasons": ("status", "reasons"),
    "evidence_line": ("status", "evidence"),
    "parameters": ("parameters",),
    "active_parameters": ("active_parameters",),
    "planned": ("steps_planned",),
    "done": ("steps_done",),
    "flags": ("throughput", "step_seconds", "flags"),
    "disturbance_flags": ("disturbance", "flags"),
    "capacity": ("memory", "capacity_bytes"),
    "expected_bytes": ("memory", "expected_bytes"),
    "boundary": ("energy", "boundary"),
    "certificate": ("certificate",),
    "deviations": ("deviations",),
    "warnings": ("warnings",),
    "container_permissions": ("allowed",),
    "recomputed": ("repeated",),
    "attention_kernel": ("attention_kernel", "name"),
    "fp8_library": ("fp8_library", "name"),
}
# These differ from run to run.
_RUN_FIELDS: dict[str, tuple[str, ...]] = {
    "median": ("throughput", "step_seconds", "median"),
    "p90": ("throughput", "step_seconds", "p90"),
    "device_used": ("memory", "device_used_peak"),
    "reserved": ("memory", "reserved_peak"),
    "allocated": ("memory", "allocated_peak"),
    "process": ("memory", "process_peak"),
    "mean_watts": ("energy", "mean_watts"),
    "node_watts": ("energy", "nodes", "mean_watts"),
    "node_joules_per_token": ("energy", "nodes", "joules_per_token"),
    "other_joules_per_token": ("energy", "nodes", "other_joules_per_token"),
    "other_cores": ("other_use", "host_in_window"),
    "utilisation": ("utilisation",),
    "alignment": ("alignment",),
    "expert_imbalance": ("experts", "imbalance"),
    "expert_imbalance_last": ("experts", "imbalance_last"),
    "experts_never_chosen": ("experts", "never_chosen"),
    "auxiliary_first": ("experts", "auxiliary_first"),
    "auxiliary_last": ("experts", "auxiliary_last"),
}
_MILLION = 1e6  # step times and losses are whole millionths: half the bytes, and quicker to write and to read


def month_data(
    series: Series, records: Sequence[RunRecord], reference: tuple[str, list[float]] | None
) -> dict[str, Any]:
    """Return the runs with their curves, and what they share. reference: name and losses of the case's own one."""
    shared = DistinctValues()
    runs = [_run_data(record, shared) for record in records]
    return {
        "label": series.label,
        "series": {
            **series.model_dump(mode="json"),
            "layout": str(series.layout),
            "in_words": series.layout.sizes_text,
        },
        "is_host_share": series.device_is == HOST_SHARE,
        "command": rerun_command(series),
        "reference": {"name": reference[0], "losses": reference[1]} if reference else None,
        "shared": shared.values,
        "runs": runs,
    }


def _run_data(record: RunRecord, shared: DistinctValues) -> dict[str, Any]:
    """Return what the history of the series does not have already."""
    result_content = record.stored_result.content
    facts = _result_values(result_content, _SHARED_FIELDS)
    if isinstance(facts.get("flags"), list):
        facts["flags"] = [result_words.flag_in_words(str(flag)) for flag in facts["flags"]]
    inherited = value_at(result_content, "inherited")
    if isinstance(inherited, dict) and inherited:
        facts["inherited"] = report_variables({name: str(text) for name, text in inherited.items()})
        facts["inherited_others"] = len(inherited) - len(facts["inherited"])
    return {
        "run": record.run_id,
        "entry": record.entry,
        "content_digest": record.content,
        "evidence": record.evidence,
        "evidence_reason": record.evidence_reason,
        "failure": record.failure,
        "reason": record.reason,
        "window": record.window,
        "steps": [round(seconds * _MILLION) for seconds in record.step_seconds],
        "losses": [None if loss is None else round(loss * _MILLION) for loss in record.losses],
        "telemetry": record.telemetry,
        # bytes tell 1 from True; version 2 of marshal has no references
        "shared": shared.add(facts, marshal.dumps(facts, 2)),
        **({"traces": record.traces.model_dump(mode="json", exclude_defaults=True)} if record.traces else {}),
        **_result_values(result_content, _RUN_FIELDS),
    }


def _result_values(result: Any, paths: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return what the result has of these, by name."""
    values = {name: value_at(result, *path) for name, path in paths.items()}
    return {name: value for name, value in values.items() if value is not None and value != []}


def rerun_command(series: Series) -> str:
    """Return the command that starts the same training again, as a shell reads it."""
    target = (series.case, series.framework_label, series.chip, str(series.nodes), str(series.devices // series.nodes))
    words = ["python", "run_benchmarks.py", "--case", ":".join(target), "--scale", series.scale]
    words += series.options
    if series.runtime != "process":
        words += ["--runtime", series.runtime]
    return shlex.join(words)
