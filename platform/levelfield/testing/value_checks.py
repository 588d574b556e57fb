"""The check of values: each field of each device of the recordings, and which fields must not be null."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from levelfield.contracts.readings import LIMITS, MEMORY_TOLERANCE, empty_sample, used_memory_fault
from levelfield.contracts.tool_records import parse_output
from levelfield.report.sheets import align_rows
from levelfield.specs.tool import UNITS, ZERO_POINTS, FieldName, Tool, ValueLocation, field_units
from levelfield.testing.findings import CheckRow, Fails, Warns
from levelfield.testing.recordings import Recording, find_unexplained_null
from levelfield.testing.subject import VendorSubject

SAMPLE_FIELDS: dict[FieldName, str] = {
    "memory_used": "memory_used_bytes",
    "power": "power_watts",
    "energy": "energy_joules",
    "utilisation": "utilisation",
    "temperature": "temperature_celsius",
}
COMPARE_ADVICE = "compare its place and unit with the recording"
# The units as tools write them, each with its quantity and its unit in vendor.yaml.
STATED_UNITS: dict[str, tuple[str, str]] = {
    **{unit: (quantity, unit) for quantity, units in UNITS.items() for unit in units},
    **{"%": ("utilisation", "percent"), "KB": ("memory", "kB")},
    **dict.fromkeys(("C", "°C", "℃", "degC"), ("temperature", "celsius")),
    "K": ("temperature", "kelvin"),
}
MAX_SAME_UNIT_RATIO = 1.1  # sizes of units that are less apart are one: MB and MiB, which tools mix
# How words of a heading begin that are said of one quantity only.
QUANTITY_WORDS = {
    "power": ("power", "pwr", "watt"),
    "energy": ("energy",),
    "memory": ("mem", "vram", "hbm"),
    "utilisation": ("util", "busy"),
    "temperature": ("temp",),
}
MEMORY_PART_WORDS = {"memory_used": ("used", "usage", "use", "alloc"), "memory_total": ("total", "size", "capacity")}


def device_rows(subject: VendorSubject) -> tuple[CheckRow, ...]:
    """Return, for each device, every field that vendor.yaml declares or that adapter.py reads."""
    devices = subject.recorded_devices()
    samples = {sample.index: sample for sample in subject.replayed_adapter(subject.outputs).sample(devices)}
    missing_reason = "sample() returns none of this device"
    device_samples = [
        (device, samples.get(device.index) or empty_sample(device.index, missing_reason)) for device in devices
    ]
    values_by_device: dict[int, dict[FieldName, Any]] = {}
    for device, sample in device_samples:
        is_named = device.description != f"{subject.name} device {device.index}"
        values_by_device[device.index] = {
            "name": device.description if is_named else None,
            "identity": device.identity,
            "visible": None if device.unnumbered_reason else device.visible,
            "compute_units": device.compute_units,
            "memory_total": device.memory_bytes,
            **{field: getattr(sample, name) for field, name in SAMPLE_FIELDS.items()},
        }
    declared = _field_recordings(subject)
    fields = list(declared)
    if not fields:
        read_here: tuple[FieldName, ...] = ("memory_total", *SAMPLE_FIELDS)
        fields = [
            field for field in read_here if any(values[field] is not None for values in values_by_device.values())
        ]
    table = []
    for device, sample in device_samples:
        values: dict[str, Any] = {field: values_by_device[device.index][field] for field in fields}
        reasons: dict[str, str] = {}
        for field in (field for field in fields if values[field] is None):
            sampled = sample.reasons.get(SAMPLE_FIELDS[field]) if field in SAMPLE_FIELDS else None
            outside = None if field in SAMPLE_FIELDS else _null_reason(declared.get(field), device.index, field)
            reasons[field] = sampled or outside or "no reason"
        table.append(CheckRow(device.index, values, reasons))
    return tuple(table)


def _field_recordings(subject: VendorSubject) -> dict[FieldName, Recording]:
    """Return the recording of each field. The monitor wins over discovery."""
    tools = sorted((r for r in subject.required_recordings() if r.tool), key=lambda r: r.role == "monitor")
    return {field: r for r in tools if r.tool for field in r.tool.fields if field != "index"}


def _null_reason(recording: Recording | None, index: int, field: FieldName) -> str:
    """Return why a field outside the samples, such as memory_total, is null."""
    if recording is None or recording.tool is None:
        return "adapter.py gives none"
    parsed = parse_output(recording.tool, recording.text)
    if index not in parsed.records:
        return parsed.missing_record_reason(index)
    record = parsed.records[index]
    text = record.texts.values.get(field)
    if text is None:
        return record.texts.problems.get(field, "the record does not say")
    if not field_units(field):
        return f"the tool says '{text}'"
    try:
        return f"found {record.quantity(field):g}"
    except ValueError as error:
        return str(error)


def check_field_values(subject: VendorSubject) -> str:
    """Check that each declared field is read on every device that shows it, and that nulls have reasons."""
    table, declared = device_rows(subject), _field_recordings(subject)
    if blank := find_unexplained_null(
        list(subject.replayed_adapter(subject.outputs).sample(subject.recorded_devices()))
    ):
        raise Fails(blank, "give a reason in Sample.reasons")
    tools = [(r.role, r.tool) for r in subject.required_recordings() if r.tool]
    _check_places(tools)
    _check_units(tools, _unit_of_heading)
    for field, recording in declared.items():
        if table and all(row.values[field] is None for row in table):
            reasons = "; ".join(list(dict.fromkeys(row.reasons[field] for row in table))[:2])
            raise Fails(
                f"{recording.role}.fields.{field} is read on no device: {reasons}{_fitting_unit(recording, field)}",
                f"{COMPARE_ADVICE}; record a device that has it, or leave it out",
            )
    _check_memory(subject, declared.get("memory_total"))
    _check_units(tools, lambda where: where.printed)
    _check_used(subject, table)
    # a field is null on a device only where the record shows no value; 0 W: some tools print it for none
    absent = re.compile("(the tool says|found nothing at|found 0, expected)|the record does not say$")
    read = {field for row in table for field in declared if row.values[field] is not None}
    for row in table:
        if lost_fields := [
            f for f in declared if f in read and row.values[f] is None and not absent.match(row.reasons[f])
        ]:
            raise Fails(
                f"device {row.device}: {', '.join(lost_fields)}: null, where another device has a value: "
                f"{row.reasons[lost_fields[0]]}",
                f"{COMPARE_ADVICE} of this device; if it prints a word for a missing value, match the word too",
            )
    fields = sorted({f for row in table for f, value in row.values.items() if value is not None} - {"name", "identity"})
    if not fields:
        raise Fails("no device has any value", "compare vendor.yaml with the recording")
    if doubt := next(_heading_doubts(tools), None):
        raise Warns(doubt, "compare its place with the recording; if it is right, leave it")
    return f"read: {', '.join(fields)}"


def _check_places(tools: Sequence[tuple[str, Tool]]) -> None:
    """Check that no two fields of a tool are the same text."""
    for role, tool in tools:
        seen: dict[object, FieldName] = {}
        for field, where in tool.fields.items():
            place = where.column or where.path
            if place and (other := seen.setdefault((place, where.matching), field)) != field:
                raise Fails(
                    f"{role}.fields: {other} and {field} are read from one place, {_place_text(where)}",
                    "give each field its own place; for two values in one text, a `matching` for each",
                )


def _check_units(tools: Sequence[tuple[str, Tool]], unit_of: Callable[[ValueLocation], str]) -> None:
    """Check that the unit that the tool itself states is the field's, in `unit` and `scale`."""
    for role, tool in tools:
        for field, where in tool.fields.items():
            quantity, unit = STATED_UNITS.get(unit_of(where), ("", ""))
            if not quantity:
                continue
            if not field_units(field) or unit not in field_units(field):
                raise Fails(
                    f"{role}.fields.{field} is read from {_place_text(where)}, whose unit {unit_of(where)} is one of "
                    f"{quantity}",
                    COMPARE_ADVICE,
                )
            if not 1 / MAX_SAME_UNIT_RATIO < _unit_ratio(field, where, unit) < MAX_SAME_UNIT_RATIO:
                raise Fails(
                    f"{role}.fields.{field}: the tool's unit is {unit_of(where)} ({_place_text(where)}), and "
                    f"vendor.yaml has {_unit_text(where)}",
                    f"write unit: {unit}{', without scale' if where.scale else ''}; where the tool itself is wrong, "
                    "read the columns by their numbers, and name the reason in README.md",
                )


