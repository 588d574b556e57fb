"""TensorBoard's event files, as far as scalars need it: framed records, each one protobuf message `Event`.

A record is its length (8 bytes), a checksum of it (4), the message and its checksum (4). Of `Event` these fields are
read: 2 step, 5 summary; of a summary's value: 1 tag, 2 simple_value, 8 tensor (4 tensor_content, 5 float_val).
The checksums are not verified. A record that was cut off ends the file, as it does while a training writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, int | bytes]
_HEADER = struct.Struct("<Q4x")
_FOOTER = 4
_FIRST_EVENT = b"brain.Event:"  # the version that every file begins with


def is_event_file(data: bytes) -> bool:
    return _FIRST_EVENT in data[:64]


def scalars(data: bytes, tag: str) -> Iterator[tuple[int, float]]:
    """Yield (step, value) of the scalar `tag`, or of the only scalar whose name ends in it.

    Raises ValueError where none or several do, and for a message that is damaged.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for message in _records(data):
        for name, step, value in _of_event(message):
            points.setdefault(name, []).append((step, value))
    yield from points[_chosen(tag, list(points))]


def _chosen(tag: str, names: list[str]) -> str:
    near = [tag] if tag in names else [name for name in names if name.lower().endswith(tag.lower())]
    if len(near) != 1:
        listed = ", ".join(sorted(names)[:8]) or "none"
        raise ValueError(f"found the scalars {listed}; expected one named '{tag}': choose it with --tag NAME")
    return near[0]


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER.size <= len(data):
        (size,) = _HEADER.unpack_from(data, at)
        begin, at = at + _HEADER.size, at + _HEADER.size + size + _FOOTER
        if at > len(data):
            return
        yield data[begin : begin + size]


def _of_event(message: bytes) -> Iterator[tuple[str, int, float]]:
    step = next((value for number, value in _fields(message) if number == 2), 0)
    for summary in _messages(message, 5):
        for value in _messages(summary, 1):
            names = list(_messages(value, 1))
            if names and isinstance(step, int) and (found := _scalar(value)) is not None:
                yield names[0].decode("utf-8", "replace"), step, found


def _scalar(value: bytes) -> float | None:
    """Return the number of a summary's value: its simple value, or a tensor of one float."""
    for number, field in _fields(value):
        if number == 2 and isinstance(field, bytes):
            return _float(field)
        if number == 8 and isinstance(field, bytes):
            parts = [part for n, part in _fields(field) if n in (4, 5) and isinstance(part, bytes) and len(part) == 4]
            return _float(parts[0]) if len(parts) == 1 else None
    return None


def _float(data: bytes) -> float:
    (value,) = struct.unpack("<f", data)
    return float(value)


def _messages(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in _fields(message) if number == wanted and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[Field]:
    """Yield (number, value) of protobuf's wire format: whole numbers as int, all else as its bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a damaged event: found the wire type {kind}")
        size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(message):
            raise ValueError("a damaged event: a field ends behind its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a damaged event: a number is cut off")
        found |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return found, at
    raise ValueError("a damaged event: a number has more than 64 bits")
