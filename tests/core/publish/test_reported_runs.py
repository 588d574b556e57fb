"""Logs that others published become reported runs, and a log that contradicts itself gives no speed."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.compare.published_rows import RATE, format_figure_rows, reported_rows
from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.pages.page_building import build_pages
from levelfield.pages.series_history import InMemoryStore
from levelfield.publish import log_files
from levelfield.publish.foreign_curves import read_curve
from levelfield.publish.foreign_logs import MAX_LINE_LENGTH, parse_log
from levelfield.publish.log_files import LogFile, read_log_file
from levelfield.publish.reported_runs import reported_row
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reported import ReportedRow, ReportedSet

DATA = Path(__file__).parents[1] / "data" / "reported"
SOURCE = ["--source", "https://example.org/logs", "--date", "2025-11-12"]
LLAMA = Registry([]).case("llama3_8b").work("full")
H100 = find_chip(Registry([]), "H100")[1]

# file, what its reader adds, tokens/s of a device computed by hand from the lines, and where the figure comes from
SAMPLES: dict[str, tuple[dict[str, int], float | None, str]] = {
    "mlperf.txt": (
        {"devices": 8},
        49152 / (499.738 + 491.991 + 492.006 + 492.200) * 8192 / 8,
        "computed: 24.8753 samples/s by the log's clock x 8192 / 8 devices",
    ),
    "megatron.log": (
        {"devices": 16, "sequence_length": 2048},
        128 * 2048 / 5.4707 / 16,
        "computed: 128 x 2048 / 5.4707",
    ),
    "torchtitan.log": ({}, 5864.0, "printed"),
    "flagperf.log": ({"devices": 8}, None, "the log does not print sequence_length"),
    "oneflow.log": ({}, 39.04432 * 2048 / 32, "computed: 39.0443 samples/s printed x 2048 / 32 devices"),
    "nemo.out": ({"devices": 64, "sequence_length": 4096}, 389371 / 64, "computed: 256 x 4096 / 2.693 s / 64 devices"),
    "paddlenlp.log": ({"devices": 1, "sequence_length": 1024}, 889.0448, "printed"),
    "mlperf_nvidia.txt": (
        {"devices": 72},
        342 * 36 / 49.998 * 8192 / 72,
        "computed: 246.25 samples/s by the log's clock",
    ),
    "maxtext.log": ({}, (19222.175 + 19006.461) / 2, "printed"),
    "nanogpt.log": (
        {"devices": 8, "global_batch": 480, "sequence_length": 1024},
        480 * 1024 / ((33.77099 + 33.69561) / 2) / 8,
        "computed: 480 x 1024 / 33.7333 s",
    ),
    "nanochat.log": ({"devices": 8}, 528514.5 / 8, "computed: 528514 tokens/s printed / 8 devices"),
    "foundry.log": ({}, 8000.1, "printed"),
    "deepspeed.log": ({"devices": 8, "sequence_length": 2048}, 50.5 * 2048 / 8, "computed: 50.5 samples/s printed"),
    "automodel.log": ({}, (1718.28 + 1226.04) / 2, "printed"),
    "nemo_bar.out": (
        {"devices": 8, "global_batch": 2048, "sequence_length": 2048},
        2048 * 2048 / 41.36 / 8,
        "computed: 2048 x 2048 / 41.36 s",
    ),
    "trainer_state.json": (
        {"devices": 1, "global_batch": 8, "sequence_length": 64},
        171.251 * 64,
        "computed: 171.251 samples/s printed x 64 / 1 devices",
    ),
    "trainer_state_tokens.json": (  # 5 steps and 2,560 tokens in the median time of the last five entries
        {"devices": 1},
        2560 / (0.5529 - 0.4810),
        "computed: 35605 tokens/s printed / 1 devices",
    ),
}
NOTES = {  # what their losses and speeds are
    "nanogpt.log": "last micro-batch",
    "nanochat.log": "moving average",
    "trainer_state.json": "over all 45 steps, with evaluations",
    "trainer_state_tokens.json": "differences between its entries",
}


def row_of(path: Path, **facts: Any) -> ReportedRow:
    """The run of a log. facts: what its reader states."""
    (file,) = read_log_file(path)
    return reported_row(file, facts, LLAMA if facts.get("case") else None)


def changed(tmp_path: Path, name: str, change: Callable[[str], str], **facts: Any) -> ReportedRow:
    path = tmp_path / name
    path.write_text(change((DATA / name).read_text()))
    return row_of(path, **{**SAMPLES[name][0], **facts})


def with_document(tmp_path: Path, name: str, where: str, row: ReportedRow) -> Registry:
    """The plugins with one reported set of one run."""
    folder = tmp_path / "configs" / "reported"
    folder.mkdir(parents=True)
    (folder / f"{name}.json").write_text(dump(ReportedSet(name=name, where=where, date="2025-11-12", rows=(row,))))
    return Registry([tmp_path])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_speed_of_a_published_log_follows_from_its_lines(name: str) -> None:
    facts, expected, how = SAMPLES[name]
    row = row_of(DATA / name, **facts)
    rate = row.figures[RATE]
    assert rate.value == (None if expected is None else pytest.approx(expected, rel=1e-5))
    assert rate.how.startswith(how)
    assert set(row.given) == set(facts) and len(row.notes) == (name in NOTES)
    assert all(NOTES[name] in note for note in row.notes)


def test_what_a_log_states_needs_no_word_of_its_reader() -> None:
    row = row_of(DATA / "oneflow.log")
    stated = (row.devices, row.layout, row.micro_batch, row.global_batch, row.sequence_length, row.precision)
    assert stated == (32, "DP2TP4PP4", 8, 512, 2048, "fp16")
    assert row.figures["memory_bytes"].value == 11958 * 2**20
    assert [row.figures[name].value for name in ("first_loss", "last_loss")] == [11.23708, 6.82232]
    assert row_of(DATA / "torchtitan.log").figures["memory_bytes"].value == 49.66 * 2**30
    with pytest.raises(ValueError, match=r"sequence_length 2048.*expected 1024"):
        row_of(DATA / "oneflow.log", sequence_length=1024)


def test_what_is_neither_printed_nor_given_leaves_the_speed_out() -> None:
    for name, lacking in (("megatron.log", "print sequence_length, devices"), ("mlperf.txt", "print devices")):
        rate = row_of(DATA / name).figures[RATE]
        assert rate.value is None and rate.how.endswith(lacking)
    row = row_of(DATA / "megatron.log", devices=16, sequence_length=2048)
    assert row.figures["samples_per_second"].value is None and row.given == ("devices", "sequence_length")


TITAN_HEAD = (
    "[titan] 2025-06-16 22:30:00,000 - root - INFO - Building device mesh with parallelism: pp=1, dp_replicate=1, "
    "dp_shard=8, cp=1, tp=1, ep=1\n"
    "[titan] 2025-06-16 22:30:00,001 - root - INFO - Trainer is initialized with local batch size 1, "
    "global batch size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)\n"
)
FAULTS: dict[str, tuple[str, Callable[[str], str], dict[str, Any], str]] = {
    "seconds in the place of ms": (
        "megatron.log",
        lambda text: re.sub(r"\(ms\): (\d)(\d{3})\.", r"(ms): \1.\2", text),
        {},
        "found 0.005471 s of a step, and 6 s by the times of the lines",
    ),
    "ms in the place of seconds": (
        "oneflow.log",
        lambda text: text.replace("| 13.1", "| 13100.1"),
        {},
        "times apart: a unit is mixed up",
    ),
    "tokens of all devices as those of one": (
        "torchtitan.log",
        lambda text: TITAN_HEAD + text.replace("tps: 5,", "tps: 46,"),
        {},
        "s of a step, and 1.398 s by the times of the lines",
    ),
    "tokens in the place of samples": (
        "mlperf.txt",
        lambda text: text.replace('"throughput": 24.', '"throughput": 204588.'),
        {},
        "times apart: a unit is mixed up",
    ),
    "samples of a device in the place of all": (
        "flagperf.log",
        lambda text: text.replace('"seq/s": 822.455', '"seq/s": 102.8'),
        {"sequence_length": 512},
        "found 102.8 samples/s of the last steps and 579.1 of all",
    ),
    "tokens of all devices beside a printed FLOP/s": (
        "torchtitan.log",
        lambda text: text.replace("tps: 5,", "tps: 46,"),
        {"case": "llama3_8b"},
        "FLOP a token, and the case's model needs 6.11e",
    ),
    "a NaN as time": (
        "megatron.log",
        lambda text: text.replace("(ms): 5470.7", "(ms): nan"),
        {},
        r"rate or a step time that is no number above zero",
    ),
    "a time of zero": ("nemo.out", lambda text: text.replace("in s: 2.693", "in s: 0"), {}, "no number above zero"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_log_that_contradicts_itself_gives_no_speed(fault: str, tmp_path: Path) -> None:
    name, change, facts, message = FAULTS[fault]
    assert change((DATA / name).read_text()) != (DATA / name).read_text()
    rate = changed(tmp_path, name, change, **facts).figures[RATE]
    assert rate.value is None
    assert re.search(message, rate.how), rate.how


def test_a_sound_log_keeps_its_speed_with_all_checks(tmp_path: Path) -> None:
    assert changed(tmp_path, "torchtitan.log", lambda text: TITAN_HEAD + text).figures[RATE].value == 5864.0
    assert row_of(DATA / "torchtitan.log", case="llama3_8b").figures[RATE].value == 5864.0


def test_units_of_memory_are_read_as_printed(tmp_path: Path) -> None:
    decimal = changed(tmp_path, "torchtitan.log", lambda text: text.replace("GiB(", "GB("))
    assert decimal.figures["memory_bytes"].value == 49.66e9
    unknown = changed(tmp_path, "torchtitan.log", lambda text: text.replace("GiB(", "Gb("))
    assert unknown.figures["memory_bytes"].value is None


def test_a_cut_line_is_left_out_and_named(tmp_path: Path) -> None:
    text = (DATA / "megatron.log").read_text()
    whole = row_of(DATA / "megatron.log")
    cut = text.index("5829.9") + 3  # 582 in the place of 5829.9
    row = changed(tmp_path, "megatron.log", lambda text: text[:cut])
    assert row.steps == (45, 72) and whole.steps == (71, 73)
    [note] = row.notes
    assert note.startswith("left out") and "no end" in note
    assert row.figures["last_loss"].value == 1.820313


def read_text(path: Path, text: str, **facts: Any) -> ReportedRow | None:
    """What is read of a text, but for its digest and its notes; None where it is refused."""
    path.write_text(text)
    try:
        return row_of(path, **facts).model_copy(update={"sha256": "", "notes": ()})
    except DocumentError:
        return None


@pytest.mark.parametrize("name", SAMPLES)
def test_no_cut_of_a_log_gives_a_figure_that_its_whole_lines_do_not_give(name: str, tmp_path: Path) -> None:
    text, path = (DATA / name).read_text(), tmp_path / name
    facts = SAMPLES[name][0]
    for at in range(0, len(text), max(1, len(text) // 150)):
        whole_lines = text[: text.rfind("\n", 0, at) + 1]
        assert read_text(path, text[:at], **facts) == read_text(path, whole_lines, **facts), at


RATES = {
    "mlperf.txt": r'("throughput": )[\d.]+',
    "megatron.log": r"(iteration \(ms\): )[\d.]+",
    "torchtitan.log": r"(tps: )[\d,]+",
    "flagperf.log": r'("seq/s": )[\d.]+',
    "oneflow.log": r"(\| )(?:39|35)\.\d+ ",
    "nemo.out": r"(timing in s: )[\d.]+",
    "paddlenlp.log": r"(per_device: )889\.[\d.]+",
    "mlperf_nvidia.txt": r'("train_step_time": )[\d.]+',
    "maxtext.log": r"(Tokens/s/device: )[\d.]+",
    "nanogpt.log": r"(time )[\d.]+(?=ms)",
    "nanochat.log": r"(tok/sec: )[\d,]+",
    "foundry.log": r"(tokens_per_sec: )[\d.]+",
    "deepspeed.log": r"(RunningAvgSamplesPerSec=)[\d.]+",
    "automodel.log": r"(\()[\d.]+(?=/gpu)",
    "nemo_bar.out": r"(, )[\d.]+(?=s/it)",
    "trainer_state.json": r'("train_runtime": )[\d.]+',
    "trainer_state_tokens.json": r'("train_runtime": )[\d.]+',
}


@pytest.mark.parametrize("word", ["NaN", "-1.0", "0", "1e999"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_rate_that_is_no_number_above_zero_gives_no_speed(name: str, word: str, tmp_path: Path) -> None:
    text = re.sub(RATES[name], rf"\g<1>{word} ", (DATA / name).read_text())
    assert word in text
    facts = {"sequence_length": 512, **SAMPLES[name][0]} if "flag" in name else SAMPLES[name][0]
    row = read_text(tmp_path / name, text, **facts)
    assert row is None or row.figures[RATE].value is None, row.figures[RATE]


def test_the_lines_of_any_two_tools_and_of_none_are_refused(tmp_path: Path) -> None:
    path, messages = tmp_path / "two.log", {}
    formats = {name: row_of(DATA / name).format for name in SAMPLES}
    for pair in permutations(set(SAMPLES) - {"deepspeed.log"}, 2):
        if formats[pair[0]] == formats[pair[1]] or ".json" in "".join(pair):  # a document is one run
            continue
        path.write_text("".join((DATA / name).read_text() for name in pair))
        with pytest.raises(DocumentError, match=r"two\.log:.*expected.one.(?:tool's|run)") as error:
            read_log_file(path)
        messages[pair] = str(error.value)
    assert "Megatron-LM and" in messages["megatron.log", "torchtitan.log"]
    assert "of torchtitan" in messages["megatron.log", "torchtitan.log"]
    assert "MLPerf and" in messages["mlperf.txt", "nemo.out"]
    with pytest.raises(DocumentError, match=r"README\.md:.*no.line.*Megatron"):
        read_log_file(DATA / "README.md")


def test_the_lines_of_an_engine_do_not_hinder_those_of_its_trainer(tmp_path: Path) -> None:
    """Megatron-DeepSpeed prints both."""
    path = tmp_path / "both.log"
    path.write_text((DATA / "deepspeed.log").read_text() + (DATA / "megatron.log").read_text())
    row, facts = row_of(path, **SAMPLES["megatron.log"][0]), SAMPLES["megatron.log"][0]
    assert (row.format, row.figures) == ("Megatron-LM", row_of(DATA / "megatron.log", **facts).figures)


@pytest.mark.parametrize("name", ["TFLOPs:", "compute per GPU (TFLOP/s/GPU):"])  # of Megatron-DeepSpeed, of Primus
def test_relatives_of_megatron_name_their_rates_otherwise(name: str, tmp_path: Path) -> None:
    line = (DATA / "megatron.log").read_text().splitlines()[-1].rstrip(" |")
    line = line.replace("throughput per GPU (TFLOP/s/GPU): 224.0", f"{name} 224.0")
    path = tmp_path / "relative.log"
    path.write_text(f"{line} | samples per second: 1.893 | tokens per gpu per second (tgs): 484.6 |\n")
    values = [row_of(path).figures[name].value for name in (RATE, "samples_per_second", "flops_per_second")]
    assert values == [484.6, 1.893, 224.0e12]


def trainer_state(tmp_path: Path, **summary: float) -> ReportedRow:
    """The run of trainer_state.json with another summary at its end."""

    def change(text: str) -> str:
        state = json.loads(text)
        state["log_history"][-1].update(summary)
        return json.dumps(state)

    return changed(tmp_path, "trainer_state.json", change)


@pytest.mark.parametrize(
    ("summary", "rate"),
    [
        ({"train_steps_per_second": 45 / 2.1022, "train_loss": 5.21}, 171.251 * 64),
        ({"train_steps_per_second": 25 / 2.1022, "train_loss": 5.21}, None),  # of the 25 steps since a resumption
        ({"train_loss": 5.2169 * 25 / 45}, None),  # the same of an older version: 45 planned steps over the time of 25
        ({"train_steps_per_second": 90 / 2.1022}, None),  # ended after 45 of 90 steps: an older version's rate
    ],
)
def test_a_trainers_rates_are_those_of_all_its_steps(
    summary: dict[str, float], rate: float | None, tmp_path: Path
) -> None:
    row = trainer_state(tmp_path, **summary)
    assert row.figures[RATE].value == (None if rate is None else pytest.approx(rate, rel=1e-5))
    assert row.notes == (
        "its rates are not of its 45 steps: it was resumed or ended early"
        if rate is None
        else "its speed is over all 45 steps, with evaluations and saves",
    )
    assert (row.figures["first_loss"].value, row.figures["last_loss"].value) == (5.223530578613281, 5.201177978515625)


def test_the_mean_loss_at_the_end_of_a_history_is_no_loss_of_its_last_step() -> None:
    curve = read_curve(DATA / "trainer_state.json")
    assert curve.losses[45] == 5.201177978515625 and list(curve.losses) == [*range(5, 50, 5)] and not curve.notes


def test_the_loss_of_zero_of_a_trainer_is_none(tmp_path: Path) -> None:
    """Its filter leaves out each loss that is no number, and the mean of none is 0."""
    row = changed(tmp_path, "trainer_state.json", lambda text: re.sub(r'"loss": 5\.20\d+', '"loss": 0.0', text))
    assert row.figures[RATE].value is None and row.steps[1] == 35
    assert row.notes == ("no number as loss from step 40 on: the training diverged, or does not print it",)
    assert row.figures["last_loss"].how == "the log prints no loss from step 40 on"


def mlperf_log(logger: str, batch: int, blocks: int, steps: int, milliseconds: int) -> str:
    """A log of MLPerf 5.1 as one of its loggers writes it: blocks of about equal length, a minute apart.

    `amd` is also the reference's. Nine tenths of a block's time are its steps' as printed.
    """
    lines: list[tuple[int, str, Any, dict[str, float]]] = [
        (0, "global_batch_size", batch, {}),
        (0, "max_sequence_length", 8192, {}),
        (0, "run_start", None, {}),
    ]
    now = 1_760_000_000_000
    for block in range(blocks):
        first, last = (steps * n // blocks for n in (block, block + 1))
        length, place = (last - first) * batch, first * batch
        duration = milliseconds * (block + 1) // blocks - milliseconds * block // blocks
        seconds = duration / 1000 * 0.9 / (last - first - 1)
        start: dict[str, float] = {"samples_count": place}
        stop = dict(start)
        if logger == "nvidia":
            start, stop = {"samples_count": length, "step": first}, {"samples_count": length, "step": last}
        elif logger == "amd":
            stop = {"samples_count": last * batch}
        lines.append((now, "block_start", None, start))
        now += duration
        if logger != "amd":
            for step in (last - 1, last):
                counts = {"step": step - 1.0, "samples_count": float(step * batch)}
                if logger == "nvidia-before":
                    counts = {"step": float(step * batch)}
                statistics = {"train_step_time": seconds, "reduced_train_loss": 8.5 - step / steps}
                lines.append((now, "tracked_stats", statistics, counts))
            lines.append((now, "tracked_stats", {"train_step_time": seconds}, {"samples_count": length}))
        if logger != "nvidia":
            rate = {"throughput": 1 / seconds * batch, **({} if logger == "amd" else {"train_step_time": seconds})}
            lines.append((now, "tracked_stats", rate, {"step": last * batch if logger == "amd" else 0}))
        lines += [(now, "block_stop", None, stop), (now, "eval_accuracy", 3.3, {"samples_count": last * batch})]
        now += 60_000
    events = ({"time_ms": when, "key": key, "value": value, "metadata": where} for when, key, value, where in lines)
    return "".join(f"0: :::MLLOG {json.dumps(event)}\n" for event in events)


def test_the_47_systems_of_mlperf_5_1_have_the_speeds_of_their_blocks() -> None:
    with (DATA / "mlperf51.csv").open() as file:
        systems = list(csv.DictReader(file))
    assert len(systems) == 47 and {system["logger"] for system in systems} == {"amd", "nvidia", "nvidia-before"}
    for system in systems:
        batch, blocks, steps = (int(system[name]) for name in ("global_batch", "blocks", "steps"))
        text = mlperf_log(system["logger"], batch, blocks, steps, round(1000 * float(system["seconds"])))
        log = parse_log(io.StringIO(text))
        assert log is not None
        row = reported_row(LogFile(system["system"], "0" * 64, log), {"devices": int(system["devices"])})
        expected = pytest.approx(float(system["tokens_per_second_per_device"]), rel=1e-3)
        assert row.figures[RATE].value == expected, (system["system"], row.figures[RATE])
        assert row.steps is not None and row.steps[1] == steps and not row.notes, system["system"]
        if system["logger"] != "amd":  # which prints no loss
            assert row.figures["last_loss"].value == 7.5 and log.losses[steps] == 7.5, system["system"]


def test_each_name_of_a_loss_in_mlperf_is_read() -> None:
    text = mlperf_log("nvidia", 32, 4, 400, 200_000)
    event = {"key": "train_loss", "value": 7.25, "metadata": {"samples_count": 40 * 32}}  # NVIDIA's for a LoRA
    for loss_name in ("reduced_train_loss", "train_loss"):
        log = parse_log(io.StringIO(text.replace("reduced_train_loss", loss_name) + f":::MLLOG {json.dumps(event)}\n"))
        assert log is not None and (log.losses[40], log.losses[400]) == (7.25, 7.5)


def test_two_runs_of_mlperf_in_a_file_are_refused() -> None:
    """AMD's logger prints no loss that could differ: the second run's blocks were dropped without a word."""
    with pytest.raises(ValueError, match="found a second run_start of MLPerf, expected one run in a file"):
        parse_log(io.StringIO(mlperf_log("amd", 32, 4, 400, 200_000) + mlperf_log("amd", 32, 4, 400, 300_000)))


@pytest.mark.parametrize("factor", [2, 0.5, 1000])
def test_a_step_time_that_the_blocks_contradict_gives_no_speed(factor: float) -> None:
    text = mlperf_log("nvidia", 32, 4, 400, 200_000)
    text = re.sub(r'("train_step_time": )([\d.]+)', lambda match: f"{match[1]}{float(match[2]) * factor}", text)
    log = parse_log(io.StringIO(text))
    assert log is not None
    rate = reported_row(LogFile("x", "0" * 64, log), {"devices": 8}).figures[RATE]
    assert rate.value is None and "a unit is mixed up" in rate.how


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"samples_count"', '"epoch_num"'), "found blocks by epoch_num, which counts tokens, samples or epochs"),
        (('"value": 32', '"value": 0'), "found global_batch_size '0', expected a whole number above 0"),
        (('"samples_count": 0', '"samples_count": NaN'), None),  # the block has no begin
    ],
)
def test_what_a_block_of_mlperf_does_not_say_is_not_guessed(
    tmp_path: Path, change: tuple[str, str], words: str | None
) -> None:
    path = tmp_path / "mlperf.txt"
    path.write_text(mlperf_log("amd", 32, 4, 400, 200_000).replace(*change))
    if words is None:
        assert row_of(path, devices=8).figures[RATE].value == pytest.approx(300 * 32 * 8192 / 150 / 8)
    else:
        with pytest.raises(DocumentError, match=words):
            read_log_file(path)


def test_tokens_that_stand_for_samples_give_no_speed(tmp_path: Path) -> None:
    """Also where a step takes 50 s, as of a model of 405 billion parameters on 512 devices."""
    for text in ((DATA / "mlperf.txt").read_text(), mlperf_log("amd", 1152, 6, 240, 12_056_695)):
        (tmp_path / "mlperf.txt").write_text(tokens_as_samples(text))
        row = row_of(tmp_path / "mlperf.txt", devices=8)
        assert row.figures[RATE].value is None and "tokens may stand for samples" in row.figures[RATE].how


def tokens_as_samples(text: str) -> str:
    """An MLPerf log whose samples are tokens, of 8192 each."""
    text = re.sub(r'("samples_count": )(\d+)', lambda match: f"{match[1]}{int(match[2]) * 8192}", text)
    return re.sub(r'("throughput": )([\d.]+)', lambda match: f"{match[1]}{float(match[2]) * 8192}", text)


def test_a_loss_that_is_no_number_is_named(tmp_path: Path) -> None:
    row = changed(tmp_path, "oneflow.log", lambda text: text.replace("6.82232", "nan    "))
    [note] = row.notes
    assert note.startswith("no number as loss from step 100 on")
    assert row.figures["last_loss"].value is None


def without_losses(text: str, steps: str) -> str:
    """Megatron leaves the loss out where it is no number."""
    return re.sub(rf"(iteration +(?:{steps})/.*) lm loss: \S+ \|", r"\1", text)


def test_a_log_whose_loss_vanishes_says_from_which_step_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DATA / "megatron.log").read_text()
    steps = [int(step) for step in re.findall(r"iteration +(\d+)/", text)]
    first = steps[-2]
    row = changed(tmp_path, "megatron.log", lambda text: without_losses(text, f"{first}|{steps[-1]}"))
    last = row.figures["last_loss"]
    assert last.value is None
    assert f"no number as loss from step {first} on" in row.notes[0] and f"no loss from step {first} on" in last.how
    assert row.steps[1] < first, "the speed of steps that train nothing is no speed of the training"
    assert main(["evidence", "read", str(tmp_path / "megatron.log"), *SOURCE]) == 0
    assert f" no loss at last: the log prints no loss from step {first} on" in capsys.readouterr().out
    row = changed(tmp_path, "megatron.log", lambda text: without_losses(text, str(steps[2])))
    [note] = row.notes
    assert "1 step(s)" in note and note.endswith(f"step {steps[2]}")
    assert row.figures["last_loss"].value
    row = changed(tmp_path, "megatron.log", lambda text: without_losses(text, r"\d+"))
    assert f"step {steps[0]} on" in row.notes[0]


def test_two_runs_in_a_log_are_an_error(tmp_path: Path) -> None:
    text = (DATA / "oneflow.log").read_text()
    for second in (text.replace("6.82232", "6.82233"), text.replace("2048", "1024")):
        (tmp_path / "two.log").write_text(text + second)
        with pytest.raises(DocumentError, match=r"two\.log:.*expected.one.run"):
            read_log_file(tmp_path / "two.log")


def test_hostile_lines_change_no_figure_and_stand_in_no_text(tmp_path: Path) -> None:
    sample = (DATA / "oneflow.log").read_text()
    hostile = [
        "iteration " * 100_000,
        "1" * 1_000_000,
        "\x1b]0;owned\x07\x00\x9b31m",
        "step: 1  loss: " + "9" * 10_000,
        f"seq_{'l' * 10_000} ... 7",
        f"{'a' * 10_000} ..............",
        ':::MLLOG {"key": "tracked_stats", "value": ' + "[" * 5_000,
        '[PerfLog] {"event": "STEP_END", "value": "\x1b[2J", "metadata": 7}',
        "| 1 | \x1b[2J |",
        "CUDA capacity: \x1b[2Jchip with 3GiB memory",
    ]
    path = tmp_path / "hostile.log"
    path.write_text("".join(f"{line}\n" for line in hostile) + sample)
    row = row_of(path)
    assert row.figures[RATE].value == row_of(DATA / "oneflow.log").figures[RATE].value
    [note] = row.notes
    assert note.startswith("left out") and f"{MAX_LINE_LENGTH:,} characters" in note
    assert "\\u001b" not in row.to_json() and "\x1b" not in row.to_json()


def test_colours_are_no_part_of_a_number() -> None:
    line = "\x1b[31mstep:  1  \x1b[32mloss:  8.5000  \x1b[33mmemory:  1.00GiB(1.00%)  \x1b[34mtps: 7,282\x1b[39m\n"
    log = parse_log([line])
    assert log is not None and log.steps[0].figures == {"loss": 8.5, RATE: 7282.0, "memory_bytes": 2**30}


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    with path.open("wb") as file:
        file.truncate(2**29 + 1)
    with pytest.raises(DocumentError, match=r"large\.log:.*536,870,913.*536,870,912"):
        read_log_file(path)


def test_each_curve_of_a_log_is_read_for_align_too() -> None:
    curve = read_curve(DATA / "oneflow.log").losses
    assert list(curve) == list(range(10, 101, 10)) and curve[100] == 6.82232
    assert read_curve(DATA / "torchtitan.log").losses[250] == 5.8383
    assert read_curve(DATA / "nemo.out").losses == {49: 12.81}


# -- archives
CONFIG = """\
job_info:
  job_id: "3530909"
