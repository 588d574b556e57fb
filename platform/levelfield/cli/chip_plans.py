"""The best plan row of each of several chips, side by side, as a table or as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from levelfield.catalog.registry import Registry
from levelfield.cli.plan_tables import bill_cells, no_fit_reason, plan_content, prediction_error_lines, training_notes
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.layout_search import is_tight
from levelfield.report.sheets import Sheet, format_text
from levelfield.report.words import GIB, NONE, parameters_in_words
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_ERRORS, SPEED_VENDORS
from levelfield.specs.readable_json import json_text
from levelfield.specs.vendor import Chip, VendorFile
from levelfield.studies.chip_planner import ChipPlan, ChipPlanner, PlanRequest, RatioBase, chip_plan, ratio_base

_SILENT_SECONDS = 2.0  # without progress messages; from then on each chip is announced


def print_chip_plans(
    request: PlanRequest, registry: Registry, chips: Sequence[tuple[VendorFile, Chip]], is_json: bool
) -> None:
    """Print the best row of each chip, fastest first. Raises UsageError or LayoutError where no chip has a plan."""
    plans, refusals = list[ChipPlan](), dict[str, UsageError]()
    terminal, planner_terminal, start_seconds = Terminal(), Terminal(quiet=is_json), time.monotonic()
    for number, (vendor, chip) in enumerate(chips, 1):
        if time.monotonic() - start_seconds > _SILENT_SECONDS:
            terminal.say(f"planning {chip.name}, {number} of {len(chips)} chips")
        try:
            plan = ChipPlanner(request, registry, vendor, chip, planner_terminal.say).plan()
        except UsageError as error:
            refusals[chip.name] = error
        else:
            plans.append(chip_plan(plan))
    if not plans:
        raise next(iter(refusals.values()))
    base = ratio_base(plans)
    # Those whose speeds published runs set come first: the others have no rank.
    plans.sort(key=lambda plan: (plan.not_calibrated_reason is None, plan.speed or 0), reverse=True)
    if is_json:
        print(json_text(_plans_json(request, plans, refusals, base)))
    else:
        print(format_text(_sheets(request, plans, refusals, base)), end="")


def _plans_json(
    request: PlanRequest, plans: Sequence[ChipPlan], refusals: Mapping[str, UsageError], base: RatioBase
) -> dict[str, object]:
    ratios = (dict(zip(("speed_over_base", "no_ratio"), base.ratio(plan), strict=True)) for plan in plans)
    errors = (plan.plan.error for plan in plans)
    rows = (
        plan_content(plan.plan, [plan.row] if plan.row else [])
        | {
            "error_of_such_rows": error.median_error if error else None,
            "such_rows": error.same_runs if error else 0,
        }
        for plan, error in zip(plans, errors, strict=True)
    )
    return {
        "schema": "levelfield.planned_chips/1",
        "case": request.case,
        "framework": request.framework,
        "base": base.chip_name,
        "chips": [row | ratio for row, ratio in zip(rows, ratios, strict=True)],
        "not_planned": [{"chip": name, "why": str(error)} for name, error in refusals.items()],
    }


def _sheets(
    request: PlanRequest, plans: Sequence[ChipPlan], refusals: Mapping[str, UsageError], base: RatioBase
) -> Iterator[Sheet]:
    work = plans[0].plan.question.work
    count = count_parameters(work.model, work.training.sequence_length)
    device_grids = [f"{plan.plan.devices.nodes} x {plan.plan.devices.per_node}" for plan in plans]
    is_one_grid = len(set(device_grids)) == 1
    devices = f" on {device_grids[0]} devices" if is_one_grid else ""
    heading = (
        f"{request.case} ({request.scale}) by {request.framework} in {plans[0].plan.precision}{devices}, "
        f"{parameters_in_words(count.total, count.active)}, sequences of {work.training.sequence_length:,} tokens, "
        f"global batch {work.training.global_batch:,}; predicted, not measured"
    )
    header = (
        "chip",
        *([] if is_one_grid else ["devices"]),
        "layout",
        "micro",
        "recompute",
        "GiB",
        "tokens/s",
        "error",
        "ratio",
    )
    rows = tuple(
        (plan.chip_name, *([] if is_one_grid else [device_grid]), *_cells(plan, base))
        for plan, device_grid in zip(plans, device_grids, strict=True)
    )
    yield Sheet(heading, header, rows, tuple(_notes(plans, refusals, base)))
    if request.tokens is not None:
        yield _training_sheet(plans, request.tokens)


def _cells(plan: ChipPlan, base: RatioBase) -> tuple[str, ...]:
    row, (ratio, _), error = plan.row, base.ratio(plan), plan.plan.median_error
    if row is None:
        return ("none fits", *[NONE] * 6)
    is_within_error = (
        base.chip_name is not None and plan.not_calibrated_reason is None and base.error_beside(plan) is not None
    )
    return (
        str(row.layout),
        str(row.tuning.micro_batch),
        str(row.tuning.recomputation),
        f"{row.memory.total / GIB:.1f}" + ("*" if is_tight(plan.plan.question, row.memory.total) else ""),
        f"{plan.speed:,.0f}" if plan.speed else NONE,
        NONE if error is None else f"{error:.0%}",
        f"{ratio:.2f}" if ratio else "within" if is_within_error else NONE,
    )


def _notes(plans: Sequence[ChipPlan], refusals: Mapping[str, UsageError], base: RatioBase) -> Iterator[str]:
    """Yield what the figures mean and what is assumed, with one sentence for all chips of which it is true."""
    names = [plan.chip_name for plan in plans]
    calibrated_plans = [plan for plan in plans if plan.speed and plan.plan.vendor in SPEED_VENDORS]
    is_starred = any(plan.row and is_tight(plan.plan.question, plan.row.memory.total) for plan in plans)
    yield (
        f"the fastest row of each chip with memory to spare{' (*: none has)' if is_starred else ''}; `plan` with one "
        "chip has all rows. "
        "GiB: of the fullest device; recompute: activation checkpointing; tokens/s: per device; error: "
        "median error of published runs like the row" + (f"; ratio: over {base.chip_name}" if base.chip_name else "")
    )
    errors = ((plan.chip_name, plan.plan.error, plan.plan) for plan in plans if plan.row)
    yield from _merge_notes(
        [
            (
                name,
                f"error: of {error.same_runs} run(s) by {plan.request.framework} in {plan.precision} on {plan.vendor}",
            )
            for name, error, plan in errors
            if error and error.same_runs
        ],
        names,
    )
    missing_ratios = ((plan.chip_name, base.ratio(plan)[1]) for plan in plans)
    yield from _merge_notes([(name, f"no ratio: {reason}") for name, reason in missing_ratios if reason], names)
    if base.chip_name and len(calibrated_plans) > 1 and plans[0].plan.question.work.model.experts is None:
        median_error, max_error = CHIP_RATIO_ERRORS
        vendors = " and ".join(SPEED_VENDORS)
        yield (
            f"ratios between {vendors} chips, over {CHIP_PAIRS} published pairs: "
            f"median error {100 * median_error:.0f} %, max {100 * max_error:.0f} %"
        )
    notes = [
        (plan.chip_name, sentence) for plan in plans if plan.speed for sentence in prediction_error_lines(plan.plan)
    ]
    notes += [(plan.chip_name, f"assumed: {remark}") for plan in plans for remark in plan.plan.remarks]
    notes += [(plan.chip_name, no_fit_reason(plan.plan)) for plan in plans if plan.row is None]
    notes += [(name, f"no plan: {error}") for name, error in refusals.items()]
    yield from _merge_notes(notes, names)


def _merge_notes(notes: Iterable[tuple[str, str]], all_names: list[str]) -> Iterator[str]:
    """Yield each sentence once, after the names of its chips unless it is true of all.

    notes: pairs of a chip's name and a sentence. Sentences that differ only in the name of the chip are merged.
    """
    merged: defaultdict[str, dict[str, str]] = defaultdict(dict)  # sentences by chip, by their common wording
    for name, sentence in notes:
        merged[sentence.replace(name, "the chip")][name] = sentence
    for common, sentences in merged.items():
        sentence = common if len(sentences) > 1 else next(iter(sentences.values()))
        yield sentence if list(sentences) == all_names else f"{', '.join(sentences)}: {sentence}"


def _training_sheet(plans: Sequence[ChipPlan], tokens: float) -> Sheet:
    """Return what a training on `tokens` takes on each chip that has a speed.

    The interval of the days is that of the speed.
    """
    prices, rows, notes = plans[0].plan.request.prices, [], []
    header = ("chip", "days", "expected", "device-hours", "MWh", *([prices.currency] if prices else []))
    for plan in plans:
        if plan.row and plan.speed:
            bill, end_bills = plan.plan.bill(plan.row), plan.plan.bill_bounds(plan.row)
            days, *others = bill_cells(bill)
            days_interval = " to ".join(bill_cells(end)[0] for end in end_bills) if end_bills else NONE
            rows.append((plan.chip_name, days, days_interval, *others)[: len(header)])
            notes += [(plan.chip_name, sentence) for sentence in training_notes(plan.plan, bill)]
    heading = f"a training on {tokens:,.0f} tokens" + ("" if rows else ": no chip here has a speed")
    return Sheet(heading, header if rows else (), tuple(rows), tuple(_merge_notes(notes, [row[0] for row in rows])))
