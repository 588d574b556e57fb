"""The rows of a plan, as a table for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from levelfield.errors import UsageError
from levelfield.measure.cost import TrainingBill
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.explanation import Term, memory_terms, time_terms
from levelfield.predict.layout_rules import divisors
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, is_tight
from levelfield.predict.machines import ASSUMED_SOURCE
from levelfield.report.sheets import LabelledText, labelled_line, pad_row
from levelfield.report.words import GIB, NONE, parameters_in_words, significant, wrapped
from levelfield.specs.constants import SPEED_VENDORS
from levelfield.specs.readable_json import json_text
from levelfield.specs.run_figures import HEADLINE_FORMULA
from levelfield.studies.chip_planner import AnsweredPlan

_ROW_WIDTHS = (-3, 23, -5, -6, 9, -5, -8)  # of a row's number and of what every table of rows shows
_MAX_LISTED = 12  # of a list in a sentence


def plan_lines(plan: AnsweredPlan, top: int) -> Iterator[str]:
    """Yield what is planned, its first rows, and what the figures mean."""
    request, question, ranking, oom_count = plan.request, plan.question, plan.ranking, plan.request.extra_rows
    capacity = f"{question.capacity_bytes / GIB:.0f} GiB each" if question.capacity_bytes else "memory unknown"
    yield f"{request.case} ({request.scale}) by {request.framework} on {plan.devices.nodes} x {plan.devices.per_node}"
    yield f"{plan.chip.name}, {capacity}; predicted, not measured"
    parameter_count = count_parameters(question.work.model, question.work.training.sequence_length)
    yield parameters_in_words(parameter_count.total, parameter_count.active)
    yield from (wrapped(f"assumed: {remark}", 2) for remark in plan.remarks)
    yield ""
    if ranking.rows:
        rows = ranking.rows[:top]
        numbered = [(number, row, _speed_cells(plan, row)) for number, row in enumerate(rows, 1)]
        yield from (*_table(plan, "row", numbered, (" MFU,", HEADLINE_FORMULA), (-5, 8)), "")
        yield from _training_lines(plan, rows)
        yield from _breakdown_lines(plan, ranking.rows[0]) if request.constraints.layout else ()
    else:
        yield from (wrapped(no_fit_reason(plan), 2), "")
        if request.tokens is not None:
            cost = " and no cost" if request.prices else ""
            sentence = f"a training on {request.tokens:,.0f} tokens has no time{cost} here, as no layout runs it"
            yield from (wrapped(sentence, 2), "")
        oom_count = max(oom_count, 1 if request.constraints.layout else 0)
    yield from _oom_lines(plan, oom_count)
    yield from _not_offered_lines(plan)
    if ranking.rows:
        yield f"{len(ranking.rows):,} of {ranking.considered:,} layouts fit; --explain ROW shows the arithmetic"
        yield from (labelled_line(f"  {label}", text, 13) for label, text in _legend(plan, rows))


def _table(
    plan: AnsweredPlan,
    number_heading: str,
    rows: Iterable[tuple[object, LayoutEstimate, tuple[str, ...]]],
    extra_headings: tuple[str, ...],
    extra_widths: tuple[int, ...],
) -> Iterator[str]:
    """Yield a table of rows. Each is a number, the layout and the cells of the extra columns."""
    speed = "assumed" if plan.assumes_rates else "tokens/s"
    widths = (*_ROW_WIDTHS, *extra_widths)
    yield pad_row((number_heading, "layout", "micro", "VPP", "recompute", "GiB", speed, *extra_headings), widths, " ")
    for number, row, cells in rows:
        tuning = row.tuning
        choices = row.layout, tuning.micro_batch, tuning.virtual_pipeline, tuning.recomputation
        rate = f"{plan.speed_share(row):.0%}" if plan.assumes_rates else f"{row.tokens_per_second:,.0f}"
        yield pad_row((number, *choices, f"{row.memory.total / GIB:.1f}", rate, *cells), widths, " ")


def _speed_cells(plan: AnsweredPlan, row: LayoutEstimate) -> tuple[str, str]:
    """Return the MFU, and whether little memory is left free."""
    mfu = plan.mfu(row)
    return NONE if mfu is None else f"{mfu:.1%}", "tight" if is_tight(plan.question, row.memory.total) else ""


def _legend(plan: AnsweredPlan, rows: Sequence[LayoutEstimate]) -> Iterator[LabelledText]:
    """Yield what the columns mean, and the notations that these rows use."""
    if any(row.layout.sharding_stage for row in rows):
        yield "SH2SP8", "ZeRO stage 2, states sharded over 8 ranks"
    if any(row.tuning.virtual_pipeline > 1 for row in rows):
        yield "VPP", "virtual stages per pipeline stage"
    if any(row.tuning.recompute_layers for row in rows):
        yield "recompute", "activation checkpointing; `full 1`: the first layer of each virtual stage"
    yield "GiB", "of the fullest device"
    if any(is_tight(plan.question, row.memory.total) for row in rows):
        yield "tight", f"<{plan.question.constants.keeping.uncertainty:.0%} headroom, not chosen by default"
    if plan.assumes_rates:
        yield "assumed", "speed over row 1's, by assumed rates; they give no speed and no MFU"
        return
    yield "tokens/s", "; ".join(["per device", *prediction_error_lines(plan)])
    yield "program", plan.program
    yield "MFU", f"by formula {HEADLINE_FORMULA}, of the {plan.precision} peak"


def prediction_error_lines(plan: AnsweredPlan) -> Iterator[str]:
    """Yield how far published runs were from the predicted speed; nothing on a host."""
    if plan.error is None:
        return
    low, high, runs = 100 * plan.error.low, 100 * plan.error.high, plan.error.nearest_runs
    yield f"expected at {low:.0f}-{high:.0f} % of it, as the {runs} nearest published runs"
    if plan.vendor not in SPEED_VENDORS:
        yield f"{plan.vendor}: not calibrated; {plan.error.vendor_runs} of them on its chips"


def _training_lines(plan: AnsweredPlan, rows: Sequence[LayoutEstimate]) -> Iterator[str]:
    """Yield what a training on --tokens takes by each row."""
    prices = plan.request.prices
    if plan.request.tokens is None:
        return
    yield f"a training on {plan.request.tokens:,.0f} tokens"
    if plan.assumes_rates:
        yield wrapped(f"  has no time and no cost here: the speed of {plan.chip.name} is not known", 2)
    else:
        columns = ("row", "days", "device-hours", "MWh", *([prices.currency] if prices else []))
        bills = [plan.bill(row) for row in rows]
        cells = ((number, *bill_cells(bill)) for number, bill in enumerate(bills, 1))
        for row in (columns, *cells):
            yield pad_row(row[: len(columns)], (-3, -12, -16, -14, -16), " ")
        yield wrapped(_bill_interval_text(plan, rows), 2)
        yield from (wrapped(note, 2) for note in training_notes(plan, bills[0]))
    yield ""


def bill_cells(bill: TrainingBill) -> tuple[str, str, str, str]:
    """Return days, device-hours, MWh and cost."""
    hours = f"{bill.device_hours:,.0f}"
    return significant(bill.days), hours, significant(bill.megawatt_hours), significant(bill.cost)


def _bill_interval_text(plan: AnsweredPlan, rows: Sequence[LayoutEstimate]) -> str:
    """Return the intervals of the figures, by that of the speed, for the row that a default run takes."""
    row = plan.ranking.rows.prefer_margin()[0]
    if (bounds := plan.bill_bounds(row)) is None:
        return "no interval: no published run is near to this one"
    figures: dict[str, list[float | None]] = {
        "days": [bound.days for bound in bounds],
        "MWh": [bound.megawatt_hours for bound in bounds],
        plan.request.prices.currency if plan.request.prices else "": [bound.cost for bound in bounds],
    }
    intervals = ", ".join(
        f"{' to '.join(map(significant, bound_pair))} {unit}" for unit, bound_pair in figures.items() if all(bound_pair)
    )
    low, high = (end / row.tokens_per_second for end in plan.interval(row) or ())
    number = next((f"row {n}" for n, other in enumerate(rows, 1) if other == row), f"{row.layout}, not shown here")
    return f"{number}, expected: {intervals} (speed {100 * low:.0f}-{100 * high:.0f} % of the predicted)"


def training_notes(plan: AnsweredPlan, bill: TrainingBill) -> Iterator[str]:
    """Yield what the figures of a training include and where they come from."""
    from levelfield.report.costs import price_lines  # it imports numpy, which no other plan needs

    chip, prices = plan.chip, plan.request.prices
    if chip.power_watts:
        yield f"MWh: at most, {chip.power_watts:g} W for each device and no host ({chip.power_source})"
    else:
        yield f"MWh: none, as no source gives the power of {chip.name}; --chips FILE adds it"
    if prices:
        yield from (f"{prices.currency}: {price}" for price in price_lines(prices, [chip.name]))
        if bill.reason:
            yield f"{prices.currency}: none: {bill.reason}"
    yield "restarts, evaluation and checkpoints are not in it"


def _oom_lines(plan: AnsweredPlan, count: int) -> Iterator[str]:
    """Yield the rows that do not fit, from the least memory on, with what they need beyond that of the device."""
    rows, capacity = plan.ranking.overfull_rows[:count], plan.question.capacity_bytes
    if not rows or capacity is None:
        return
    excess = [("", row, (f"{(row.memory.total - capacity) / GIB:+.1f}",)) for row in rows]
    yield from (*_table(plan, "", excess, ("over",), (-6,)), "")
    if count == 1:
        yield from _breakdown_lines(plan, rows[0])


def _not_offered_lines(plan: AnsweredPlan) -> Iterator[str]:
    """Yield the rows that need what the framework does not offer, with what that is."""
    if not plan.not_offered:
        return
    missing_by_row = [(row, _missing_features(plan, row)) for row in plan.not_offered]
    rows = [("", row, (missing[0] if len(missing) == 1 else "several",)) for row, missing in missing_by_row]
    yield from _table(plan, "", rows, ("needs",), (-7,))
    yield wrapped(
        f"{plan.question.constants.framework} does not offer context or expert parallelism, stages of unequal layers "
        "(uneven) or hybrid sharding (sharded states over a part of the data-parallel ranks) where `needs` names it: "
        "these rows are predicted and cannot run here",
        0,
    )
    yield ""


def _missing_features(plan: AnsweredPlan, row: LayoutEstimate) -> tuple[str, ...]:
    return plan.question.supported.missing_parallelism(row.tuning, plan.question.work.model.layers)


def _breakdown_lines(plan: AnsweredPlan, row: LayoutEstimate) -> Iterator[str]:
    """Yield the parts of a row's memory, and of its time where the chip's rates are known."""
    memory = ", ".join(f"{name} {size / GIB:.1f}" for name, size in row.memory._asdict().items() if size)
    yield wrapped(f"GiB: {memory}".replace("_", " "), 2)
    if not plan.assumes_rates:
        time = ", ".join(f"{name} {seconds:.3g}" for name, seconds in row.time._asdict().items() if seconds)
        yield wrapped(f"seconds of a step of {row.time.total:.3g}: {time}", 2)
    yield ""


def no_fit_reason(plan: AnsweredPlan) -> str:
    """Return why no row fits: the least that one needs, or the numbers that do not divide."""
    nearest = plan.ranking.least_memory
    if nearest is None:
        return _no_layout_reason(plan.question)
    need, have = nearest.memory.total / GIB, (plan.question.capacity_bytes or 0) / GIB
    smallest = f"{nearest.layout} micro-batch {nearest.tuning.micro_batch}: {need:.1f} GiB, of {have:.1f} GiB"
    return f"no layout fits; the smallest is {smallest}"


def _no_layout_reason(question: LayoutQuestion) -> str:
    model, batch, constraints = question.work.model, question.work.training.global_batch, question.constraints
    tensor = [n for n in divisors(model.kv_heads) if not (model.heads % n or model.vocab_size % n)]
    stages = f"pipeline divides {model.layers} layers ({_number_list(divisors(model.layers))})"
    if "uneven" in question.supported.parallelism:
        stages = f"pipeline is at most {model.layers} layers"
    rows = f" with micro-batch {constraints.micro_batch}" if constraints.micro_batch else ""
    rows += f" and {constraints.virtual_pipeline} model chunks" if constraints.virtual_pipeline else ""
    return (
        f"no layout of {question.devices} devices{rows}: data x tensor x pipeline has to be {question.devices}, where "
        f"tensor divides {model.heads} heads, {model.kv_heads} key-value heads and the vocabulary of "
        f"{model.vocab_size} ({_number_list(tensor)}), {stages}, and data divides the global batch of {batch} "
        f"({_number_list(divisors(batch))}); {question.constants.framework} offers "
        f"{', '.join(sorted(question.supported.parallelism)) or 'no parallelism'}. Try another number of devices"
    )


def _number_list(numbers: list[int]) -> str:
    return ", ".join([*map(str, numbers[:_MAX_LISTED]), *(["..."] if len(numbers) > _MAX_LISTED else [])])


def plan_content(plan: AnsweredPlan, rows: Iterable[LayoutEstimate]) -> dict[str, object]:
    """Return the plan with these of its rows, for JSON."""
    work, ranking = plan.question.work, plan.ranking
    count = count_parameters(work.model, work.training.sequence_length)
    return {
        "schema": "levelfield.planned/1",
        "chip": plan.chip.name,
        "nodes": plan.devices.nodes,
        "devices_per_node": plan.devices.per_node,
        "network_bytes_per_second": plan.devices.network_bytes_per_second,
        "precision": plan.precision,
        "assumed": list(plan.remarks),
        "rates": ASSUMED_SOURCE if plan.assumes_rates else "of the chip",
        "tokens": plan.request.tokens,
        "currency": plan.request.prices.currency if plan.request.prices else None,
        "power_watts": plan.chip.power_watts,
        "power_source": plan.chip.power_source,
        "capacity_bytes": plan.question.capacity_bytes,
        "parameters": count.total,
        "active_parameters": count.active,
        "fitting": len(ranking.rows),
        "considered": ranking.considered,
        "nearest": _row_content(plan, ranking.least_memory) if ranking.least_memory else None,
        "rows": [_row_content(plan, row) for row in rows],
        "beyond": [_row_content(plan, row) for row in ranking.overfull_rows],
        "not_offered": [_row_content(plan, row) for row in plan.not_offered],
    }


def _row_content(plan: AnsweredPlan, row: LayoutEstimate) -> dict[str, object]:
    tuning, assumes_rates = row.tuning, plan.assumes_rates
    content = {
        "layout": str(row.layout),
        "micro_batch": tuning.micro_batch,
        "virtual_pipeline": tuning.virtual_pipeline,
        "recompute": tuning.recompute,
        "recompute_layers": tuning.recompute_layers,
        "needs_what_is_not_offered": list(_missing_features(plan, row)),
        "memory_bytes": row.memory.total,
        "memory_parts_bytes": row.memory._asdict(),
        "step_seconds": None if assumes_rates else row.time.total,
        "step_parts_seconds": None if assumes_rates else row.time._asdict(),
        "tokens_per_second_per_device": None if assumes_rates else row.tokens_per_second,
        "tokens_per_second_interval": plan.interval(row),
        "is_tight": is_tight(plan.question, row.memory.total),
    }
    if assumes_rates:
        content["speed_over_first_row"] = plan.speed_share(row)
    if plan.request.tokens is not None:
        bounds = plan.bill_bounds(row)
        content["training"] = None if assumes_rates else asdict(plan.bill(row))
        content["training_interval"] = None if bounds is None else [asdict(bound) for bound in bounds]
    return content


def print_arithmetic(plan: AnsweredPlan, number: int, as_json: bool) -> None:
    """Print the arithmetic of one row. Raises UsageError for a number that no row has."""
    rows = plan.ranking.rows or plan.ranking.overfull_rows
    if not 1 <= number <= len(rows):
        which = "the rows that fit" if plan.ranking.rows else "the rows that do not fit"
        raise UsageError(f"--explain {number}: expected 1 to {len(rows)}, {which}")
    question, row = plan.question, rows[number - 1]
    assumed = plan.assumed if plan.assumes_rates else ()
    if as_json:
        terms = {"memory": memory_terms(question, row), "time": time_terms(question, row)}
        content: dict[str, object] = {name: [asdict(term) for term in part] for name, part in terms.items()}
        print(json_text({**content, **({"assumed": assumed} if assumed else {})}))
    else:
        lines = arithmetic_lines(question, row, assumed=bool(assumed))
        print("\n".join([*(wrapped(f"assumed: {remark}", 2) for remark in assumed), *lines]))


def arithmetic_lines(question: LayoutQuestion, row: LayoutEstimate, assumed: bool = False) -> Iterator[str]:
    """Yield the parts of memory and time with their numbers and the sources of their formulas.

    assumed: the rates of the chip are assumed, so that no speed follows from them.
    """
    yield f"{row.layout}, micro-batch {row.tuning.micro_batch}, recomputed: {row.tuning.recomputation}"
    yield f"\nmemory of the fullest device: {row.memory.total / GIB:.2f} GiB\n"
    yield from _term_lines(memory_terms(question, row), GIB, "GiB")
    speed = "by the assumed rates" if assumed else f"so {row.tokens_per_second:,.1f} tokens/s on each device"
    yield f"\ntime of a step: {row.time.total:.4g} s, {speed}\n"
    yield from _term_lines(time_terms(question, row), 1, "s")


def _term_lines(terms: list[Term], unit_size: float, unit_name: str) -> Iterator[str]:
    for term in terms:
        yield pad_row((term.part, f"{term.value / unit_size:.3f}", f"{unit_name} = {term.arithmetic}"), (17, -9), " ")
        yield wrapped(f"    {term.words} [{term.source}]", 4)
