"""Loss curves that others wrote: tables, logs of trainings and TensorBoard's event files, read as step -> loss.

The format is found in the content, not in the name of the file. Sources of the formats: those of foreign_logs.py, the
log history of transformers, TensorBoard's `Event` message.
"""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.errors import DocumentError
from levelfield.node.file_sizes import MAX_BYTES_BY_KIND
from levelfield.publish.foreign_logs import TOOLS, ForeignLog, LoggedStep, LogReading, parse_log
from levelfield.specs.bounded_reading import bounded_bytes

Points = Iterable[tuple[int, float | None]]  # None: a step that has no loss
STEP_NAMES = ("step", "steps", "iteration", "iter", "global_step", "global_steps")
NO_LOSS = ("", "-", "none", "null", "n/a", "na")  # what tables have in the cell of a loss that is none
LOSS_NAMES = ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "value")
EXPECTED = f"a table with a step and a loss, JSON, a log of {TOOLS}, or a TensorBoard event file"

# A record is its length (8 bytes), a checksum of it (4), the message and its checksum (4). Of `Event` these fields are
# read: 2 step, 5 summary; of a summary's value: 1 tag, 2 simple_value, 8 tensor (4 tensor_content, 5 float_val).
# The checksums are not verified. A record that was cut off ends the file, as it does while a training writes.
Field = tuple[int, int | bytes]
_HEADER = struct.Struct("<Q4x")
_FOOTER = 4
_FIRST_EVENT = b"brain.Event:"  # the version that every file begins with


class LossCurve(NamedTuple):
    """The loss by step: NaN where the file lists a step without its loss, None where the optimizer skipped it."""

    losses: dict[int, float | None]
    notes: tuple[str, ...] = ()  # what was left out of a log, and restarts