def _heading_doubts(tools: Sequence[tuple[str, Tool]]) -> Iterator[str]:
    """Return a sentence about each field whose heading speaks of something else, or whose unit is only nearly it."""
    for role, tool in tools:
        for field, where in tool.fields.items():
            place = f"{role}.fields.{field} is read from {_place_text(where)}, which speaks of"
            words = re.findall("[a-z]+", _place_text(where).lower())
            quantities = [q for q, begins in QUANTITY_WORDS.items() if any(word.startswith(begins) for word in words)]
            quantity = "memory" if field in MEMORY_PART_WORDS else field
            if quantities and quantity not in quantities and field in ("index", *SAMPLE_FIELDS, "memory_total"):
                yield f"{place} {' and '.join(quantities)}"
            parts = [
                part
                for word in words
                for part in (*MEMORY_PART_WORDS, "free")
                if word in MEMORY_PART_WORDS.get(part, (part,))
            ]
            if field in MEMORY_PART_WORDS and parts and parts[-1] != field:
                yield f"{place} {parts[-1]}"
            printed = _unit_of_heading(where) or where.printed
            is_checked = "memory_total" in tool.fields  # against the chip's memory, in the same tool
            if printed in STATED_UNITS and not is_checked and _unit_ratio(field, where, STATED_UNITS[printed][1]) != 1:
                yield f"{role}.fields.{field}: the tool's unit is {printed}, and vendor.yaml has {_unit_text(where)}"