model_info:
  model_name: "nemotron4"
  dtype: "bf16"
  scale: 64
  gpu_type: "h100"
"""


def archived(path: Path, mode: str = "w", **files: str) -> Path:
    """An archive of dgxc-benchmarking's form: one folder, an experiment, its configuration and its logs."""
    folder = "llmb-archive-20251001T000000Z/nemotron/experiments/pretrain_nemotron4_15b_bf16_64"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name.replace('__', '.')}")
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


LOG = (DATA / "nemo.out").read_text()


def test_an_archive_gives_each_log_with_the_settings_of_its_job(tmp_path: Path) -> None:
    both = {"log-nemotron4_3530909_0__out": LOG, "llmb-config_3530909__yaml": CONFIG, "sbatch__out": "Submitted\n"}
    path = archived(tmp_path / "a.tar.gz", "w:gz", **both)
    row = row_of(path, sequence_length=4096)
    assert (row.devices, row.precision, row.given) == (64, "bf16", ("sequence_length",))
    assert row.figures[RATE].value == pytest.approx(389371 / 64, rel=1e-5)
    other = archived(tmp_path / "b.tar", **{"log-x_777_0__out": LOG, "llmb-config_3530909__yaml": CONFIG})
    assert row_of(other).devices is None  # the configuration is another job's


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs the program zstd")
def test_an_archive_of_zstd_is_read_and_a_cut_one_is_an_error(tmp_path: Path) -> None:
    path = archived(tmp_path / "a.tar", **{"log-nemotron4_3530909_0__out": LOG, "llmb-config_3530909__yaml": CONFIG})
    subprocess.run(["zstd", "-q", str(path)], check=True)
    packed = tmp_path / "a.tar.zst"
    assert row_of(packed).devices == 64
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(DocumentError, match=r"a\.tar\.zst"):
        read_log_file(packed)


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs the program zstd")
def test_what_follows_an_archive_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program `zstd` waits until somebody reads what it unpacks."""
    monkeypatch.setattr(log_files, "_MAX_UNPACKED_BYTES", 2**20)
    path = archived(tmp_path / "a.tar", **{"log-nemotron4_3530909_0__out": LOG})
    with path.open("ab") as file:
        file.write(bytes(2**23))
    subprocess.run(["zstd", "-q", str(path)], check=True)
    with pytest.raises(DocumentError, match="behind the archive"):
        read_log_file(tmp_path / "a.tar.zst")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_may_end_as_on_any_terminal(end: str) -> None:
    text = "".join(f"step {number}: {'x' * 90}{end}" for number in range(1000))
    pieces: list[bytes] = []
    lines = list(log_files._read_lines(io.BytesIO(text.encode()), pieces.append))
    assert [line.split(":")[0] for line in lines if line.strip()] == [f"step {number}" for number in range(1000)]
    assert b"".join(pieces) == text.encode() and all(line.endswith("\n") for line in lines)


def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_whole() -> None:
    lines = list(log_files._read_lines(io.BytesIO(b"x" * 100_000 + b"\nnext\nlast"), lambda piece: None))
    assert [len(line) for line in lines] == [MAX_LINE_LENGTH + 1, 5, 4] and lines[1:] == ["next\n", "last"]


def test_an_archive_without_a_log_a_cut_one_and_links_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"none\.tar:.*no.training's.log.*1 files"):
        read_log_file(archived(tmp_path / "none.tar", **{"sbatch__out": "Submitted\n"}))
    whole = archived(tmp_path / "a.tar.gz", "w:gz", **{"log_1_0__out": LOG}).read_bytes()
    for cut in (whole[:-4], whole[:-20], whole[: len(whole) // 2], whole[:20]):
        (tmp_path / "cut.tar.gz").write_bytes(cut)
        with pytest.raises(DocumentError, match=r"cut\.tar\.gz"):
            read_log_file(tmp_path / "cut.tar.gz")
    padded = gzip.compress(gzip.decompress(whole) + bytes(2**20))  # its checksum lies far behind the last member
    (tmp_path / "cut.tar.gz").write_bytes(padded[:-4])
    with pytest.raises(DocumentError, match=r"cut\.tar\.gz"):
        read_log_file(tmp_path / "cut.tar.gz")
    link = tarfile.TarInfo("x/log_1_0.out")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        archive.addfile(link)
    with pytest.raises(DocumentError, match=r"link\.tar:.*no.training's.log"):
        read_log_file(tmp_path / "link.tar")


# -- the command, and the rows beside results
def test_the_command_writes_a_set_that_stands_beside_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "configs" / "reported"
    folder.mkdir(parents=True)
    arguments = ["evidence", "read", str(DATA / "mlperf.txt"), *SOURCE, "--output", str(folder / "theirs.json")]
    assert main([*arguments, "--case", "llama3_8b", "--chip", "H100", "--devices", "8", "--precision", "fp8"]) == 0
    printed = capsys.readouterr().out
    assert "25,472.3 tokens/s/device" in printed
    assert [line for line in printed.splitlines() if line.endswith("case, chip, devices, precision")]
    assert "https://example.org/logs, 2025-11-12" in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if str(tmp_path) not in line)
    (row,) = reported_rows("llama3_8b", Registry([tmp_path]))
    assert (row.origin, row.source) == ("reported", "https://example.org/logs, 2025-11-12")
    assert row.status.startswith("reported; ") and "batch 32" in row.status and row.status.endswith("512")
    assert row.tokens_per_second_per_device == pytest.approx(25472.3, rel=1e-5) and row.mfu_high is not None
    assert main([*arguments, "--case", "llama3_8b"]) == 2  # the file is there
    error = capsys.readouterr().err
    assert "theirs.json" in error and os.strerror(errno.EEXIST) in error


def with_mlperf_log(tmp_path: Path) -> Registry:
    """The plugins with one reported set, of MLPerf's log."""
    row = row_of(DATA / "mlperf.txt", devices=8, case="llama3_8b", chip="H100-SXM5-80GB", precision="fp8")
    return with_document(tmp_path, "amd", "https://example.org/<b>", row)


