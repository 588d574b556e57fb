"""Logs of trainings by other tools, line by line: what each step printed, and what the log states about its run.

Sources of the formats: Megatron-LM's `training_log`, NeMo's progress lines and bar, AutoModel's `log_train_metrics`,
torchtitan's `MetricsProcessor`, MaxText's `metric_logger`, DeepSpeed's `ThroughputTimer`, Composer's `ConsoleLogger`
(llm-foundry), the training loops of nanoGPT and nanochat, FlagPerf's `perf_logger`, the trainer of PaddleNLP,
OneFlow-Benchmark's table of intervals, MLPerf's logging rules, and the `Trainer` of transformers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from levelfield.measure.curves import fill_lost_steps
from levelfield.specs.figures import UNITS

MAX_LINE_LENGTH = 2**14  # characters; longer lines are left out, as a line of a training has some hundreds
Figures = dict[str, float]
StatedFacts = dict[str, str]

# Repetitions are bounded, so that no line takes longer than its length.
_NUMBER = r"([-+]?(?:\d[\d,]{0,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,3})?(?![\d.])|nan|NaN|inf|-inf)"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CLOCK = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?")
DEEPSPEED = "DeepSpeed"
FEW_LOSSES = ("MLPerf", DEEPSPEED)  # formats whose lines lack a loss also in a sound training
MLLOG_MARK, FLAGPERF_MARK = ":::MLLOG ", "[PerfLog] "


@dataclass(frozen=True)
class LoggedStep:
    """What a log printed of one step, or of the steps since the line before, in SI units."""

    step: int
    figures: Mapping[str, float]
    epoch_seconds: float | None = None  # seconds since 1970 by the log's own times
    resolution_seconds: float = 1.0  # the smallest difference that they show


@dataclass(frozen=True)
class ForeignLog:
    """One log."""

    format: str
    steps: tuple[LoggedStep, ...]
    stated: Mapping[str, str]  # facts of the whole run, by the names of `ReportedRow`
    notes: tuple[str, ...]  # what was left out, and restarts

    @property
    def losses(self) -> dict[int, float | None]:
        """The loss by step: NaN where a line lacks it, None where that is because the optimizer skipped the step.

        A trainer that skips every step to the end does not train: these lines lack their loss.
        """
        losses = {step.step: step.figures["loss"] for step in self.steps if "loss" in step.figures}
        skipped = {step.step for step in self.steps if step.figures.get("skipped", 0) > 0}
        steps = losses if self.format in FEW_LOSSES else [step.step for step in self.steps]
        return fill_lost_steps(losses, steps, skipped)


@dataclass
class LogReading:
    """The steps and facts read so far, by format. A line belongs to the first format that reads it."""

    steps: dict[str, dict[int, LoggedStep]] = field(default_factory=dict)
    stated: StatedFacts = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _last_step: int = -1  # of the line before
    _stretch_begin: int = -1  # the first step since the steps last went back

    def add_fact(self, name: str, value: str) -> None:
        """Store a fact of the run. Raises ValueError where the log states another one: it holds two runs."""
        if (before := self.stated.setdefault(name, value)) != value:
            raise ValueError(f"found {name} {before} and {value}, expected one run in a log")

    def add_step(self, name: str, new: LoggedStep) -> None:
        """Store a step. Several ranks may print it, and several lines may share it.

        A second loss of a step is a restart, whose lines replace those from there on. It is two runs, a ValueError,
        where the steps went back to the first one or further.
        """
        if new.step <= self._last_step or self._stretch_begin < 0:
            self._stretch_begin = new.step
        self._last_step = new.step
        steps = self.steps.setdefault(name, {})
        stored_step = steps.setdefault(new.step, new)
        losses = [step.figures["loss"] for step in (stored_step, new) if "loss" in step.figures]
        if len(losses) > 1 and losses[0] != losses[1] and losses[0] == losses[0]:
            if self._stretch_begin <= min(steps):
                raise ValueError(
                    f"step {new.step} has the losses {losses[0]:g} and {losses[1]:g}, expected one run in a file"
                )
            self.notes.append(f"a restart repeats steps {self._stretch_begin} to {max(steps)}: its lines count")
            self.steps[name] = {step: line for step, line in steps.items() if step < new.step}
            stored_step = new
        figures = {**new.figures, **stored_step.figures}
        self.steps[name][new.step] = replace(
            stored_step, figures=figures, epoch_seconds=stored_step.epoch_seconds or new.epoch_seconds
        )


def parse_log(lines: Iterable[str]) -> ForeignLog | None:
    """Return the log of these lines, each with its end; None where no line is of a step.

    A last line without an end is left out: its last number may have been cut. Raises ValueError where lines are of two
    tools or of two runs.
    """
    reading, readers = LogReading(), [make() for make in READER_FACTORIES]
    for line in lines:
        text = _COLOUR.sub("", line) if "\x1b" in line else line
        if len(line) > MAX_LINE_LENGTH:
            reading.notes.append(f"left out a line of more than {MAX_LINE_LENGTH:,} characters")
        elif not line.endswith("\n"):
            reading.notes.append("left out the last line, which has no end")
        elif not any(reader(text.rstrip(), reading) for reader in readers):
            _read_facts(text.rstrip(), reading)
    if len(reading.steps) > 1:
        reading.steps.pop(DEEPSPEED, None)  # the engine of another trainer, whose lines have more
    if len(reading.steps) > 1:
        names = " and of ".join(reading.steps)
        raise ValueError(f"found lines of {names}, expected one tool's; write them into two files")
    for name, steps in reading.steps.items():
        ordered = tuple(steps[step] for step in sorted(steps))
        return ForeignLog(name, ordered, reading.stated, tuple(dict.fromkeys(reading.notes)))
    return None


# -- lines with names and numbers
@dataclass(frozen=True)
class LineFormat:
    """A tool whose steps are one line each."""

    name: str
    mark: str  # a text of every such line, for a fast first look
    step: re.Pattern[str]  # of its last group that matches the number
    # Patterns by figure, tried in order: of group 1 the number, of group 2, where there is one, its unit.
    figures: tuple[tuple[str, re.Pattern[str], float], ...]
    no_loss: float | None = None  # what a rank prints that computes no loss
    note: str | None = None  # what a reader needs to know about its figures

    def __call__(self, line: str, reading: LogReading) -> bool:
        if self.mark not in line or not (step := self.step.search(line)):
            return False
        figures: Figures = {}
        for name, pattern, scale in self.figures:
            if name not in figures and (match := pattern.search(line)):
                unit = float(UNITS[match[2]]) if pattern.groups > 1 else 1.0
                figures[name] = float(match[1].replace(",", "")) * scale * unit
        if figures.get("loss", math.nan) == self.no_loss:
            del figures["loss"]
        if figures:
            reading.add_step(self.name, LoggedStep(int(step[step.lastindex or 1]), figures, *_line_time(line)))
            reading.notes += [self.note] if self.note else []
        return bool(figures)


def _line_time(line: str) -> tuple[float | None, float]:
    if not (match := _CLOCK.search(line)):
        return None, 1.0
    try:
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None, 1.0
    return whole + float(f"0.{match[3] or 0}"), 10.0 ** -len(match[3] or "")


def _figure_pattern(name: str, pattern: str, scale: float = 1.0) -> tuple[str, re.Pattern[str], float]:
    return name, re.compile(pattern.replace("NUMBER", _NUMBER)), scale


_RATE, _FLOPS = "tokens_per_second_per_device", "flops_per_second_per_device"
LINE_FORMATS = (
    LineFormat(
        "NeMo",
        "Training epoch ",
        # iterations begin again in each epoch
        re.compile(r"Training epoch \d{1,9}, iteration (\d{1,9})/\d+ \|(?:.*\bglobal_step: (\d{1,9})\b)?"),
        (
            _figure_pattern("epoch", r"Training epoch NUMBER"),
            _figure_pattern("loss", r"\breduced_train_loss: NUMBER"),
            _figure_pattern("step_seconds", r"\btrain_step_timing in s: NUMBER"),
            _figure_pattern(_RATE, r"\btokens_per_sec_per_gpu: NUMBER"),
            _figure_pattern(_FLOPS, r"\bTFLOPS_per_GPU: NUMBER", 1e12),
            _figure_pattern("memory_bytes", r"\b(?:max_memory_reserved|peak_memory_usage): NUMBER"),
            _figure_pattern("global_batch", r"\bglobal_batch_size: NUMBER"),
        ),
    ),
    LineFormat(
        "NeMo",
        "reduced_train_loss=",  # in its progress bar
        re.compile(r"\bglobal_step=(\d{1,9})\b"),
        (
            _figure_pattern("loss", r"\breduced_train_loss=NUMBER"),
            _figure_pattern("step_seconds", r"\btrain_step_timing in s=NUMBER"),
            _figure_pattern("step_seconds", r"NUMBERs/it\b"),
        ),
    ),
    LineFormat(
        "NeMo AutoModel",
        "| epoch ",
        re.compile(r"\| step (\d{1,9}) \| epoch \d{1,9} \| loss "),
        (
            _figure_pattern("loss", r"\| loss NUMBER"),
            _figure_pattern("epoch", r"\| epoch NUMBER"),
            _figure_pattern(_RATE, r"\(NUMBER/gpu\)"),
            _figure_pattern("memory_bytes", r"\| mem NUMBER (GiB)\b"),
        ),
    ),
    LineFormat(
        "Megatron-LM",
        "iteration",
        re.compile(r"(?<!, )\biteration\s{1,9}(\d{1,9})\s?/\s{0,9}\d{1,9} \|"),
        (
            _figure_pattern("loss", r"\blm loss:? NUMBER"),
            _figure_pattern("step_seconds", r"\belapsed time per iteration \(ms\): NUMBER", 1e-3),
            _figure_pattern("samples_per_second", r"\bsamples(?:/sec| per second): NUMBER"),
            _figure_pattern(_RATE, r"\b(?:tokens/sec/gpu|tokens per GPU \(tokens/s/GPU\)): NUMBER"),
            _figure_pattern(_RATE, r"\btokens per gpu per second \(tgs\): NUMBER"),
            _figure_pattern(_FLOPS, r"\b(?:throughput|compute) per GPU \(TFLOP/s/GPU\): NUMBER", 1e12),
            _figure_pattern(_FLOPS, r"NUMBER (?:MODEL_)?TFLOP/s/GPU", 1e12),
            _figure_pattern(_FLOPS, r"\bTFLOPs: NUMBER", 1e12),
            _figure_pattern("global_batch", r"\bglobal batch size:\s{0,9}NUMBER"),
            _figure_pattern("skipped", r"\bnumber of skipped iterations:\s{0,9}NUMBER"),
        ),
    ),
    LineFormat(
        "torchtitan",
        "step:",
        re.compile(r"(?<!_)\bstep:\s{0,9}(\d{1,9})\s{1,9}loss:"),
        (
            _figure_pattern("loss", r"\bloss:\s{0,9}NUMBER"),
            _figure_pattern(_RATE, r"\b[tw]ps:\s{0,9}NUMBER"),  # wps in older versions; both are of one device
            _figure_pattern(_FLOPS, r"\btflops:\s{0,9}NUMBER", 1e12),
            _figure_pattern("memory_bytes", r"\bmemory:\s{0,9}NUMBER(GiB|GB|MiB|MB)\b"),
        ),
        no_loss=-1.0,  # of all pipeline stages but the last
    ),
    LineFormat(
        "PaddleNLP",
        "global_step:",
        re.compile(r"\bglobal_step: (\d{1,9})\b"),
        (
            _figure_pattern("loss", r"\bloss: NUMBER,"),
            _figure_pattern("samples_per_second", r"\binterval_samples_per_second: NUMBER"),
            _figure_pattern(_RATE, r"\binterval_tokens_per_second_per_device: NUMBER"),
        ),
    ),
    LineFormat(
        "MaxText",
        "completed step:",
        re.compile(r"\bcompleted step: (\d{1,9}), seconds:"),
        (
            _figure_pattern("loss", r", loss: NUMBER"),
            _figure_pattern("step_seconds", r"\bseconds: NUMBER"),
            _figure_pattern(_RATE, r"\bTokens/s/device: NUMBER"),
            _figure_pattern(_FLOPS, r"\bTFLOP/s/device: NUMBER", 1e12),
        ),
    ),
    LineFormat(
        "nanoGPT",
        "iter ",
        re.compile(r"^iter (\d{1,9}): loss "),
        (
            _figure_pattern("loss", r"\bloss NUMBER"),
            _figure_pattern("step_seconds", r"\btime NUMBERms\b", 1e-3),
        ),
        note="its losses are those of the last micro-batch of a step",
    ),
    LineFormat(
        "nanochat",
        "| loss: ",
        re.compile(r"^step (\d{1,9})/\d{1,9} \("),
        (
            _figure_pattern("loss", r"\bloss: NUMBER"),
            _figure_pattern("step_seconds", r"\bdt: NUMBERms\b", 1e-3),
            _figure_pattern("tokens_per_second", r"\btok/sec: NUMBER"),  # of all devices
        ),
        note="its losses are a moving average over steps",
    ),
    LineFormat(
        DEEPSPEED,
        "RunningAvgSamplesPerSec=",
        re.compile(r"(?:\bglobal_step=|\] \d{1,9}/)(\d{1,9}), RunningAvgSamplesPerSec="),
        (
            _figure_pattern("samples_per_second", r"\bRunningAvgSamplesPerSec=NUMBER"),
            _figure_pattern("memory_bytes", r"\bMaxMemAllocated=NUMBERGB\b", 2**30),  # its GB are GiB
        ),
    ),
)
_COMPOSER = LineFormat(
    "llm-foundry",
    "Train ",
    re.compile(r"^\[batch=(\d{1,9})/"),
    (
        _figure_pattern("loss", r"\bTrain loss/train/total: NUMBER"),
        _figure_pattern(_RATE, r"\bTrain throughput/device/tokens_per_sec: NUMBER"),
        _figure_pattern("memory_bytes", r"\bTrain memory/peak_reserved_mem: NUMBER", 1e9),
    ),
)
_COMPOSER_HEAD = re.compile(r"^\[batch=\d{1,9}/\d{1,9}\]:")


@dataclass
class _ComposerReader:
    """Composer's block of a step: a head with its number, and a line for each figure."""

    _head: str = ""

    def __call__(self, line: str, reading: LogReading) -> bool:
        if head := _COMPOSER_HEAD.match(line):
            self._head = head[0]
        elif line[:1] not in ("\t", " "):
            self._head = ""
        return bool(self._head) and _COMPOSER(f"{self._head} {line}", reading)