def _place_text(where: ValueLocation) -> str:
    return f"column '{where.column}'" if where.column else f"path {list(where.path or ())}"


def _unit_of_heading(where: ValueLocation) -> str:
    """Return the text in brackets at the end of a column's name or of the last key; empty without one."""
    last = where.column or (where.path or ("",))[-1]
    match = re.search(r"[\[(] *([^\])]+?) *[\])]\s*$", last) if isinstance(last, str) else None
    return match[1] if match else ""


def _unit_text(where: ValueLocation) -> str:
    return f"unit: {where.unit}" + (f", scale: {where.scale:g}" if where.scale else "")


def _unit_ratio(field: FieldName, where: ValueLocation, unit: str) -> float:
    """Return how many of `unit` a number 1 of this field is in vendor.yaml; infinite for another zero point."""
    sizes = field_units(field)
    if ZERO_POINTS.get(where.unit or "") != ZERO_POINTS.get(unit):
        return math.inf
    return float(Decimal(sizes[where.unit or ""]) / Decimal(sizes[unit])) * (where.scale or 1)


def _check_memory(subject: VendorSubject, recording: Recording | None) -> None:
    """Check that the tool's memory of a device equals the memory of its chip in vendor.yaml."""
    sizes = {chip.name: chip.memory_bytes for chip in subject.spec.chips}
    for device in subject.recorded_devices():
        right, actual = sizes.get(device.chip or ""), device.memory_bytes
        if not (right and actual and abs(actual / right - 1) > MEMORY_TOLERANCE):
            continue
        hint = ""  # the unit with which both would agree, if there is one
        if recording is not None and recording.tool is not None:
            unit, units = recording.tool.fields["memory_total"].unit or "", field_units("memory_total")
            gaps = {
                name: abs(float(Decimal(actual) * Decimal(size) / Decimal(units[unit]) / right) - 1)
                for name, size in units.items()
            }
            best = min(gaps, key=lambda name: gaps[name])
            if gaps[best] <= MEMORY_TOLERANCE:
                hint = f"; with {best} in the place of {unit} they would agree"
        raise Fails(
            f"device {device.index}: the tool's memory_total is {actual} bytes, and memory_bytes of chip "
            f"{device.chip} is {right}: {abs(actual / right - 1):.1%} apart{hint}",
            "correct the place or unit of memory_total, or memory_bytes; if a device reserves a part (ECC), write "
            "the rest in memory_bytes, and the reason in memory_source",
        )


