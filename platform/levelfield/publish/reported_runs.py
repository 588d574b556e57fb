"""A foreign log as a reported run: its figures in SI units, each with its origin, or absent with the reason.

Tokens/s of a device is printed, or computed where all that it takes is printed or given. Two ways to it that disagree
show a unit mixed up (ms for s, a device for all of them, tokens for samples): then there is none. So does the log's
clock, a printed FLOP/s that the case's model cannot have, and a speed above the chip's peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from levelfield.compare.published_rows import RATE, peak_excess
from levelfield.measure.flops import flops_per_token
from levelfield.publish.foreign_logs import FEW_LOSSES, ForeignLog, LoggedStep
from levelfield.publish.log_files import LogFile
from levelfield.specs.base import parse
from levelfield.specs.case import Work
from levelfield.specs.reported import FigureName, ReportedFigure, ReportedRow
from levelfield.specs.run_figures import HEADLINE_FORMULA
from levelfield.specs.vendor import Chip

NOT_PRINTED = "the log prints none"
MAX_RATE_DIFFERENCE = 0.05  # of two ways to one rate; a mixed-up unit makes 2 times and more
# The median time of a step between two lines, or the mean in MLPerf's blocks, over the printed one. Evaluations lie
# between few lines.
_CLOCK_RATIO = (0.85, 1.5)
# samples/s of the last steps over that of the whole training, in whose time evaluations are.
_WHOLE_TRAINING_RATIO = (0.85, 3.0)
_MIN_STEP_SECONDS = 0.002  # one step launches hundreds of kernels, of microseconds each
_MIN_TICKS = 10  # of the log's clock, in a time that is held against the printed one
# FLOP of a token over the case's by PaLM. Tools count attention and recomputation differently.
_FLOPS_RATIO = (0.5, 2.0)
_DEGREE_LETTERS = (("data", "DP"), ("tensor", "TP"), ("pipeline", "PP"), ("context", "CP"))
_WHOLE_NUMBERS = ("devices", "micro_batch", "global_batch", "sequence_length")


def reported_row(
    file: LogFile, user_facts: Mapping[str, Any], work: Work | None = None, chip: Chip | None = None
) -> ReportedRow:
    """Return the run of a log. user_facts: fields that the user states, where the log does not.

    work, chip: of the case and the chip that the user names. Raises ValueError where the log prints another value
    than is given, and DocumentError for a value that cannot be.
    """
    log = file.log
    facts = _row_facts(log)
    for name, value in user_facts.items():
        if facts.get(name, value) != value:
            raise ValueError(f"found {name} {facts[name]} in the log, expected {value} as given")
    added = tuple(name for name in user_facts if name not in facts)
    facts |= user_facts
    _, since = _missing_losses(log)
    trained = [step for step in log.steps if since is None or step.step < since] or log.steps  # not what diverged
    # the second half, without the slow first steps; of blocks between evaluations all, as published rates are made
    window = trained if _block_sums(trained) else trained[len(trained) // 2 :]
    batch, *others = {step.figures.get("global_batch") for step in window}  # several while it is raised
    facts.setdefault("global_batch", int(batch) if batch and not others and batch == int(batch) else None)
    degrees = [f"{letters}{log.stated[name]}" for name, letters in _DEGREE_LETTERS if name in log.stated]
    content = {
        **{name: facts.get(name) for name in ("case", "framework", "chip", *_WHOLE_NUMBERS, "precision")},
        "name": file.name[:200],
        "format": log.format,
        "sha256": file.sha256,
        "layout": "".join(degrees)[:60] or None,
        "given": added,
        "steps": (window[0].step, window[-1].step),
        "lines": len(window),
        "figures": dict(_reported_figures(log, window, facts, work, chip)),
        "notes": (*log.notes, *_loss_notes(log)),
    }
    return parse(ReportedRow, content, file.name)


def _row_facts(log: ForeignLog) -> dict[str, Any]:
    """Return what the log states, as fields of a row."""
    stated, facts = log.stated, dict[str, Any]()
    for name in (*_WHOLE_NUMBERS, "nodes", "devices_per_node"):
        if (text := stated.get(name)) is not None:
            if not (text.isascii() and text.isdigit() and 1 <= int(text) < 10**12):
                raise ValueError(f"found {name} {text[:40]!r}, expected a whole number above 0")
            facts[name] = int(text)
    nodes, devices_per_node = facts.pop("nodes", None), facts.pop("devices_per_node", None)
    if nodes and devices_per_node:
        facts.setdefault("devices", nodes * devices_per_node)
    if framework := stated.get("framework") or (None if log.format == "MLPerf" else log.format):
        facts["framework"] = framework
    # by the arguments of Megatron and OneFlow
    precisions = (name for name in ("fp8", "bf16", "fp16") if stated.get(name, "None") not in ("None", "False"))
    if precision := stated.get("precision") or next(precisions, None):
        facts["precision"] = precision
    return facts


def _window_median(window: Sequence[LoggedStep], name: str) -> float | None:
    """Return the median over the window. None where no line has the figure; NaN where one is not above zero."""
    values = [step.figures[name] for step in window if name in step.figures]
    if not all(0 < value < float("inf") for value in values):
        return float("nan")
    return median(values) if values else None


def _block_sums(window: Sequence[LoggedStep]) -> tuple[float, float] | None:
    """Return the samples and the seconds of the blocks that end in the window; None without one."""
    blocks = [step.figures for step in window if "block_samples" in step.figures]
    if not blocks:
        return None
    return sum(block["block_samples"] for block in blocks), sum(block["block_seconds"] for block in blocks)


def _reported_figures(
    log: ForeignLog, window: Sequence[LoggedStep], facts: Mapping[str, Any], work: Work | None, chip: Chip | None
) -> Iterator[tuple[FigureName, ReportedFigure]]:
    yield RATE, _token_rate(log, window, facts, work, chip)
    for name in ("samples_per_second", "step_seconds"):
        yield name, _printed_figure(_window_median(window, name))
    flops = _printed_figure(_window_median(window, "flops_per_second_per_device"))
    fault = peak_excess(flops.value, chip, facts.get("precision")) if flops.value and chip else None
    yield "flops_per_second", _absent_figure(fault) if fault else flops
    memory = [step.figures["memory_bytes"] for step in log.steps if "memory_bytes" in step.figures]
    is_sound = all(0 < value < float("inf") for value in memory)
    yield "memory_bytes", _printed_figure((max(memory) if is_sound else float("nan")) if memory else None)
    losses = [step.figures["loss"] for step in log.steps if "loss" in step.figures]
    yield "first_loss", _printed_figure(losses[0] if losses else None)
    _, since = _missing_losses(log)
    last = _printed_figure(losses[-1] if losses else None)
    yield "last_loss", last if since is None else _absent_figure(f"the log prints no loss from step {since} on")


def _absent_figure(reason: str) -> ReportedFigure:
    return ReportedFigure(value=None, how=reason)


def _printed_figure(value: float | None) -> ReportedFigure:
    if value is None:
        return _absent_figure(NOT_PRINTED)
    if not abs(value) < float("inf"):
        return _absent_figure("the log prints a value that is no number above zero")
    return ReportedFigure(value=value, how="printed")


def _token_rate(
    log: ForeignLog, window: Sequence[LoggedStep], facts: Mapping[str, Any], work: Work | None, chip: Chip | None
) -> ReportedFigure:
    rates = list(_computed_rates(window, facts))
    if not rates:
        names = {name for step in window for name in step.figures}
        if not names & {"tokens_per_second", "samples_per_second", "block_samples", "step_seconds"}:
            return _absent_figure("the log prints no rate and no step time")
        needs = ["devices"]
        if "tokens_per_second" not in names:
            has_samples = names & {"samples_per_second", "block_samples"}
            needs = ["sequence_length", "devices", *([] if has_samples else ["global_batch"])]
        return _absent_figure(f"the log does not print {', '.join(name for name in needs if not facts.get(name))}")
    for value, _ in rates:
        if not 0 < value < float("inf"):
            return _absent_figure("the log has a rate or a step time that is no number above zero")
    (rate, how), *others = rates
    # blocks have pauses, which a printed rate leaves out
    low, high = _CLOCK_RATIO if _block_sums(window) else (1 - MAX_RATE_DIFFERENCE, 1 + MAX_RATE_DIFFERENCE)
    for other, other_how in others:
        if not low <= other / rate <= high:
            both_rates = f"found {rate:,.6g} tokens/s per device ({how}) and {other:,.6g} ({other_how})"
            factor = max(rate / other, 1 / (rate / other))
            return _absent_figure(f"{both_rates}, {factor:.4g} times apart: a unit is mixed up")
    fault = next(_rate_faults(log, window, facts, rate, work, chip), None)
    return _absent_figure(fault) if fault else ReportedFigure(value=rate, how=how)


def _computed_rates(window: Sequence[LoggedStep], facts: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    """Yield tokens/s of a device, with how it is computed, in each way that the log allows."""
    if (printed := _window_median(window, RATE)) is not None:
        yield printed, "printed"
    length, devices, batch = (facts.get(name) for name in ("sequence_length", "devices", "global_batch"))
    if devices and (tokens := _window_median(window, "tokens_per_second")) is not None:
        yield tokens / devices, f"computed: {tokens:.6g} tokens/s printed / {devices} devices"
    if not (length and devices):
        return
    blocks = _block_sums(window)
    sample_rates = (blocks and blocks[0] / blocks[1], _window_median(window, "samples_per_second"))
    for samples, words in zip(sample_rates, ("by the log's clock", "printed"), strict=True):
        if samples is not None:
            how = f"computed: {samples:.6g} samples/s {words} x {length} / {devices} devices"
            yield samples * length / devices, how
    seconds = _window_median(window, "step_seconds")
    if seconds is not None and batch:
        yield batch * length / seconds / devices, f"computed: {batch} x {length} / {seconds:.6g} s / {devices} devices"


def _rate_faults(
    log: ForeignLog,
    window: Sequence[LoggedStep],
    facts: Mapping[str, Any],
    rate: float,
    work: Work | None,
    chip: Chip | None,
) -> Iterator[str]:
    """Yield what contradicts the rate, in tokens/s of a device.

    It may be the log's own clock, or its rate over the whole training. It may be a printed FLOP/s far from what the
    case's model needs for these tokens, or a need of more FLOP/s than the chip can compute.
    """
    length, devices, batch = (facts.get(name) for name in ("sequence_length", "devices", "global_batch"))
    seconds = _window_median(window, "step_seconds")
    if seconds is None and length and devices and batch:
        seconds = batch * length / devices / rate
    blocks = [step.figures["block_samples"] for step in window if "block_samples" in step.figures]
    if blocks and length and batch and not any(samples % (length * batch) for samples in blocks):
        yield f"found blocks of multiples of {length} x {batch} samples: tokens may stand for samples"
    if seconds is not None and seconds < _MIN_STEP_SECONDS:
        yield f"found {seconds:.3g} s of a step, less than any training needs: tokens may stand for samples"
    clock = None if seconds is None else _step_seconds_by_clock(window, seconds)
    if clock is not None and seconds is not None:
        measured, error = clock
        if not (_CLOCK_RATIO[0] * seconds <= measured + error and measured - error <= _CLOCK_RATIO[1] * seconds):
            timing = f"{measured:.4g} s by the times of the lines"
            yield f"found {seconds:.4g} s of a step, and {timing}: a unit is mixed up, or the speed is too high"
    stated_rate = log.stated.get("samples_per_second_of_training")
    samples = _window_median(window, "samples_per_second")
    if (
        stated_rate is not None
        and samples
        and not (_WHOLE_TRAINING_RATIO[0] <= samples / float(stated_rate) <= _WHOLE_TRAINING_RATIO[1])
    ):
        yield f"found {samples:.4g} samples/s of the last steps and {float(stated_rate):.4g} of all: a unit is mixed up"
    if work is None:
        return
    length = length or work.training.sequence_length
    if (device_flops_rate := _window_median(window, "flops_per_second_per_device")) is not None:
        expected = flops_per_token("palm", work.model, length)
        if not _FLOPS_RATIO[0] <= device_flops_rate / rate / expected <= _FLOPS_RATIO[1]:
            both = f"found {device_flops_rate / 1e12:.4g} TFLOP/s and {rate:,.6g} tokens/s per device"
            yield f"{both}: {device_flops_rate / rate:.3g} FLOP a token, and the case's model needs {expected:.3g}"
    if chip is not None:
        # what is multiplied at least: of long sequences PaLM's formula counts twice the attention of a causal kernel
        flops = rate * flops_per_token(HEADLINE_FORMULA, work.model, length)
        if fault := peak_excess(flops, chip, facts.get("precision")):
            yield f"found {rate:,.6g} tokens/s per device, {fault}: the time, the device count or the chip is wrong"


def _step_seconds_by_clock(window: Sequence[LoggedStep], printed_seconds: float) -> tuple[float, float] | None:
    """Return the median time of a step between two lines, and its error, in seconds; None for fewer than two times.

    The lines are so far apart that the clock shows their printed time to a tenth, where there are as many.
    """
    timed = [step for step in window if step.epoch_seconds is not None]
    if len(timed) < 2:
        return None
    tick = max(step.resolution_seconds for step in timed)
    spans = (timed[n].step - timed[0].step for n in range(1, len(timed)))
    apart = next((n for n, span in enumerate(spans, 1) if span * printed_seconds >= _MIN_TICKS * tick), len(timed) - 1)
    pairs = list(zip(timed, timed[apart:], strict=False))
    times = [((b.epoch_seconds or 0) - (a.epoch_seconds or 0)) / (b.step - a.step) for a, b in pairs]
    return median(times), tick / min(b.step - a.step for a, b in pairs)


def _loss_notes(log: ForeignLog) -> Iterator[str]:
    """Yield what a reader needs to know about the steps of a log."""
    lost, since = _missing_losses(log)
    if since is not None:
        yield f"no number as loss from step {since} on: the training diverged, or does not print it"
    elif lost:
        yield f"no number as loss at {len(lost)} step(s), first at step {lost[0]}"
    if skipped := sum(step.figures.get("skipped", 0) > 0 for step in log.steps):
        yield f"the optimizer skipped steps in {skipped} of {len(log.steps)} lines"
    if len(epochs := {step.figures.get("epoch") for step in log.steps}) > 1:
        yield f"{len(epochs)} epochs, whose steps are counted on from one to the next"


def _missing_losses(log: ForeignLog) -> tuple[list[int], int | None]:
    """Return the steps whose lines lack a finite loss, and the step from which on no line has one.

    The second is None where the last lines have theirs.
    """
    printed = {step.step for step in log.steps if abs(step.figures.get("loss", float("inf"))) < float("inf")}
    lost = sorted(step for step, loss in log.losses.items() if loss is not None and step not in printed)
    if not printed:
        lost = [] if log.format in FEW_LOSSES else [step.step for step in log.steps]
    last = max(printed, default=-1)
    return lost, min((step for step in lost if step > last), default=None)
