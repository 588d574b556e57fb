"""A step in parts as text: one run's table, and the way from one run's step to another's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from levelfield.report.escapes import one_line, printable
from levelfield.report.sheets import Sheet, align_rows
from levelfield.report.words import NONE, wrapped
from levelfield.specs.short_names import short_kernel
from levelfield.specs.step_parts import Milliseconds, PredictedStep, StepAlone, StepParts, mask_layer_number

_LARGE_SHARE = 0.05  # of the step: an unexplained part this large is shown first
_NO_DIFFERENCE = "The whole change is within the spread of the recorded steps: there may be no difference."
_MAX_PLACES, _MAX_KERNELS = 10, 5
_BAR_WIDTH = 30  # columns
Change = tuple[str, float, float, float | None]  # the part, before, after, half of the interval of the change


def step_sheets(parts: StepParts) -> Iterator[Sheet]:
    """Yield the tables of one run: parts, places, kernels, and ranks where there are several."""
    mean = parts.step.mean
    steps = "1 recorded step" if parts.recorded_steps == 1 else f"{parts.recorded_steps} recorded steps"
    heading = f"{parts.run_id}: where {mean:.2f} ms of a step go, mean of {steps}"
    yield Sheet(heading, notes=tuple(_step_notes(parts)))
    ordered = sorted(parts.parts, key=lambda row: -row.time.mean)
    # a large unexplained part is shown first
    ordered.sort(key=lambda row: not (row.part == "unexplained" and row.time.mean / mean >= _LARGE_SHARE))
    header = ("part", "ms", "95 %", "share", "recomputed", "overlapped")
    rows = [
        (
            row.part,
            f"{row.time.mean:.2f}",
            half_interval_text(row.time),
            f"{row.time.mean / mean:.1%}",
            f"{row.recompute_ms:.2f}" if row.recompute_ms else "",
            f"{row.overlapped_ms:.2f}" if row.overlapped_ms else "",
        )
        for row in ordered
    ]
    recomputed_ms = sum(row.recompute_ms for row in parts.parts)
    total = (
        "step",
        f"{mean:.2f}",
        half_interval_text(parts.step),
        "100.0%",
        f"{recomputed_ms:.2f}" if recomputed_ms else "",
        "",
    )
    used_columns = [column for column, cells in enumerate(zip(*rows, total, strict=True)) if any(cells)]
    names, *lines = (tuple(row[column] for column in used_columns) for row in (header, *rows, total))
    yield Sheet("", names, tuple(lines))
    if parts.alone is not None:
        yield _alone_sheet(parts.alone)
    if parts.planned is not None:
        yield _planned_sheet(parts.planned)
    yield Sheet("places with the most time", ("part", "place", "ms", "share"), tuple(_place_rows(parts)))
    kernels = [
        (kernel.part, short_kernel(kernel.name), kernel.kind, kernel.dtype or "", f"{kernel.ms:.2f}")
        for kernel in parts.kernels[:_MAX_KERNELS]
    ]
    yield Sheet("operations that ran", ("part", "name", "kind", "dtype", "ms"), tuple(kernels))
    if len(parts.ranks) > 1:
        yield Sheet("ranks", ("rank", "step ms", "work ms", "waits for"), tuple(_rank_rows(parts)))


def _alone_sheet(alone: StepAlone) -> Sheet:
    """Return the table of what the parts' operations take in place, alone, and at the rates of the chip."""
    rows = [
        (
            row.part,
            f"{row.in_place_ms:.2f}",
            f"{row.alone_ms:.2f}",
            "?" if row.allowed_ms is None else f"{row.allowed_ms:.2f}",
            f"{min(1.0, row.share):.0%}",
        )
        for row in sorted(alone.parts, key=lambda row: -row.in_place_ms)
    ]
    rates = [f"{name}: {source}" for name, source in (("peak", alone.peak), ("memory", alone.memory)) if source]
    missing = [f"missing: {reason}" for reason in alone.missing]
    header = ("part", "in place ms", "alone ms", "chip allows ms", "of the part")
    return Sheet("alone on the device", header, tuple(rows), (*alone.findings, *rates, *missing))


def _planned_sheet(planned: PredictedStep) -> Sheet:
    """Return the table of the planner's parts beside the measured ones; or why there are none."""
    if planned.reason is not None:
        return Sheet("", notes=(f"the planner predicts no parts: {planned.reason}",))
    rows = [
        (
            part.name,
            f"{part.measured_ms:.2f}",
            f"{part.planned_ms:.2f}",
            NONE if part.low_ms is None else f"{part.low_ms:.2f} to {part.high_ms:.2f}",
            "off" if part.is_off else "",
        )
        for part in planned.parts
    ]
    notes = [f"planner's finding: {finding}" for finding in planned.findings]
    notes.append(
        "optimizer: with gradient clipping; step: measured with what the planner does not predict, such as host, "
        "waiting and input"
    )
    if any(part.low_ms is None for part in planned.parts):
        notes.append("no published run of this kind says how far the planner may be off, so nothing is expected")
    return Sheet("beside the planner", ("part", "measured ms", "planned ms", "expected", ""), tuple(rows), tuple(notes))