def _check_used(subject: VendorSubject, table: Sequence[CheckRow]) -> None:
    """Check that no device uses more than it has, nor all devices all to the last byte: two fields have one place."""
    for device, row in zip(subject.recorded_devices(), table, strict=True):
        used, chip = row.values.get("memory_used"), subject.spec.chip(device.chip) if device.chip else None
        if fault := used_memory_fault(device, chip, int(used) if isinstance(used, (int, float)) else None):
            raise Fails(f"device {device.index}: memory_used: {fault}", COMPARE_ADVICE)
    pairs = [(row.values.get("memory_used"), row.values.get("memory_total")) for row in table]
    pairs = [pair for pair in pairs if None not in pair]
    if pairs and all(used == total for used, total in pairs):
        raise Fails(
            f"memory_used equals memory_total on every device ({pairs[0][0]} bytes on the first)",
            "compare the places of both fields with the recording; if the devices were full, record others",
        )


def _fitting_unit(recording: Recording, field: FieldName) -> str:
    """Return a hint with the only unit with which the field's numbers are within their limits, if there is one."""
    tool = recording.tool
    if tool is None or field not in SAMPLE_FIELDS:
        return ""
    where, (least, most) = tool.fields[field], LIMITS[SAMPLE_FIELDS[field]]
    fitting = []
    for unit in field_units(field):
        fields = {**tool.fields, field: where.model_copy(update={"unit": unit})}
        values = []
        for record in parse_output(tool.model_copy(update={"fields": fields}), recording.text).records.values():
            with suppress(ValueError):
                values.append(record.quantity(field))
        if values and all(least <= value <= most for value in values):
            fitting.append(unit)
    return f"; with {fitting[0]} in the place of {where.unit} it would fit" if len(fitting) == 1 else ""


def reading_lines(table: Sequence[CheckRow]) -> Iterator[str]:
    """Return a table of the quantities, one line per device, and then the reasons for nulls."""
    if not table:
        return
    fields = [field for field in TABLE_COLUMNS if field in table[0].values]
    lines = [["device", *(TABLE_COLUMNS[field][0] for field in fields)]]
    for row in table:
        values = ((row.values[field], TABLE_COLUMNS[field][1]) for field in fields)
        cells = ("null" if value is None else f"{float(value) / unit:.8g}" for value, unit in values)
        lines.append([str(row.device), *cells])
    yield from align_rows(lines, right_aligned=range(len(fields) + 1))
    nulls = dict.fromkeys(null for row in table for null in row.reasons.items())
    for field, reason in nulls:
        which = ", ".join(str(row.device) for row in table if row.reasons.get(field) == reason)
        yield f"device {which}: {field} null ({reason})"


TABLE_COLUMNS = {
    "memory_total": ("total MiB", 2**20),
    "memory_used": ("used MiB", 2**20),
    "power": ("power W", 1),
    "energy": ("energy J", 1),
    "utilisation": ("load %", 0.01),
    "temperature": ("temp C", 1),
}