def test_the_page_has_reported_runs_in_a_table_of_their_own(tmp_path: Path) -> None:
    build_pages(InMemoryStore([]), tmp_path / "site", with_mlperf_log(tmp_path))
    for language in ("", "zh/"):
        page = (tmp_path / "site" / f"{language}published.html").read_text(encoding="utf-8")
        published, theirs = (part for part in page.split("<table")[1:])
        assert "flagperf_gpt3_paddle" in published and "amd: mlperf.txt" not in published
        assert "amd: mlperf.txt" in theirs and "https://example.org/&lt;b&gt;, 2025-11-12" in theirs
        assert "batch 32" in theirs and "flagperf" not in theirs
    others = [path for path in (tmp_path / "site").rglob("*.*") if path.name != "published.html"]
    assert not any(b"mlperf.txt" in path.read_bytes() for path in others)  # no chart, matrix or ranking has it


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json"])
def test_a_report_marks_a_reported_run_and_names_its_source(form: str, recorded: Path, tmp_path: Path) -> None:
    ours = collect(RunPaths(recorded)).model_copy(update={"case": "llama3_8b", "scale": "full"})
    text = format_figure_rows(form, [ours], with_mlperf_log(tmp_path))
    assert text.index("measured") < text.index("reported") and "amd: mlperf.txt" in text
    assert re.search(r"https://example\.org/(<b>|&lt;b>), 2025-11-12", text)