def read_curve(path: Path, tag: str | None = None) -> LossCurve:
    """Return the curve of a file.

    tag: the name of the scalar, or of the column, that holds the loss.
    Raises DocumentError for a file that cannot be read or holds no curve, and for one of two runs.
    """
    data = bounded_bytes(path, "curve")
    try:
        log: ForeignLog | None
        if _FIRST_EVENT in data[:64]:
            log = _log(scalars(data, tag or "loss"))
        else:
            text = data.decode("utf-8")
            if text.lstrip()[:1] in ("[", "{") and (value := _json(text)) is not None:
                log = _log(_value_points(value, tag))
            elif (log := parse_log(io.StringIO(text, newline=None))) is None:
                delimiter = "\t" if "\t" in text.split("\n", 1)[0] else ","
                csv.field_size_limit(MAX_BYTES_BY_KIND["curve"])  # the library's own is 131,072 characters
                rows = csv.DictReader(io.StringIO(text), delimiter=delimiter)
                log = _log(point for row in rows for point in _row_point(row, tag))
        if not (losses := log.losses):
            raise ValueError(f"found no loss, expected {EXPECTED}")
        return LossCurve(losses, log.notes)
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: found bytes that are no text, expected {EXPECTED}") from None
    except RecursionError:
        raise DocumentError(f"{path}: found lists nested too deep, expected {EXPECTED}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, csv.Error) as error:
        raise DocumentError(f"{path}: {error}") from None


def _log(points: Points) -> ForeignLog:
    """Return the points as a log, in which several lines may share a step and restarts repeat some."""
    reading = LogReading()
    for step, loss in points:
        reading.add_step("curve", LoggedStep(step, {} if loss is None else {"loss": loss}))
    steps = reading.steps.get("curve", {})
    return ForeignLog("curve", tuple(steps.values()), {}, tuple(reading.notes))


def _json(text: str) -> Any:
    """Return the value of a JSON text, or the list of those of JSON lines. None for another text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError:
        return None


def _value_points(content: Any, tag: str | None) -> Points:
    """Yield the points of {"1": loss}, [loss, ...], [[step, loss], ...], [[time, step, loss], ...] and objects."""
    if isinstance(content, dict):
        if (history := content.get("log_history")) is not None:
            tag = tag or "loss"  # its end has a `train_loss` too, the mean of all steps
            content = history
        else:
            content = [[int(step), loss] for step, loss in content.items()]
    for index, value in enumerate(content):
        if isinstance(value, dict):
            yield from _row_point(value, tag)
        else:
            step, loss = (value[-2], value[-1]) if isinstance(value, list) else (index + 1, value)
            yield int(step), _loss(step, loss)


def _row_point(row: Mapping[Any, Any], tag: str | None) -> Points:
    """Yield the point of a row, if it has a step. Names are compared without case; cells beyond the names have none."""
    cells = {name.strip().lower(): value for name, value in row.items() if isinstance(name, str)}
    fields = {name: value for name, value in cells.items() if not _is_empty(value)}
    step = next((fields[name] for name in STEP_NAMES if name in fields), None)
    losses = (tag.lower(),) if tag else LOSS_NAMES
    if step is not None:
        loss = next((fields[name] for name in losses if name in fields), None)
        yield int(_number(step, "the step")), _loss(step, loss)


def _loss(step: Any, value: Any) -> float | None:
    return None if _is_empty(value) else _number(value, f"at step {str(step)[:20]} the loss")


def _number(value: Any, what: str) -> float:
    """Return the number of a cell. Raises ValueError for a text that is none."""
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"found {what} {str(value)[:40]!r}, expected a number") from None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in NO_LOSS)


def scalars(data: bytes, tag: str) -> Iterator[tuple[int, float]]:
    """Yield (step, value) of the scalar `tag`, or of the only scalar whose name ends in it.

    Raises ValueError where none or several do, and for a message that is damaged.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for message in _records(data):
        step = next((value for number, value in _fields(message) if number == 2), 0)
        for value in (value for summary in _messages(message, 5) for value in _messages(summary, 1)):
            tags = list(_messages(value, 1))
            if tags and isinstance(step, int) and (scalar := _scalar(value)) is not None:
                points.setdefault(tags[0].decode("utf-8", "replace"), []).append((step, scalar))
    matching = [tag] if tag in points else [name for name in points if name.lower().endswith(tag.lower())]
    if len(matching) != 1:
        names = ", ".join(sorted(points)[:8]) or "none"
        raise ValueError(f"found the scalars {names}; expected one named '{tag}': choose it with --tag NAME")
    yield from points[matching[0]]


def _records(data: bytes) -> Iterator[bytes]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        (size,) = _HEADER.unpack_from(data, offset)
        begin, offset = offset + _HEADER.size, offset + _HEADER.size + size + _FOOTER
        if offset > len(data):
            return
        yield data[begin : begin + size]


def _scalar(value: bytes) -> float | None:
    """Return the number of a summary's value: its simple value, or a tensor of one float."""
    for number, field in _fields(value):
        if number in (2, 8) and isinstance(field, bytes):
            inner = _fields(field) if number == 8 else [(4, field)]
            parts = [part for n, part in inner if n in (4, 5) and isinstance(part, bytes) and len(part) == 4]
            return float(struct.unpack("<f", parts[0])[0]) if len(parts) == 1 else None
    return None


def _messages(message: bytes, number: int) -> Iterator[bytes]:
    return (value for key, value in _fields(message) if key == number and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[Field]:
    """Yield (number, value) of protobuf's wire format: whole numbers as int, all else as its bytes."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        kind = key & 7
        if kind == 0:
            value, offset = _varint(message, offset)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a damaged event: found the wire type {kind}")
        size, offset = _varint(message, offset) if kind == 2 else ({1: 8, 5: 4}[kind], offset)
        if offset + size > len(message):
            raise ValueError("a damaged event: a field ends behind its message")
        yield key >> 3, message[offset : offset + size]
        offset += size


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if offset >= len(message):
            raise ValueError("a damaged event: a number is cut off")
        number |= (message[offset] & 127) << shift
        offset += 1
        if message[offset - 1] < 128:
            return number, offset
    raise ValueError("a damaged event: a number has more than 64 bits")