# -- lines of JSON, and a table
def _json_object(text: str) -> dict[str, Any]:
    """Return the object of a text; an empty one for anything else, as a line that was cut."""
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_flagperf(line: str, reading: LogReading) -> bool:
    """Read an event of FlagPerf. FINISHED has the rate over the whole training, which the steps must fit."""
    if FLAGPERF_MARK not in line:
        return False
    event = _json_object(line.partition(FLAGPERF_MARK)[2])
    value, metadata = event.get("value"), event.get("metadata")
    if not isinstance(value, dict):
        return True
    if event.get("event") == "FINISHED" and (rate := _number_or_none(value.get("training_sequences_per_second"))):
        reading.add_fact("samples_per_second_of_training", repr(rate))
    step = _number_or_none(value.get("global_steps", value.get("global_step", value.get("step"))))
    if event.get("event") == "STEP_END" and step is not None and step == step:
        milliseconds = _number_or_none(metadata.get("time_ms")) if isinstance(metadata, dict) else None
        samples = _number_or_none(value.get("num_trained_samples"))
        figures = {
            "loss": _number_or_none(value.get("loss")),
            "samples_per_second": _number_or_none(value.get("seq/s")),
            "global_batch": samples / step if samples and step else None,
        }
        clock = None if milliseconds is None else milliseconds / 1000
        numbers = {name: figure for name, figure in figures.items() if figure is not None}
        reading.add_step("FlagPerf", LoggedStep(int(step), numbers, clock, 0.001))
    return True