def test_a_chip_that_no_vendor_has_keeps_its_name_and_has_no_utilisation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "configs" / "reported"
    folder.mkdir(parents=True)
    facts = ["--case", "llama3_8b", "--chip", "Z9", "--devices", "8", "--output", str(folder / "z.json")]
    assert main(["evidence", "read", str(DATA / "mlperf.txt"), *SOURCE, *facts]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no peak" in printed and "chip 'Z9'" in printed
    assert main(["evidence", "read", str(DATA / "mlperf.txt"), *SOURCE, "--chip", "H200X"]) == 0
    assert re.search(r"chip 'H200X';.nearest:.*H200", " ".join(capsys.readouterr().out.split()))
    (row,) = reported_rows("llama3_8b", Registry([tmp_path]))
    assert row.hardware == "8x Z9" and row.mfu_high is None and "chip 'Z9'" in row.mfu_from


def test_a_speed_above_the_chips_peak_has_no_utilisation(tmp_path: Path) -> None:
    log = row_of(DATA / "mlperf.txt", devices=1, case="llama3_8b", chip="H100-SXM5-80GB", precision="bf16")
    [row] = reported_rows("llama3_8b", with_document(tmp_path, "one", "https://example.org", log))
    assert row.mfu_high is None and "device count" in row.mfu_from


def titan_log(
    tmp_path: Path, rate: float, seconds: float, evaluation: int = 0, attention: int = 6, **head: int
) -> Path:
    """A log of llama3_8b on 8 devices: `rate` as printed, a line each `seconds`, an hour's evaluation before a line.

    attention: 12 where the printed FLOP/s count all scores, 6 where those below the diagonal. head: other values of its
    head, by the names of TITAN_HEAD.
    """
    path, clock = tmp_path / "titan.log", datetime(2025, 6, 16, 23)
    text = TITAN_HEAD
    for name, value in head.items():
        text = re.sub(rf"({name.replace('_', ' ')}) \d+", rf"\g<1> {value}", text)
    flops = rate * (6 * 8.03e9 + attention * 32 * 4096 * head.get("sequence_length", 8192))
    for step in range(1, 21):
        clock += timedelta(seconds=seconds + 3600 * (step == evaluation))
        text += (
            f"[titan] {clock:%Y-%m-%d %H:%M:%S},{clock.microsecond // 1000:03} - root - INFO - step: {step:2}  "
            f"loss:  {9 - step / 10:.4f}  memory: 60.00GiB(75.00%)  tps: {rate:,.0f}  tflops: {flops / 1e12:.2f}\n"
        )
    path.write_text(text)
    return path


def test_the_median_time_between_lines_tells_a_speed_that_is_twice_the_true_one(tmp_path: Path) -> None:
    seconds = 8192 / 5000  # of 8 sequences of 8,192 tokens on 8 devices at 5,000 tokens/s each
    for factor in (1.6, 2, 2.9, 0.5):
        rate = row_of(titan_log(tmp_path, 5000 * factor, seconds)).figures[RATE]
        assert rate.value is None and "1.638 s by the times of the lines" in rate.how, factor
    for evaluation in (0, 15):
        assert row_of(titan_log(tmp_path, 5000, seconds, evaluation)).figures[RATE].value == 5000


@pytest.mark.parametrize(("length", "rate", "attention"), [(65_536, 4462, 12), (131_072, 4053, 6)])
def test_a_log_of_long_sequences_is_held_to_its_own_length(
    length: int, rate: int, attention: int, tmp_path: Path
) -> None:
    """62 % of the peak at 131,072 tokens: by PaLM's formula, with all attention, it were 104 %."""
    for factor, expected in ((1, rate), (8, None)):
        seconds = length / rate / 8 / factor
        head = {"sequence_length": length, "global_batch_size": 1}
        (file,) = read_log_file(titan_log(tmp_path, factor * rate, seconds, attention=attention, **head))
        figure = reported_row(file, {"precision": "bf16"}, LLAMA, H100).figures[RATE]
        assert figure.value == expected and (expected or "peak" in figure.how)


def test_the_minus_one_of_a_rank_without_a_loss_is_none(tmp_path: Path) -> None:
    def replace_losses(text: str) -> str:
        return re.sub(r"loss: +\S+", "loss: -1.0000", text)

    row = changed(tmp_path, "torchtitan.log", replace_losses)
    assert [row.figures[name].value for name in ("first_loss", "last_loss")] == [None, None]
    assert row.figures[RATE].value == 5864.0 and row.notes[0].startswith("no number as loss from step")
    with pytest.raises(DocumentError, match="found no loss"):
        read_curve(tmp_path / "torchtitan.log")
    text = (DATA / "torchtitan.log").read_text()
    (tmp_path / "ranks.log").write_text(replace_losses(text) + text)  # those of two ranks
    assert read_curve(tmp_path / "ranks.log").losses == read_curve(DATA / "torchtitan.log").losses


NEMO_EPOCHS = "".join(
    f"Training epoch {step // 30}, iteration {step % 30}/29 | lr: 3e-05 | global_batch_size: 1 | global_step: {step} | "
    f"reduced_train_loss: {9 - step / 20:.3f} | train_step_timing in s: 0.0315 | val_loss: 4.106\n"
    for step in range(60)
)


def test_a_log_of_two_epochs_is_read_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "nemo.out").write_text(NEMO_EPOCHS)
    row = row_of(tmp_path / "nemo.out")
    assert (row.steps, row.notes) == ((30, 59), ("2 epochs, whose steps are counted on from one to the next",))
    assert read_curve(tmp_path / "nemo.out").losses == {step: round(9 - step / 20, 3) for step in range(60)}


