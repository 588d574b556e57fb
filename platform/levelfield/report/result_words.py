"""The words and figures of a result, as tables and reports show them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from levelfield.report.words import NONE, format_number, gib, significant
from levelfield.specs.run_figures import HEADLINE_FORMULA, MFU_NAME, RUN_FIGURES, RunFigure

if TYPE_CHECKING:
    from levelfield.specs.result import Alignment, Figure, Result, Utilisation

# As measure/throughput.py writes it into result.json.
_TREND = re.compile(
    r"(?P<drift>trend: step time drifts by (?P<percent>[+-]\d+\.\d)%) over the window (?P<p>\(p = [^)]*\))"
)
_LIMITS = re.compile(
    r"tolerance limit of (?P<count>\d+) rows?(?: \((?P<kinds>[^)]*)\))?(?:: the reference's noise)?(?P<source>.*)"
)
_PLURALS = {"framework": "frameworks", "layout": "layouts", "micro-batch": "micro-batches"}  # kinds of reference runs
_CHANGE = re.compile(r"(?P<shift>change point: step time shifts by [+-]\d+\.\d%)(?P<rest> at step \d+ \(p = [^)]*\))")
MAX_NODES_LISTED = 8  # in the report of one run; report.md has all


def utilisation_percent(utilisation: Utilisation | None) -> str:
    """Return a percentage such as 37.7 %, or a range such as 25.4-50.9 % for mixed fp8."""
    if utilisation is None:
        return NONE
    if utilisation.low is not None and utilisation.high is not None and utilisation.low != utilisation.high:
        return f"{utilisation.low:.1%}-{utilisation.high:.1%}".replace("%", "") + " %"
    return NONE if utilisation.value is None else f"{utilisation.value * 100:.1f} %"


def find_utilisation(result: Result, formula: str, kind: str = "MFU") -> Utilisation | None:
    """Return the result's utilisation by this formula, in any version."""
    return next((u for u in result.utilisation if u.formula.split("/")[0] == formula and u.kind == kind), None)


def first_known_memory(result: Result) -> tuple[str, float | None]:
    """Return the first known memory figure with its name, in the order device, framework, process.

    On a processor the device's is the machine's, with all other programs, and never counts.
    """
    memory = result.memory
    figures = (
        ("device used", memory.device_used_peak),
        ("reserved", memory.reserved_peak),
        ("allocated", memory.allocated_peak),
        ("process", memory.process_peak),
    )
    order = (figures[3], *figures[1:3]) if _is_host(result) else figures
    return next(((name, figure.value) for name, figure in order if figure.value is not None), (order[0][0], None))


def _is_host(result: Result) -> bool:
    from levelfield.specs.vendor import HOST_SHARE

    return result.device_is == HOST_SHARE


def headline_memory(result: Result) -> Figure:
    """Return the figure that runs are compared by: the device-used peak; on a processor the peak of the processes."""
    memory = result.memory
    return memory.process_peak if _is_host(result) else memory.device_used_peak


def memory_rows(result: Result) -> tuple[tuple[str, Figure, str], ...]:
    """Return each peak of memory with its name and what it is; on a processor the device is the whole machine."""
    memory, headline = result.memory, "peak; what runs are compared by"
    used = ("device used", memory.device_used_peak, headline)
    if _is_host(result):
        machine_peak = "peak of all programs on the machine, or in its control group; no figure of this run"
        used = ("whole machine", memory.device_used_peak, machine_peak)
    return (
        used,
        ("framework reserved", memory.reserved_peak, "peak"),
        ("framework allocated", memory.allocated_peak, "peak"),
        ("largest process", memory.process_peak, headline if _is_host(result) else "peak"),
    )


def predicted_memory_text(result: Result) -> str:
    """Return the predicted memory, and by how much the measured figure is above or below it."""
    comparison = result.memory.expectation
    predicted = gib(result.memory.expected_bytes)
    if comparison is None or comparison.ratio is None:
        return predicted
    over = f"{comparison.ratio - 1:+.0%}".replace("%", " %")
    if comparison.measured.value == first_known_memory(result)[1]:
        return f"{predicted} ({over})"
    return f"{predicted} (the {comparison.figure}, {gib(comparison.measured.value)}: {over})"