@dataclass
class _MlperfReader:
    """MLPerf's log. Between two evaluations it trains a block: its samples over its time are the rate by the clock.

    A step is the number of samples over the global batch. The events of a block have the samples until then as their
    `samples_count`. By NVIDIA's code it is the block's length, and their place is `step`. By its older code both have
    the samples before the block, and the last line within tells its length; the `step` of such a line is in samples.
    """

    _block_start: tuple[float, float] | None = None  # milliseconds and samples at the block's start
    _rate: Figures = field(default_factory=dict)
    _samples: float = 0.0  # until the last line that has them
    _has_begun: bool = False

    def __call__(self, line: str, reading: LogReading) -> bool:
        if MLLOG_MARK not in line:
            return False
        event = _json_object(line.partition(MLLOG_MARK)[2])
        metadata = event.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        key, value = event.get("key"), event.get("value")
        samples, step, now = (
            number if number is not None and math.isfinite(number) else None
            for number in map(
                _number_or_none, (metadata.get("samples_count"), metadata.get("step"), event.get("time_ms"))
            )
        )
        if key in _MLPERF_FACTS and isinstance(value, (int, str)):
            reading.add_fact(_MLPERF_FACTS[key], str(value))
        elif key == "tracked_stats" and isinstance(value, dict):
            if (rate := _number_or_none(value.get("throughput"))) is not None:
                # By MLPerf's rules it is samples/s of all devices, unless the line names another unit.
                is_local = metadata.get("unit") == "tokens/s/device"
                self._rate = {_RATE if is_local else "samples_per_second": rate}
            elif step is not None:  # else it is a mean over the block
                self._add(step if samples is None else samples, _mlperf_figures(value), reading)
        elif key == "train_loss" and samples is not None:
            self._add(samples, _mlperf_figures({"train_loss": value}), reading)
        elif key in ("block_start", "block_stop") and now is not None and (samples is not None or step is not None):
            place = samples or 0.0 if step is None else step * self._global_batch(reading)
            if key == "block_start":
                self._block_start = now, place
            else:
                self._end_block(now, place, reading)
        elif key == "block_stop" and "epoch_num" in metadata:
            raise ValueError(
                "found blocks by epoch_num, which counts tokens, samples or epochs; expected samples_count"
            )
        elif key == "run_start" and self._has_begun:
            raise ValueError("found a second run_start of MLPerf, expected one run in a file")
        elif key == "run_stop" and self._rate:  # a rate of the whole run
            self._add(self._samples, self._rate, reading)
        self._has_begun = self._has_begun or key == "run_start"
        return True

    def _end_block(self, now: float, place: float, reading: LogReading) -> None:
        figures, begun = dict(self._rate), self._block_start
        self._rate, self._block_start = {}, None
        if begun and now > begun[0]:
            if place == begun[1]:
                place = self._samples
            figures["block_samples"], figures["block_seconds"] = place - begun[1], (now - begun[0]) / 1000
        self._add(place, figures, reading)

    def _add(self, samples: float, figures: Figures, reading: LogReading) -> None:
        if not figures:
            return
        self._samples = samples
        if step := int(samples / self._global_batch(reading)):
            reading.add_step("MLPerf", LoggedStep(step, figures))

    @staticmethod
    def _global_batch(reading: LogReading) -> int:
        if "global_batch" not in reading.stated:
            raise ValueError("found samples_count before global_batch_size, expected the head of the log too")
        if not (batch := reading.stated["global_batch"]).isdecimal() or not int(batch):
            raise ValueError(f"found global_batch_size {batch[:40]!r}, expected a whole number above 0")
        return int(batch)