def lines_of(steps: range, loss: float) -> str:
    return "".join(
        f" iteration {step:8}/     100 | elapsed time per iteration (ms): 500.0 | lm loss: {loss - step / 100:.6E} |\n"
        for step in steps
    )


def test_the_lines_of_a_restart_count_and_the_log_says_so(tmp_path: Path) -> None:
    path = tmp_path / "restarted.log"
    path.write_text(lines_of(range(1, 54), 9) + lines_of(range(51, 58), 8) + lines_of(range(55, 61), 7))
    notes = ("a restart repeats steps 51 to 53: its lines count", "a restart repeats steps 55 to 57: its lines count")
    curve = read_curve(path)
    assert curve.notes == row_of(path).notes == notes
    assert [curve.losses[step] for step in (50, 51, 54, 55, 60)] == [8.5, 7.49, 7.46, 6.45, 6.4]
    lasting = lines_of(range(1, 54), 9) + lines_of(range(50, 54), 9)  # to the bit the same: as two ranks print it
    path.write_text(lasting)
    assert not read_curve(path).notes


@pytest.mark.parametrize("first", [1, 9, 10])
def test_steps_that_begin_anew_are_two_runs(first: int, tmp_path: Path) -> None:
    (tmp_path / "two.log").write_text(lines_of(range(10, 54), 9) + lines_of(range(first, 54), 8))
    with pytest.raises(DocumentError, match=r"step 10 has the losses 8.9 and 7.9, expected one run"):
        read_curve(tmp_path / "two.log")


