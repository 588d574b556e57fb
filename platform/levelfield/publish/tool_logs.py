"""Stored runs as the logs of other tools: MLPerf's lines, TensorBoard's event files, OneFlow's table of steps.

MLPerf's format, `:::MLLOG {...}`, has the keys of its training rules. It makes what reads such logs useful. It makes no
run a submission: nothing is trained to a quality target here.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from levelfield.errors import UsageError
from levelfield.measure.throughput import steps_from_start
from levelfield.measure.validity import loss_curve
from levelfield.report.escapes import table
from levelfield.rundir.folder_descriptor import FolderDescriptor
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.record import RunRecord
from levelfield.specs.result import Result

_START, _END, _POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"

# The format is that of foreign_curves.py, which reads it. Here the checksums are written: crc32c, masked as TensorBoard
# does.
_VERSION = b"brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # of Castagnoli's checksum, its bits reversed
_FIGURES = ("tokens_per_second_per_device", "memory_bytes", "joules_per_token", "mfu", "loss_tail")
_HIDDEN = re.compile(r"^\.+|[^\w.+-]")
_INTERVAL_COLUMNS = ("batches", "micro_batches", "samples", "throughput", "latency", "loss")


def mllog_lines(record: RunRecord) -> Iterator[str]:
    """Yield the lines of one run, each with its newline: what it is, every loss, its speed and how it ended."""
    began = datetime.fromisoformat(record.began).timestamp()
    series = record.series
    sequences = series.micro_batch * series.accumulation * series.layout.data  # of a step
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


def _line(seconds: float, kind: str, key: str, value: Any, **metadata: Any) -> str:
    content = {"namespace": "", "time_ms": round(1000 * seconds), "event_type": kind, "key": key, "value": value}
    # Every line names a place in a file; here it is this format's writer.
    place = {"file": "levelfield", "lineno": 0}
    return f":::MLLOG {json.dumps({**content, 'metadata': {**metadata, **place}})}\n"


def write_scalars(folder: Path, record: RunRecord) -> Path:
    """Write the run's file into a folder of its own below `folder`, which TensorBoard shows as a run. Return the file.

    The name is that of the run, without characters that could lead to another folder.
    """
    began = datetime.fromisoformat(record.began).timestamp()
    path = folder / _HIDDEN.sub("_", record.run_id) / f"events.out.tfevents.{int(began)}.levelfield"
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
    with FolderDescriptor(folder) as named, named.made_below(path.parent.name) as own:
        own.replace(path.name, b"".join(map(_framed, _messages(record, began))))
    return path


def _messages(record: RunRecord, began: float) -> Iterator[bytes]:
    yield _double(1, began) + _bytes(3, _VERSION)
    now = began
    for step, seconds in enumerate(record.step_seconds, 1):
        now += seconds
        yield _scalar(now, step, "step_seconds", seconds)
        loss = record.losses[step - 1] if step <= len(record.losses) else None
        if loss is not None:
            yield _scalar(now, step, "loss", loss)
    for name in _FIGURES:
        if (value := getattr(record, name)) is not None:
            yield _scalar(now, len(record.step_seconds), name, value)


def _scalar(time: float, step: int, tag: str, value: float) -> bytes:
    """Return an Event with one scalar: wall_time 1, step 2, summary 5; of its value: tag 1, simple_value 2."""
    content = _bytes(1, tag.encode()) + _key(2, 5) + struct.pack("<f", value)
    return _double(1, time) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, content))


def _double(number: int, value: float) -> bytes:
    return _key(number, 1) + struct.pack("<d", value)


def _bytes(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _framed(message: bytes) -> bytes:
    """Return a record: the length with its checksum, and the message with its own."""
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _checksum(data: bytes) -> bytes:
    found = 0xFFFFFFFF
    for byte in data:
        found = _TABLE[(found ^ byte) & 255] ^ found >> 8
    found ^= 0xFFFFFFFF
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))


def interval_table(result: Result, plan: Plan, raw: RawRecords, interval: int) -> str:
    """Return the table that OneFlow's training prints in Markdown, with a row for every `interval` batches.

    Samples/s and seconds a batch are the means of the interval, the loss is that of its last batch. All batches count
    from the first one, which OneFlow's do too.

    Raises UsageError where the run has fewer batches, or is not valid.
    """
    rows = [] if result.status.is_unproven else list(_rows(plan, raw, interval))
    if not rows:
        why = result.status.word if result.status.is_unproven else f"fewer than {interval} batches"
        raise UsageError(f"--log-interval {interval}: {result.run_id}: found {why}, expected a row's batches")
    return "\n".join((f"{result.run_id}\n", *table(_INTERVAL_COLUMNS, rows, " --- "), ""))


def _rows(plan: Plan, raw: RawRecords, interval: int) -> Iterator[tuple[str, ...]]:
    window, batch = plan.work.window, plan.work.training.global_batch
    seconds = steps_from_start(raw.steps, raw.begins, window.first_step, window.last_step)
    losses = loss_curve(raw.steps)
    for last in range(interval, len(seconds) + 1, interval):
        latency = fmean(seconds[last - interval : last])
        loss = f"{losses[last]:.5f}" if last in losses else "/"
        counts = (last, last * plan.accumulation, last * batch)
        yield (*map(str, counts), f"{batch / latency:.5f}", f"{latency:.5f}", loss)