def _mlperf_figures(statistics: Mapping[str, Any]) -> Figures:
    pairs = ((name, _number_or_none(statistics.get(key))) for key, name in _MLPERF_STATISTICS.items())
    return {name: number for name, number in pairs if number is not None}


_MLPERF_STATISTICS = {"train_step_time": "step_seconds", "train_loss": "loss", "reduced_train_loss": "loss"}
_MLPERF_FACTS = {
    "global_batch_size": "global_batch",
    "max_sequence_length": "sequence_length",
    "micro_batch_size": "micro_batch",
    "tensor_parallelism": "tensor",
    "pipeline_parallelism": "pipeline",
    "context_parallelism": "context",
    "submission_benchmark": "benchmark",
    "submission_org": "organisation",
    "submission_platform": "platform",
}


_TABLE_FIGURES = {"throughput": "samples_per_second", "latency": "step_seconds", "loss": "loss"}
_MEMORY = re.compile(r"\s{0,9}\d{1,3} %, (\d{1,9}) MiB")


@dataclass
class _OneflowReader:
    """OneFlow's table of intervals. A line is the mean over `log_interval` steps; memory is printed before it."""

    _columns: list[str] = field(default_factory=list)
    _memory: list[float] = field(default_factory=list)

    def __call__(self, line: str, reading: LogReading) -> bool:
        if memory := _MEMORY.fullmatch(line):
            self._memory.append(float(memory[1]) * 2**20)
            return True
        if "|" not in line:
            return False
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if _TABLE_FIGURES.keys() <= set(cells):
            self._columns = cells
        elif not self._columns or len(cells) != len(self._columns) or not cells[0].isdigit():
            return False
        else:
            row = dict(zip(self._columns, cells, strict=True))
            figures = {name: float(row[column]) for column, name in _TABLE_FIGURES.items()}
            if self._memory:
                figures["memory_bytes"] = max(self._memory)
            reading.add_step("OneFlow", LoggedStep(int(cells[0]), figures))
        return True


