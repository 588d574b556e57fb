"""The rows of a plan, as a table for a terminal and as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from levelfield.cli.asked_plan import breakdown, nothing_fits, precision_remark, remarks_on
from levelfield.measure.flops import flops_per_token
from levelfield.measure.parameter_counts import ParameterCount, parameters
from levelfield.predict.explanation import Term, memory_terms, time_terms
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, LayoutRanking
from levelfield.report.words import GIB, parameters_in_words, wrapped
from levelfield.specs.vendor import Chip, PeakDtype


@dataclass(frozen=True)
class Assumed:
    """The nodes, devices and network of a plan. remarks: assumptions where the user gave no value.

    assumes_rates: rates of another chip put the rows in an order, so that no speed is known.
    """

    nodes: int
    devices_per_node: int
    network_bytes_per_second: float | None
    remarks: tuple[str, ...]
    assumes_rates: bool = False


Rows = Sequence[LayoutEstimate]


def lines_of(
    question: LayoutQuestion,
    chip: Chip,
    place: Assumed,
    found: LayoutRanking,
    others: Rows,
    options: argparse.Namespace,
) -> Iterator[str]:
    """Yield the table in lines of 80 columns. others: rows that need what the framework does not offer."""
    capacity = f"{question.capacity_bytes / GIB:.0f} GiB each" if question.capacity_bytes else "memory unknown"
    yield f"{options.case} ({options.scale}) by {options.framework} on {place.nodes} x {place.devices_per_node}"
    yield f"{chip.name}, {capacity}; predicted, not measured"
    count = _count(question)
    yield parameters_in_words(count.total, count.active)
    remarks = [*place.remarks, *precision_remark(options.precision), *remarks_on(question)]
    yield from (wrapped(f"assumed: {remark}", 2) for remark in remarks)
    yield ""
    if not found.rows:
        yield from nothing_fits(question, found)
        yield from _beyond(question, place, found, max(options.beyond, 1 if options.layout else 0))
        yield from _not_offered(question, place, others[: options.beyond])
        return
    dtype: PeakDtype = options.precision or question.work.training.precision
    yield f"{'row':>3} {_HEAD} {'MFU':>5}"
    for number, row in enumerate(found.rows[: options.top], 1):
        yield f"{number:>3} {_cells(row, place)} {_utilisation(question, chip, place, row, dtype)}"
    yield ""
    if options.layout:
        yield from [*breakdown(found.rows[0], place.assumes_rates), ""]
    yield from _beyond(question, place, found, options.beyond)
    yield from _not_offered(question, place, others[: options.beyond])
    yield wrapped(
        f"{len(found.rows):,} of {found.considered:,} layouts fit. tokens/s is per device, GiB of the fullest device; "
        "again: what is recomputed; chunks: per pipeline stage. MFU is by formula palm, of the "
        f"{dtype} peak. --explain ROW shows the arithmetic",
        0,
    )


_HEAD = f"{'layout':<26} {'micro':>5} {'chunks':>6} {'again':<9} {'GiB':>5} {'tokens/s':>8}"


def _cells(row: LayoutEstimate, place: Assumed) -> str:
    tuning = row.tuning
    rate = "-" if place.assumes_rates else f"{row.tokens_per_second:,.0f}"
    return (
        f"{row.layout!s:<26} {tuning.micro_batch:>5} {tuning.virtual_pipeline:>6} {tuning.recompute:<9} "
        f"{row.memory.total / GIB:>5.1f} {rate:>8}"
    )


def _beyond(question: LayoutQuestion, place: Assumed, found: LayoutRanking, count: int) -> Iterator[str]:
    """Yield the rows that do not fit and need least, with what they need beyond the memory."""
    rows = found.beyond[:count]
    if not rows or question.capacity_bytes is None:
        return
    yield f"{'':>3} {_HEAD} {'over':>6}"
    for row in rows:
        yield f"{'':>3} {_cells(row, place)} {(row.memory.total - question.capacity_bytes) / GIB:>+6.1f}"
    yield ""
    if count == 1:
        yield from [*breakdown(rows[0], place.assumes_rates), ""]


def _not_offered(question: LayoutQuestion, place: Assumed, rows: Rows) -> Iterator[str]:
    """Yield the rows that need what the framework does not offer, with what that is."""
    if not rows:
        return
    yield f"{'':>3} {_HEAD} {'needs':>7}"
    for row in rows:
        lacks = question.offer.lacks(row.tuning)
        yield f"{'':>3} {_cells(row, place)} {lacks[0] if len(lacks) == 1 else 'several':>7}"
    yield wrapped(
        f"{question.constants.framework} does not offer context or expert parallelism or hybrid sharding (sharded "
        "states over a part of the data-parallel ranks) where `needs` names it: these rows are predicted and cannot "
        "run here",
        0,
    )
    yield ""


def _utilisation(question: LayoutQuestion, chip: Chip, place: Assumed, row: LayoutEstimate, dtype: PeakDtype) -> str:
    training = question.work.training
    peak = chip.peaks.get(dtype)
    if peak is None or place.assumes_rates:
        return f"{'-':>5}"
    flops = flops_per_token("palm", question.work.model, training.sequence_length)
    return f"{row.tokens_per_second * flops / (peak.tflops * 1e12):>5.1%}"


def content_of(
    question: LayoutQuestion,
    chip: Chip,
    place: Assumed,
    found: LayoutRanking,
    others: Rows,
    options: argparse.Namespace,
) -> dict[str, object]:
    """Return the rows with all parts of memory and time, for `--json`."""
    return {
        "schema": "levelfield.planned/1",
        "chip": chip.name,
        "nodes": place.nodes,
        "devices_per_node": place.devices_per_node,
        "network_bytes_per_second": place.network_bytes_per_second,
        "precision": options.precision or question.work.training.precision,
        "assumed": [*place.remarks, *precision_remark(options.precision), *remarks_on(question)],
        "capacity_bytes": question.capacity_bytes,
        "parameters": _count(question).total,
        "active_parameters": _count(question).active,
        "fitting": len(found.rows),
        "considered": found.considered,
        "nearest": _row_content(question, place, found.nearest) if found.nearest else None,
        "rows": [_row_content(question, place, row) for row in found.rows[: options.top]],
        "beyond": [_row_content(question, place, row) for row in found.beyond],
        "not_offered": [_row_content(question, place, row) for row in others[: options.beyond]],
    }


def _count(question: LayoutQuestion) -> ParameterCount:
    return parameters(question.work.model, question.work.training.sequence_length)


def _row_content(question: LayoutQuestion, place: Assumed, row: LayoutEstimate) -> dict[str, object]:
    tuning = row.tuning
    return {
        "layout": str(row.layout),
        "micro_batch": tuning.micro_batch,
        "virtual_pipeline": tuning.virtual_pipeline,
        "recompute": tuning.recompute,
        "needs_what_is_not_offered": list(question.offer.lacks(tuning)),
        "memory_bytes": row.memory.total,
        "memory_parts_bytes": row.memory.parts(),
        "step_seconds": None if place.assumes_rates else row.time.total,
        "step_parts_seconds": None if place.assumes_rates else row.time.parts(),
        "tokens_per_second_per_device": None if place.assumes_rates else row.tokens_per_second,
    }


def explained(question: LayoutQuestion, row: LayoutEstimate) -> Iterator[str]:
    """Return each part of memory and time with its numbers and the source of its formula."""
    yield f"{row.layout}, micro-batch {row.tuning.micro_batch}, recomputed: {row.tuning.recompute}"
    yield f"\nmemory of the fullest device: {row.memory.total / GIB:.2f} GiB\n"
    yield from _term_lines(memory_terms(question, row), GIB, "GiB")
    yield f"\ntime of a step: {row.time.total:.4g} s, so {row.tokens_per_second:,.1f} tokens/s on each device\n"
    yield from _term_lines(time_terms(question, row), 1, "s")


def _term_lines(terms: list[Term], unit: float, name: str) -> Iterator[str]:
    for term in terms:
        yield f"{term.part:<17} {term.value / unit:>9.3f} {name} = {term.arithmetic}"
        yield wrapped(f"    {term.words} [{term.source}]", 4)