def limits_basis(stored: str) -> str:
    """Return from which runs the limits of a verdict follow: `from 11 reference run(s) (other frameworks, ...)`."""
    match = _LIMITS.fullmatch(stored)
    if match is None:
        return stored
    kinds = [kind.split(" ", 1)[1] for kind in (match["kinds"] or "").split(", ") if kind]
    names = ", ".join(_PLURALS.get(kind, kind) for kind in kinds)
    return f"from {match['count']} reference run(s){f' (other {names})' if names else ''}{match['source']}"


def peak_origin(stored: str) -> str:
    """Return where a peak is from, without the conditions of its measurement: report.md and result.json have them."""
    origin, _, conditions = stored.partition("; measured at ")
    return f"{origin}; it may be too low" if "it may be too low" in conditions else origin


def reason_without_limits(alignment: Alignment) -> str:
    """Return the reason of a verdict without the source of its limits, which is a line of its own."""
    return alignment.reason.replace(f" ({alignment.limits})", "") if alignment.limits else alignment.reason


def node_rows(result: Result) -> list[tuple[str, str]]:
    """Return how many nodes ended in which way, `1 failed, 1 stopped`, and a line for each that did not just end."""
    count_by_word = Counter(node.word or "without a known end" for node in result.machines)
    if set(count_by_word) == {"ended"}:
        lines = [f"{len(result.machines)} of {len(result.machines)} ended"]
    else:
        lines = [", ".join(f"{number} {word}" for word, number in count_by_word.items())] if count_by_word else []
    failed_nodes = [node for node in result.machines if node.word not in ("ended", "stopped", None)]
    lines += [
        f"node{n.node} ({n.name or 'no name'}) {n.word or 'unknown'}{f': {n.detail}' if n.detail else ''}"
        for n in failed_nodes[:MAX_NODES_LISTED]
    ]
    lines += [f"and {len(failed_nodes) - MAX_NODES_LISTED} more"] if len(failed_nodes) > MAX_NODES_LISTED else []
    return [("" if place else "nodes", line) for place, line in enumerate(lines)]


def flag_in_words(raw_flag: str) -> str:
    """Return the flag of step times in words. A drift is that of a fitted line, which may lose more than the median."""
    if change_point := _CHANGE.fullmatch(raw_flag):
        return f"{change_point['shift']} of the window's median{change_point['rest']}"
    trend = _TREND.fullmatch(raw_flag)
    if trend is None:
        return raw_flag
    half_drift = float(trend["percent"]) / 200
    first, last = (significant(max(0.0, end), 3) for end in (1 - half_drift, 1 + half_drift))
    return f"{trend['drift']} of its median over the window, on a line from {first} to {last} times it {trend['p']}"


def energy_lines(result: Result) -> tuple[str, ...]:
    """Return the energy of a run in lines, or why it is unknown; none where the host's processors report none."""
    energy = result.energy
    if energy.joules_per_token.value is not None:
        watts = format_number(energy.mean_watts.value)
        lines = [f"{significant(energy.joules_per_token.value)} J/token of the {energy.boundary}s, {watts} W together"]
    elif result.throughput is None or _is_host(result):
        lines = []
    else:
        lines = [f"unknown: {energy.joules_per_token.reason}"]
    if energy.nodes and energy.nodes.joules_per_token.value is not None:
        lines.append(f"{significant(energy.nodes.joules_per_token.value)} J/token of the whole nodes")
    return tuple(lines)


def pace_lines(result: Result) -> tuple[str, ...]:
    """Return a sentence for each node and rank that the others waited for."""
    if result.pace is None:
        return ()
    steps, ranks = result.pace.steps, "'s ranks"
    return tuple(
        f"{slow.name}{ranks if slow.name.startswith('node') else ''} took {slow.excess:.1%} longer before the exchange "
        f"(slowest in {slow.slowest_in} of {steps} steps); the others waited {slow.waited_seconds * 1000:,.1f} ms in "
        "each"
        for slow in result.pace.stragglers
    )