# A maker of a reader for each format. MLPerf's lines come first, for a line of theirs may hold anything.
READER_FACTORIES: tuple[Callable[[], Callable[[str, LogReading], bool]], ...] = (
    _MlperfReader,
    lambda: _read_flagperf,
    *((lambda line_format=line_format: line_format) for line_format in LINE_FORMATS),
    _ComposerReader,
    _OneflowReader,
)
TOOLS = (
    "Megatron, NeMo, torchtitan, MaxText, DeepSpeed, llm-foundry, nanoGPT, nanochat, FlagPerf, PaddleNLP, OneFlow or "
    "MLPerf, or the trainer_state.json of Hugging Face's Trainer"
)


# -- the history that Hugging Face's Trainer saves; the lines that it prints have no step
_TRAINER = "Hugging Face Trainer"
_STEP_RATE_ROUNDING = 0.0006  # steps/s, which it rounds to three digits
_MAX_SHARE_DIFFERENCE = 0.02  # between two counts of the steps of a training


def parse_trainer_state(text: str) -> ForeignLog | None:
    """Return the history of a `trainer_state.json`; None for another text.

    Where the trainer counts tokens, an entry has the time and the tokens until then. Else only the training's end has
    a time: its rates are means over everything, evaluations too.
    """
    history = _json_object(text).get("log_history")
    reading, entry_before, summary = LogReading(), Figures(), Figures()
    for entry in history if isinstance(history, list) else ():
        values = entry.items() if isinstance(entry, dict) else ()
        numbers = {name: number for name, value in values if (number := _number_or_none(value)) is not None}
        if not 1 <= numbers.get("step", math.nan) < 1e9:
            continue
        if "loss" in numbers:
            figures = _interval_figures(entry_before, numbers)
            if numbers["loss"] != 0:  # the mean of no loss: it leaves out what is no number
                figures["loss"] = numbers["loss"]
            reading.add_step(_TRAINER, LoggedStep(int(numbers["step"]), figures))
            entry_before = numbers
        elif "train_loss" in numbers:
            summary = numbers
    steps = list(reading.steps.get(_TRAINER, {}).values())
    if not steps:
        return None
    if any("step_seconds" in step.figures for step in steps):
        reading.notes.append("its times and tokens/s are differences between its entries")
    elif summary and all(step.figures.get("loss", 0.0) > 0 for step in steps):
        if figures := _mean_figures(steps, summary):
            steps[-1] = replace(steps[-1], figures={**steps[-1].figures, **figures})
            reading.notes.append(f"its speed is over all {summary['step']:.0f} steps, with evaluations and saves")
        else:
            reading.notes.append(f"its rates are not of its {summary['step']:.0f} steps: it was resumed or ended early")
    return ForeignLog(_TRAINER, tuple(steps), {}, tuple(dict.fromkeys(reading.notes)))