def _step_notes(parts: StepParts) -> Iterator[str]:
    overhead = parts.overhead
    between = (
        "" if overhead.low is None or overhead.high is None else f" (95 %: {overhead.low:+.1%} to {overhead.high:+.1%})"
    )
    grew = "; parts with many short operations grew most" if overhead.ratio > _LARGE_SHARE else ""
    yield f"recording changed these steps by {overhead.ratio:+.1%}{between}{grew}; the window was not recorded"
    yield from (f"warning: {warning}" for warning in parts.warnings)
    for late in parts.late:
        longer = "" if late.longer_ms is None else f": {late.part} in {late.where} takes {late.longer_ms:.1f} ms more"
        yield f"others wait {late.waited_ms:.1f} ms for rank {late.rank}{longer}"
    yield from (f"missing: {reason}" for reason in parts.missing)


def half_interval_text(time: Milliseconds) -> str:
    """Return half of the 95 % interval, such as `±1.20`; nothing from one step."""
    return "" if time.high is None else f"±{time.high - time.mean:.2f}"


def _place_rows(parts: StepParts) -> Iterator[tuple[str, ...]]:
    times: defaultdict[tuple[str, str], float] = defaultdict(float)
    for rank in parts.ranks:
        for place in rank.places:
            times[place.part, mask_layer_number(place.where)] += place.ms / len(parts.ranks)
    for (part, where), ms in sorted(times.items(), key=lambda item: -item[1])[:_MAX_PLACES]:
        yield part, where, f"{ms:.2f}", f"{ms / parts.step.mean:.1%}"


def _rank_rows(parts: StepParts) -> Iterator[tuple[str, ...]]:
    for rank in parts.ranks:
        waited = sum(wait.ms for wait in rank.waited_for)
        longest = sorted(rank.waited_for, key=lambda wait: -wait.ms)[:3]
        waits = ", ".join(f"rank {wait.rank} {wait.ms:.2f} ms" for wait in longest)
        yield str(rank.rank), f"{rank.step.mean:.2f}", f"{rank.step.mean - waited:.2f}", waits


def waterfall(whole: Change, changes: Sequence[Change]) -> list[str]:
    """Return a waterfall from one step to another: a bar for each part, which begins where the one above ends."""
    _, first, last, _ = whole
    positions = list(accumulate((after - before for _, before, after, _ in changes), initial=first))
    low, high = min(last, *positions), max(last, *positions)
    scale = (_BAR_WIDTH - 1) / ((high - low) or 1.0)
    rows = [("A", f"{first:.2f}", "", _bar(low, first, low, scale))]
    for (part, before, after, _), (begin, end) in zip(changes, pairwise(positions), strict=True):
        rows.append((printable(part), "", f"{after - before:+.2f}", _bar(begin, end, low, scale)))
    rows.append(("B", f"{last:.2f}", f"{last - first:+.2f}", _bar(low, last, low, scale)))
    return align_rows(rows, right_aligned=(1, 2))


def _bar(begin: float, end: float, low: float, scale: float) -> str:
    left, right = (round((position - low) * scale) for position in sorted((begin, end)))
    return " " * left + ("#" if end >= begin else "-") * (right - left + 1)


def difference_lines(
    a: str, b: str, whole: Change, sentences: Sequence[str], explained: float, warnings: Sequence[str]
) -> list[str]:
    """Return the runs, their steps, the numbered sentences with what they explain together, and the warnings."""
    _, before, after, half = whole
    is_real = half is None or not abs(after - before) <= half
    lines = [
        f"A  {printable(a)}: {before:.2f} ms a step",
        f"B  {printable(b)}: {after:.2f} ms a step",
    ]
    lines += [wrapped(f"{number}. {one_line(printable(text))}", 3) for number, text in enumerate(sentences, start=1)]
    lines.append(f"Together they explain {explained:.0%} of the change." if is_real else _NO_DIFFERENCE)
    return [*lines, *(wrapped(one_line(printable(warning)), 3) for warning in warnings)]


def difference_sheet(rows: Sequence[Change]) -> Sheet:
    """Return the table of two runs."""
    cells = [
        (part, f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}", "" if half is None else f"±{half:.2f}")
        for part, before, after, half in rows
    ]
    return Sheet("", ("part", "A ms", "B ms", "change", "95 %"), tuple(cells))
