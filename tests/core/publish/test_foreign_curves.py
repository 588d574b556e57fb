"""Loss curves in each format that others write, and files that hold none."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest
from levelfield.errors import DocumentError
from levelfield.publish.foreign_curves import read_curve

CURVE = {1: 10.5, 2: 9.25, 3: 8.125}
RECORDED = Path(__file__).parents[3] / "tools" / "data" / "loss_curves"

MEGATRON = "".join(
    f"[2025-01-01 00:00:0{step}]  iteration  {step:7d}/     100 | consumed samples: {64 * step:12d} | elapsed time per "
    f"iteration (ms): 913.2 | learning rate: 1.0E-05 | global batch size:    64 | lm loss: {loss:.6E} | "
    "load_balancing_loss: 1.000203E+00 | loss scale: 1.0 | grad norm: 9.847 | number of nan iterations:   0 |\n"
    for step, loss in CURVE.items()
)
PADDLE = "".join(
    f"[2025-01-01 00:00:0{step},653] [    INFO] - loss: {loss}, learning_rate: 2.99e-05, global_step: {step}, "
    "interval_runtime: 3.084, interval_samples_per_second: 2.594, epoch: 0.0265\n"
    for step, loss in CURVE.items()
)
FLAGPERF = "".join(
    "[PerfLog] "
    + json.dumps({"event": event, "value": value, "metadata": {"file": "run_pretraining.py", "rank": 0}})
    + "\n"
    for step, loss in CURVE.items()
    for event, value in (
        ("STEP_END", {"loss": loss, "epoch": 1, "global_steps": step, "seq/s": 822.4}),
        ("EVALUATE", {"global_steps": step, "eval_loss": 3.5}),
    )
)
FORMATS = {
    "table": "step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in CURVE.items()),
    "TensorBoard's table": "Wall time,Step,Value\n" + "".join(f"1.7e9,{s},{x}\n" for s, x in CURVE.items()),
    "tabs and other names": "Iteration\tlm loss\tlr\n" + "".join(f"{s}\t{x}\t1e-3\n" for s, x in CURVE.items()),
    "object": json.dumps(CURVE),
    "list": json.dumps(list(CURVE.values())),
    "pairs": json.dumps([[step, loss] for step, loss in CURVE.items()]),
    "TensorBoard's JSON": json.dumps([[1.7e9, step, loss] for step, loss in CURVE.items()]),
    "objects": json.dumps([{"step": step, "loss": loss, "lr": 1e-3} for step, loss in CURVE.items()]),
    "lines": "".join(json.dumps({"step": s, "loss": x}) + "\n" for s, x in CURVE.items()),
    "transformers": json.dumps(
        {"global_step": 3, "log_history": [*({"step": s, "loss": x} for s, x in CURVE.items()), {"step": 3, "f": 1}]}
    ),
    "Megatron": "> building train dataset ...\n" + MEGATRON,
    "PaddleNLP": "LAUNCH INFO\n" + PADDLE,
    "FlagPerf": FLAGPERF + '[PerfLog] {"event": "STEP_END", "value": {"los',
}


def event_file(*messages: bytes) -> bytes:
    """An event file with these messages behind its version."""
    version = b"\x1a\x0dbrain.Event:2"
    records = (struct.pack("<Q4x", len(message)) + message + bytes(4) for message in (version, *messages))
    return b"".join(records)


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "curve.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_a_curve_is_read_whatever_the_file_is_called(name: str, tmp_path: Path) -> None:
    assert read_curve(written(tmp_path, FORMATS[name])).losses == CURVE


@pytest.mark.parametrize("name", ["events.simple", "events.tensor"])
def test_an_event_file_of_the_real_writer_is_read(name: str) -> None:
    assert read_curve(RECORDED / name).losses == {s: pytest.approx(x, rel=1e-6) for s, x in CURVE.items()}


def test_one_of_several_scalars_is_chosen() -> None:
    with pytest.raises(DocumentError, match=r"train/loss, valid/loss.*--tag"):
        read_curve(RECORDED / "events.two")
    assert read_curve(RECORDED / "events.two", tag="valid/loss").losses == {
        s: pytest.approx(2 * x) for s, x in CURVE.items()
    }
    assert read_curve(RECORDED / "events.simple", tag="train/loss").losses[1] == 10.5


def test_a_column_is_chosen(tmp_path: Path) -> None:
    table = "step,loss,ppl\n1,2,7\n2,1,5\n"
    assert read_curve(written(tmp_path, table), tag="ppl").losses == {1: 7.0, 2: 5.0}


def test_a_record_that_was_cut_off_ends_the_curve(tmp_path: Path) -> None:
    data = (RECORDED / "events.simple").read_bytes()
    assert read_curve(written(tmp_path, data[:-7])).losses == {s: x for s, x in CURVE.items() if s < 3}


def test_no_cut_of_an_event_file_and_no_changed_byte_is_a_fault(tmp_path: Path) -> None:
    data = (RECORDED / "events.tensor").read_bytes()
    for at in range(len(data)):
        for hostile in (data[:at], data[:at] + b"\xff" + data[at + 1 :]):
            with contextlib.suppress(DocumentError):
                read_curve(written(tmp_path, hostile))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found no loss"),
        ("step,accuracy\n1,0.5\n", "found no loss"),
        ("hello\nworld\n", "found no loss"),
        ("step,loss\n1,2.0\n1,3.0\n", "step 1 has the losses 2 and 3, expected one run"),
        ("step,loss\none,2.0\n", "found the step 'one', expected a number"),
        ("[" * 100_000, "found no loss|nested too deep"),
        (b"\xff\xfe\x00", "no text"),
        ('{"a": 1}', "invalid literal"),
        ("[[1, 2], [3]]", "index out of range"),
        ("[[1, null]]", "found no loss"),
        ("step,loss\n1," + "x" * 140_000 + "\n", "found at step 1 the loss 'x{40}', expected a number"),
        ("step,loss\n1,2\0\n", "found|line contains NUL"),
        (
            event_file(b"\x2a\x11\x0a\x0f\x0a\x04loss\x11" + bytes(8)),
            "found the scalars none",
        ),  # a simple value of 8 bytes
        (struct.pack("<Q4x", 24) + b"\x00\x09brain.Event:2" + b"\xff" * 30, "damaged|found the scalars none"),
    ],
)
def test_a_file_without_a_curve_is_an_error_that_names_it(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DocumentError, match=message) as error:
        read_curve(path)
    assert str(path) in str(error.value)


def test_a_table_with_a_long_field_is_read(tmp_path: Path) -> None:
    """The library refuses more than 131,072 characters by an error that is no ValueError."""
    path = written(tmp_path, "step,loss,notes\n1,2.0," + "x" * 1_000_000 + "\n2,1.0,\n")
    assert read_curve(path).losses == {1: 2.0, 2: 1.0}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.csv:"):
        read_curve(tmp_path / "none.csv")


def test_nan_is_kept(tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path, MEGATRON.replace("8.125000E+00", "nan"))).losses
    assert curve[2] == 9.25
    assert curve[3] is not None and math.isnan(curve[3])


def lost(curve: Mapping[int, float | None]) -> list[int]:
    return [step for step, loss in sorted(curve.items()) if loss is None or math.isnan(loss)]


def megatron_lines(skipped: Collection[int] = (), lost: Collection[int] = (), last: int = 40) -> str:
    """A log as Megatron prints it: without `lm loss` where the update was skipped, or the loss is NaN."""
    return "".join(
        f" iteration {step:8}/      40 | elapsed time per iteration (ms): 500.0 | "
        + ("" if step in skipped or step in lost else f"lm loss: {9 - step / 10:.6E} | ")
        + f"number of skipped iterations: {int(step in skipped):3} | number of nan iterations:   0 |\n"
        for step in range(1, last + 1)
    )


LOST = {
    "Megatron": megatron_lines(lost=range(31, 41)),
    "Megatron, fp16 that overflows to the end": megatron_lines(skipped=(1, 2, *range(31, 41))),
    "empty cells": "step,loss\n" + "".join(f"{s},{9 - s / 10 if s < 31 else ''}\n" for s in range(1, 41)),
    **{
        f"cells of {word}": "step,loss\n" + "".join(f"{s},{9 - s / 10 if s < 31 else word}\n" for s in range(1, 41))
        for word in ("None", "null", "N/A", "-", "NaN")
    },
    "NaN after a loss of the same step": json.dumps(
        [{"step": s, "loss": x} for s in range(1, 41) for x in (9 - s / 10, *([math.nan] if s > 30 else []))]
    ),
    "cells of blanks": "step,loss\n" + "".join(f"{s},{9 - s / 10 if s < 31 else '  '}\n" for s in range(1, 41)),
    "null of pairs": json.dumps([[s, 9 - s / 10 if s < 31 else None] for s in range(1, 41)]),
    "null of a list": json.dumps([9 - s / 10 if s < 31 else None for s in range(1, 41)]),
    "null of objects": json.dumps([{"step": s, "loss": 9 - s / 10 if s < 31 else None} for s in range(1, 41)]),
    "NaN of objects": json.dumps([{"step": s, "loss": 9 - s / 10 if s < 31 else math.nan} for s in range(1, 41)]),
}


@pytest.mark.parametrize("name", LOST)
def test_a_step_that_the_file_lists_without_its_loss_is_kept(name: str, tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path, LOST[name])).losses
    assert [step for step in lost(curve) if step > 2] == [*range(31, 41)]
    assert curve[30] == 6.0


def test_what_a_file_lists_between_two_losses_is_no_step_without_one(tmp_path: Path) -> None:
    skipped = read_curve(written(tmp_path, megatron_lines(skipped=(1, 2, 17)))).losses
    assert lost(skipped) == [1, 2, 17] and all(skipped[step] is None for step in (1, 2, 17))
    rows = [f"{s},{9 - s / 100 if s % 10 == 0 else ''},{s / 7}\n" for s in range(109)]  # other columns in each row
    assert not lost(read_curve(written(tmp_path, "Step,loss,power\n" + "".join(rows))).losses)
    history = [{"step": s, "loss": 9.0 - s / 100} for s in range(10, 101, 10)]
    looks = [{"step": s, "eval_loss": 4.0} for s in range(0, 105, 25)]
    summary = [{"step": 104, "train_runtime": 60.0}]
    assert not lost(read_curve(written(tmp_path, json.dumps({"log_history": [*history, *looks, *summary]}))).losses)


def scalar_event(step: int, loss: float) -> bytes:
    """An event of one simple value, whose tag is `loss`."""
    value = b"\x0a\x04loss\x15" + struct.pack("<f", loss)
    return b"\x10" + bytes([step]) + b"\x2a" + bytes([len(value) + 2]) + b"\x0a" + bytes([len(value)]) + value


RESTARTED = [(s, 9 - s / 16) for s in range(1, 41)] + [(s, 8.5 - s / 16) for s in range(36, 61)]
TWO_RUNS = [*RESTARTED[:40], *((s, 8.5 - s / 16) for s in range(1, 41))]


@pytest.mark.parametrize(
    "content",
    [
        lambda points: "step,loss\n" + "".join(f"{s},{x}\n" for s, x in points),
        json.dumps,
        lambda points: json.dumps({"log_history": [{"step": s, "loss": x} for s, x in points]}),
        lambda points: event_file(*(scalar_event(*point) for point in points)),
    ],
    ids=["table", "pairs", "objects", "event file"],
)
def test_a_restart_counts_and_is_said_as_in_a_log(
    content: Callable[[Sequence[tuple[int, float]]], str | bytes], tmp_path: Path
) -> None:
    curve = read_curve(written(tmp_path, content(RESTARTED)))
    assert curve.notes == ("a restart repeats steps 36 to 40: its lines count",)
    assert curve.losses == dict(RESTARTED) and curve.losses[38] == 8.5 - 38 / 16
    with pytest.raises(DocumentError, match=r"step 1 has the losses 8.9375 and 8.4375, expected one run in a file"):
        read_curve(written(tmp_path, content(TWO_RUNS)))