def _interval_figures(before: Figures, entry: Figures) -> Figures:
    """Return the mean step time and tokens/s of all devices between two entries that have a time."""
    steps, seconds, tokens = (
        entry.get(name, math.nan) - before.get(name, math.nan)
        for name in ("step", "train_runtime", "num_input_tokens_seen")
    )
    if not (steps > 0 and 0 < seconds < math.inf):
        return {}
    return {"step_seconds": seconds / steps, **({"tokens_per_second": tokens / seconds} if tokens > 0 else {})}


def _mean_figures(steps: list[LoggedStep], summary: Figures) -> Figures:
    """Return the mean step time and samples/s of a whole training; none where they are not those of all its steps.

    Older versions divide the planned steps by the time, also of a training that was resumed or ended early. Their mean
    loss then is the sum of the losses since the resumption, over all steps.
    """
    step, seconds, step_rate, samples_rate = (
        summary.get(name, math.nan)
        for name in ("step", "train_runtime", "train_steps_per_second", "train_samples_per_second")
    )
    if not 0 < seconds < math.inf:
        return {}
    last_steps = [0, *(logged.step for logged in steps)]
    losses = [logged.figures["loss"] for logged in steps]
    loss_sum = sum(loss * (b - a) for loss, (a, b) in zip(losses, pairwise(last_steps), strict=True))
    mean_loss = (loss_sum + losses[-1] * (step - last_steps[-1])) / step
    if not (
        abs(step / seconds - step_rate) <= _STEP_RATE_ROUNDING + _MAX_SHARE_DIFFERENCE * step_rate
        and abs(summary["train_loss"] - mean_loss) <= _MAX_SHARE_DIFFERENCE * mean_loss
    ):
        return {}
    return {"step_seconds": seconds / step, "samples_per_second": samples_rate}


