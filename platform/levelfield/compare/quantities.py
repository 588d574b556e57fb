"""The figures of a run that are compared, as the tables of repeats show them, with the reason where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import JsonValue

from levelfield.report.repeats import FIGURE_COLUMNS, FigureColumn
from levelfield.specs.record import RunRecord
from levelfield.specs.vendor import HOST_SHARE


@dataclass(frozen=True)
class Quantity:
    """One compared figure. origin: its value and reason in result.json. is_noisy: whether equal runs differ in it."""

    column: FigureColumn
    read: Callable[[RunRecord], float | None]
    origin: Callable[[RunRecord], tuple[JsonValue, JsonValue]]
    is_noisy: bool = True

    def missing(self, record: RunRecord) -> str:
        """Return why the run has no such figure."""
        value, reason = self.origin(record)
        why = value if isinstance(value, str) else reason  # a published result has the word `withheld` for a value
        return str(why) if why else "result.json has no reason"


def at(content: JsonValue, *keys: str) -> JsonValue:
    """Return the value behind the keys of nested mappings; None where a mapping or a key is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def palm(record: RunRecord) -> dict[str, JsonValue]:
    """Return the headline utilisation of result.json, with its formula and peak; empty without one."""
    rows = record.result.get("utilisation")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return next((r for r in found if r.get("kind") == "MFU" and str(r.get("formula")).startswith("palm/")), {})


def _rate(record: RunRecord) -> tuple[JsonValue, JsonValue]:
    found = record.result.get("throughput")
    return at(found, RATE.column.name) if isinstance(found, dict) else found, None


def _memory(record: RunRecord) -> tuple[JsonValue, JsonValue]:
    name = "process_peak" if record.series.device_is == HOST_SHARE else "device_used_peak"
    return at(record.result, "memory", name, "value"), at(record.result, "memory", name, "reason")


def _energy(record: RunRecord) -> tuple[JsonValue, JsonValue]:
    found = at(record.result, "energy", "joules_per_token")
    return at(found, "value"), at(found, "reason")


def _mfu(record: RunRecord) -> tuple[JsonValue, JsonValue]:
    return palm(record).get("value"), palm(record).get("reason")


RATE = Quantity(
    FIGURE_COLUMNS["tokens_per_second_per_device"], lambda record: record.tokens_per_second_per_device, _rate
)
QUANTITIES = (
    RATE,
    Quantity(FIGURE_COLUMNS["memory_bytes"], lambda record: record.memory_bytes, _memory),
    Quantity(FIGURE_COLUMNS["joules_per_token"], lambda record: record.joules_per_token, _energy),
    Quantity(FIGURE_COLUMNS["mfu_palm"], lambda record: record.mfu, _mfu),
    Quantity(
        FIGURE_COLUMNS["loss_tail_mean"],
        lambda record: record.loss_tail,
        lambda record: (at(record.result, "loss", "tail_mean"), None),
        is_noisy=False,
    ),
)
