"""Loss curves that others wrote: tables, logs of trainings and TensorBoard's event files, read as step -> loss.

The format is found in the content, not in the name of the file. Sources of the formats: Megatron-LM's `training_log`,
FlagPerf's `perf_logger`, the trainer of PaddleNLP, the log history of transformers, TensorBoard's `Event` message.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from levelfield.errors import DocumentError
from levelfield.node.regular_files import read_regular
from levelfield.publish.event_file import is_event_file, scalars
from levelfield.specs.bounded_reading import MOST_BYTES

Points = Iterator[tuple[int, float]]
STEP_NAMES = ("step", "steps", "iteration", "iter", "global_step", "global_steps")
LOSS_NAMES = ("loss", "lm loss", "lm_loss", "train_loss", "train/loss", "value")
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|NaN|inf|-inf)"
LOG_LINES = (
    re.compile(rf"iteration\s+(?P<step>\d+)/\s*\d+ \|.*?\blm loss: (?P<loss>{_NUMBER})"),  # Megatron-LM
    re.compile(rf"\bloss: (?P<loss>{_NUMBER}),.*?\bglobal_step: (?P<step>\d+)\b"),  # PaddleNLP
)
FLAGPERF = "[PerfLog] "
EXPECTED = "a table with a step and a loss, JSON, a log of Megatron, FlagPerf or PaddleNLP, or a TensorBoard event file"


def read_curve(path: Path, tag: str | None = None) -> dict[int, float]:
    """Return the loss by step. tag: the name of the scalar, or of the column, that holds the loss.

    Raises DocumentError for a file that cannot be read or holds no curve, and for a step with two losses.
    """
    data = _bytes(path)
    try:
        points = list(scalars(data, tag or "loss") if is_event_file(data) else _points(data.decode("utf-8"), tag))
        return _curve(points)
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: found bytes that are no text, expected {EXPECTED}") from None
    except RecursionError:
        raise DocumentError(f"{path}: found lists nested too deep, expected {EXPECTED}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise DocumentError(f"{path}: {error}") from None


def _bytes(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DocumentError(f"{path}: found {size:,} bytes, expected at most {MOST_BYTES:,}")
        return read_regular(path)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from None


def _curve(points: list[tuple[int, float]]) -> dict[int, float]:
    if not points:
        raise ValueError(f"found no loss, expected {EXPECTED}")
    curve: dict[int, float] = {}
    for step, loss in points:
        if not (curve.setdefault(step, loss) == loss or math.isnan(loss)):
            raise ValueError(f"step {step} has the losses {curve[step]:g} and {loss:g}, expected one run in a file")
    return curve


def _points(text: str, tag: str | None) -> Points:
    if text.lstrip()[:1] in ("[", "{") and (found := _json(text)) is not None:
        return _of_values(found, tag)
    logged = list(_logged(text))
    return iter(logged) if logged else _tabled(text, tag)


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


def _of_values(found: Any, tag: str | None) -> Points:
    """Yield the points of {"1": loss}, [loss, ...], [[step, loss], ...], [[time, step, loss], ...] and objects."""
    if isinstance(found, dict):
        history = found.get("log_history")
        values: Any = history if history is not None else [[int(step), loss] for step, loss in found.items()]
    else:
        values = found
    for index, value in enumerate(values):
        if isinstance(value, dict):
            yield from _of_row({str(key): field for key, field in value.items()}, tag)
        elif isinstance(value, list):
            yield int(value[-2]), float(value[-1])
        else:
            yield index + 1, float(value)


def _of_row(row: dict[str, Any], tag: str | None) -> Points:
    """Yield the point of a row, if it has a step and a loss. Names are compared without case."""
    fields = {key.strip().lower(): value for key, value in row.items() if key is not None}
    step = next((fields[name] for name in STEP_NAMES if fields.get(name) not in (None, "")), None)
    losses = (tag.lower(),) if tag else LOSS_NAMES
    loss = next((fields[name] for name in losses if fields.get(name) not in (None, "")), None)
    if step is not None and loss is not None:
        yield int(float(step)), float(loss)


def _logged(text: str) -> Points:
    for line in text.splitlines():
        if FLAGPERF in line:
            yield from _perf_event(line.split(FLAGPERF, 1)[1])
        elif found := next((m for pattern in LOG_LINES if (m := pattern.search(line))), None):
            yield int(found["step"]), float(found["loss"])


def _perf_event(text: str) -> Points:
    """Yield the point of one event of FlagPerf's log. Other events, and a line that was cut off, give none."""
    try:
        event = json.loads(text)
    except json.JSONDecodeError:
        return
    if isinstance(event, dict) and event.get("event") == "STEP_END" and isinstance(event.get("value"), dict):
        yield from _of_row(event["value"], "loss")


def _tabled(text: str, tag: str | None) -> Points:
    rows = csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in text.split("\n", 1)[0] else ",")
    for row in rows:
        yield from _of_row({key: value for key, value in row.items() if isinstance(key, str)}, tag)