def expert_lines(result: Result) -> tuple[str, ...]:
    """Return sentences about the load of the experts and the routers' loss; none for a model without experts."""
    load = result.experts
    if load is None:
        return ()
    worst = max(load.layers, key=lambda layer: layer.imbalance)
    over = f"the {load.steps} steps of the window" if load.over == "window" else f"{load.steps} warm-up steps"
    lines = [
        f"largest load {load.imbalance:.2f} x the mean (layer {worst.layer}, over {over}), {load.imbalance_last:.2f} x "
        f"in the last recorded step; shares of layer {worst.layer}: {worst.least:.2%} to {worst.largest:.2%}, "
        f"mean {worst.mean:.2%}"
    ]
    if load.never_chosen:
        where = ", ".join(str(layer.layer) for layer in load.layers if layer.never_chosen)
        lines.append(f"never chosen: {load.never_chosen} experts (layers {where})")
    if load.auxiliary_first is not None and load.auxiliary_last is not None:
        lines.append(f"auxiliary loss {load.auxiliary_first:.4g} -> {load.auxiliary_last:.4g}")
    return tuple(lines)


def chosen_fields(result: Result) -> str:
    """Return the free fields that somebody chose, with who: `layout (command line)`; empty for base."""
    chosen = result.tuning.chosen if result.tuning else {}
    return ", ".join(f"{name} ({who})" for name, who in chosen.items())


def tuning_lines(result: Result) -> tuple[str, ...]:
    """Return `base`, or `tuned` with the chosen fields; none for a result of an earlier version."""
    if result.tuning is None:
        return ()
    word = "tuned" if result.tuning.word == "peak" else result.tuning.word  # a peak is also a chip's best rate
    return (": ".join(filter(None, (word, chosen_fields(result)))),)


def seconds_to_loss_text(result: Result) -> str:
    """Return the seconds to a loss, with the loss, such as `5.2 (2.66)`."""
    to_loss = result.to_loss
    return (
        NONE
        if to_loss is None or to_loss.seconds is None
        else f"{format_number(to_loss.seconds, 2)} ({to_loss.level:g})"
    )


def to_loss_lines(result: Result) -> tuple[str, ...]:
    """Return the time and tokens to a loss, without the steps that are not counted; none for a run without."""
    to_loss = result.to_loss
    if to_loss is None or to_loss.seconds is None:
        return ()
    return (
        f"time to loss {to_loss.level:g}: {significant(to_loss.seconds)} s, {format_number(to_loss.tokens, 0)} tokens "
        f"(after {to_loss.uncounted_steps} warm-up steps)",
    )


def status_in_words(result: Result) -> str:
    """Return how the run ended: the word, the class of a failure, and `disturbed` where others used the machine."""
    from levelfield.measure.other_use import displayed_status

    word, failure = displayed_status(result), result.status.failure
    return f"{word} ({failure})" if failure and failure != word else word


def _figure_cell(figure: RunFigure, result: Result) -> str:
    return format_number(figure.value_and_reason(result, _is_host(result))[0], figure.digits, figure.divisor)


# Of figures that a table shows with more than a number, or with fewer digits than a table of repeats.
_CELL_WRITERS: dict[str, Callable[[Result], str]] = {
    MFU_NAME: lambda r: utilisation_percent(find_utilisation(r, HEADLINE_FORMULA)),
    "memory_bytes": lambda r: gib(first_known_memory(r)[1]),
    "loss_tail_mean": lambda r: format_number(r.loss.tail_mean, 4),
    "seconds_to_loss": seconds_to_loss_text,
}
COLUMNS: dict[str, Callable[[Result], str]] = {
    "case": lambda r: r.case,
    "scale": lambda r: r.scale,
    "framework": lambda r: f"{r.framework} {r.framework_version}",
    "chip": lambda r: f"{r.nodes}x{r.devices // r.nodes} {r.chip}",
    "layout": lambda r: str(r.layout),
    "precision": lambda r: r.precision,
    "tuning": lambda r: r.tuning.word if r.tuning else NONE,
    "tuned": lambda r: chosen_fields(r) or NONE,
    "status": status_in_words,
    **{
        figure.run_column: _CELL_WRITERS.get(figure.name, partial(_figure_cell, figure))
        for figure in RUN_FIGURES
        if figure.run_column
    },
    "alignment": lambda r: r.alignment.verdict,
}