# -- what a log states about the run
_ARGUMENT = re.compile(r"\b(\w{1,60}) \.{3,99} (\S{1,60})|^\s{0,20}(\w{1,60}): (\d{1,15})$")
_ARGUMENT_FACTS = {
    "seq_length": "sequence_length",
    "world_size": "devices",
    "global_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "num_nodes": "nodes",
    "num_gpus_per_node": "devices_per_node",
    "data_parallel_size": "data",
    "tensor_model_parallel_size": "tensor",
    "pipeline_model_parallel_size": "pipeline",
    "context_parallel_size": "context",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
}
_TORCHTITAN_START = re.compile(
    r"Trainer is initialized with local batch size (?P<micro_batch>\d+), global batch size (?P<global_batch>\d+), "
    r"gradient.accumulation.steps:? \d+, sequence length (?P<sequence_length>\d+)"
)
_MESH = re.compile(r"Building device mesh with parallelism: (.*)")
_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(\d{1,6})\b")
_CHIP = re.compile(r"\b(?:CUDA|XPU|HIP) capacity: (.{1,80}?) with ")


def _read_facts(text: str, reading: LogReading) -> None:
    """Store the facts of the run that a line without a step states."""
    if match := _ARGUMENT.search(text):
        name, value = match[1] or match[3], match[2] or match[4]
        if name in _ARGUMENT_FACTS:
            reading.add_fact(_ARGUMENT_FACTS[name], value)
    elif match := _TORCHTITAN_START.search(text):
        for name, value in match.groupdict().items():
            reading.add_fact(name, value)
    elif match := _MESH.search(text):
        reading.add_fact("devices", str(math.prod(int(degree) for _, degree in _DEGREE.findall(match[1]))))
    elif match := _CHIP.search(text):
        reading.add_fact("device_name", match[1])