def test_steps_that_the_optimizer_skipped_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "fp16.log"
    path.write_text(lines_of(range(1, 21), 9).replace("|\n", "| number of skipped iterations:   1 |\n", 5))
    assert row_of(path).notes == ("the optimizer skipped steps in 5 of 20 lines",)


def megatron_log(tmp_path: Path, milliseconds: float, seconds: float, lines: int = 40) -> Path:
    """A log of llama3_8b whose steps take `milliseconds` as printed, and `seconds` by the times of its lines."""
    path, begin = tmp_path / "made.log", datetime(2025, 11, 1)
    rows = (
        f" [{begin + timedelta(seconds=int(step * seconds)):%Y-%m-%d %H:%M:%S}] iteration {step:8}/     100 | consumed "
        f"samples: {64 * step:12} | elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: 8.6E-06 | "
        "global batch size:    64 | lm loss: 1.8E+00 | loss scale: 1.0 | grad norm: 1.4 | number of skipped "
        "iterations:   0 | number of nan iterations:   0 |\n"
        for step in range(1, lines + 1)
    )
    path.write_text("".join(rows))
    return path


@pytest.mark.parametrize(
    ("milliseconds", "options", "message"),
    [
        (1000, ["--devices", "8"], "found 65,536 tokens/s per device, 3,373 TFLOP/s of a device"),
        (1000, ["--devices", "8", "--precision", "bf16"], "times H100-SXM5-80GB's bf16 peak of 989.4"),
        (2700, ["--devices", "1"], "times H100-SXM5-80GB's highest peak of 1,979"),
        (2700, ["--devices", "1", "--precision", "fp8"], "times H100-SXM5-80GB's fp8 peak of 1,979"),
    ],
)
def test_a_reported_speed_above_the_chips_peak_is_left_out_with_its_numbers(
    milliseconds: float, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = megatron_log(tmp_path, milliseconds, milliseconds / 1000)
    facts = ["--case", "llama3_8b", "--chip", "H100", "--sequence-length", "8192"]
    assert main(["evidence", "read", str(log), *SOURCE, *facts, *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no tokens/s/device:" in printed and message in printed
    assert main(["evidence", "read", str(log), *SOURCE, *facts, "--devices", "64"]) == 0  # so many can
    assert re.search(r"speed.[\d,.]+.tokens/s/device, computed", " ".join(capsys.readouterr().out.split()))


def test_a_printed_rate_of_flops_above_the_chips_peak_is_left_out(tmp_path: Path) -> None:
    (file,) = read_log_file(DATA / "megatron.log")
    h100, v100 = (find_chip(Registry([]), name)[1] for name in ("H100", "V100"))
    assert reported_row(file, {}, None, h100).figures["flops_per_second"].value == 238.7e12
    rate = reported_row(file, {}, None, v100).figures["flops_per_second"]
    assert rate.value is None and "times V100" in rate.how


@pytest.mark.parametrize(("lines", "seconds"), [(4, 2.7), (40, 2.7), (4, 0.4)])
def test_the_times_of_few_lines_are_held_against_the_printed_steps(lines: int, seconds: float, tmp_path: Path) -> None:
    facts = {"devices": 8, "sequence_length": 8192}
    rate = row_of(megatron_log(tmp_path, 27, 2.7, lines), **facts).figures[RATE]
    assert rate.value is None
    assert re.search(r"0\.027 s\b.*\b[23]\S*.s.by", rate.how)
    assert row_of(megatron_log(tmp_path, 1000 * seconds, seconds, lines), **facts).figures[RATE].value


def test_an_older_document_without_a_precision_says_that_its_speed_is_above_the_peak(tmp_path: Path) -> None:
    log = row_of(megatron_log(tmp_path, 2700, 2.7), devices=1, case="llama3_8b", chip="H100", sequence_length=8192)
    [row] = reported_rows("llama3_8b", with_document(tmp_path, "one", "https://example.org", log))
    assert row.mfu_high is None and "highest peak" in row.mfu_from and "1,979" in row.mfu_from


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "x", "--date", "2025-11-12"], "key 'where'"),
        (["--source", "https://example.org\x1b[2J", "--date", "2025-11-12"], "expected an address or the title"),
        (["--source", "https://example.org", "--date", "last week"], "expected a day such as 2026-01-31"),
        (["--source", "https://example.org", "--date", "2929-11-12"], "2929-11-12, which is in the future"),
        (["--source", "https://example.org"], "--date"),
        (["--date", "2025-11-12"], "--source"),
        ([*SOURCE, "--case", "no_such_case"], "unknown case"),
        ([*SOURCE, "--devices", "-8"], "mlperf.txt: key 'devices': found -8"),
        ([*SOURCE, "--sequence-length", "4096"], "mlperf.txt: found sequence_length 8192 in the log, expected 4096"),
    ],
)
def test_no_run_is_reported_without_source_and_day(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["evidence", "read", str(DATA / "mlperf.txt"), *options])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err.replace("\n", " ").replace("  ", " ")


def test_a_set_that_somebody_edited_needs_them_too(tmp_path: Path) -> None:
    made = ReportedSet(name="a", where="https://example.org", date="2025-11-12", rows=(row_of(DATA / "nemo.out"),))
    whole = json.loads(dump(made))
    for key in ("where", "date"):
        path = tmp_path / "a.json"
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with pytest.raises(DocumentError, match=f"key '{key}': missing"):
            load(ReportedSet, path)


def test_the_store_names_the_command_for_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"sqlite:///{tmp_path / 's.sqlite'}"
    assert main(["store", "import", str(DATA / "mlperf.txt"), "--store", store]) == 2
    assert "evidence read" in capsys.readouterr().err
