"""The best row of a plan on each of several chips, side by side, as a table and as JSON."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from levelfield.catalog.registry import Registry
from levelfield.cli.plan_tables import bill_cells, expected, nothing_fits, plan_content, training_notes
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.layout_search import is_tight
from levelfield.report.sheets import Sheet, as_text
from levelfield.report.words import GIB, NONE, parameters_in_words
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_ERRORS, SPEED_VENDORS
from levelfield.specs.readable_json import json_text
from levelfield.specs.vendor import Chip, VendorFile
from levelfield.studies.chip_planner import ChipPlan, ChipPlanner, PlanRequest, RatioBase, chip_plan, ratio_base

_SILENT_SECONDS = 2.0  # after which each further chip is named


def print_chips(
    request: PlanRequest, registry: Registry, chips: Sequence[tuple[VendorFile, Chip]], as_json: bool
) -> None:
    """Print the best row of each chip, fastest first. Raises UsageError or LayoutError where no chip has a plan."""
    plans, refused = list[ChipPlan](), dict[str, UsageError]()
    terminal, planner, begin = Terminal(), Terminal(quiet=as_json), time.monotonic()
    for number, (vendor, chip) in enumerate(chips, 1):
        if time.monotonic() - begin > _SILENT_SECONDS:
            terminal.say(f"planning {chip.name}, {number} of {len(chips)} chips")
        try:
            plan = ChipPlanner(request, registry, vendor, chip, planner.say).plan()
        except UsageError as error:
            refused[chip.name] = error
        else:
            plans.append(chip_plan(plan))
    if not plans:
        raise next(iter(refused.values()))
    base = ratio_base(plans)
    plans.sort(key=lambda plan: plan.speed or 0, reverse=True)
    if as_json:
        print(json_text(_content(request, plans, refused, base)))
    else:
        print(as_text(_sheets(request, plans, refused, base)), end="")


def _content(
    request: PlanRequest, plans: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase
) -> dict[str, object]:
    ratios = (dict(zip(("speed_over_base", "no_ratio"), base.ratio(plan), strict=True)) for plan in plans)
    errors = (plan.plan.row_errors for plan in plans)
    rows = (
        plan_content(plan.plan, [plan.row] if plan.row else [])
        | {"error_of_such_rows": entry.middle if entry else None, "such_rows": entry.rows if entry else 0}
        for plan, entry in zip(plans, errors, strict=True)
    )
    return {
        "schema": "levelfield.planned_chips/1",
        "case": request.case,
        "framework": request.framework,
        "base": base.name,
        "chips": [row | ratio for row, ratio in zip(rows, ratios, strict=True)],
        "not_planned": [{"chip": name, "why": str(error)} for name, error in refused.items()],
    }


def _sheets(
    request: PlanRequest, plans: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase
) -> Iterator[Sheet]:
    work = plans[0].plan.question.work
    count = count_parameters(work.model, work.training.sequence_length)
    places = [f"{plan.plan.devices.nodes} x {plan.plan.devices.per_node}" for plan in plans]
    is_one_place = len(set(places)) == 1
    about = (
        f"{request.case} ({request.scale}) by {request.framework}{f' on {places[0]} devices' if is_one_place else ''}, "
        f"{parameters_in_words(count.total, count.active)}; predicted, not measured"
    )
    header = (
        "chip",
        *([] if is_one_place else ["devices"]),
        "layout",
        "micro",
        "recompute",
        "GiB",
        "tokens/s",
        "error",
        "ratio",
    )
    rows = tuple(
        (plan.name, *([] if is_one_place else [place]), *_cells(plan, base))
        for plan, place in zip(plans, places, strict=True)
    )
    yield Sheet(about, header, rows, tuple(_notes(plans, refused, base)))
    if request.tokens is not None:
        yield _training(plans, request.tokens)


def _cells(plan: ChipPlan, base: RatioBase) -> tuple[str, ...]:
    row, (ratio, _), errors = plan.row, base.ratio(plan), plan.plan.row_errors
    if row is None:
        return ("none fits", *[NONE] * 6)
    is_within = base.name is not None and plan.not_calibrated is None and base.error_beside(plan) is not None
    return (
        str(row.layout),
        str(row.tuning.micro_batch),
        str(row.tuning.recomputation),
        f"{row.memory.total / GIB:.1f}" + ("*" if is_tight(plan.plan.question, row.memory.total) else ""),
        f"{plan.speed:,.0f}" if plan.speed else NONE,
        f"{errors.middle:.0%}" if errors else NONE,
        f"{ratio:.2f}" if ratio else "within" if is_within else NONE,
    )


def _notes(plans: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase) -> Iterator[str]:
    """Yield what the figures mean and what is assumed; of several chips at once where it is the same sentence."""
    names = [plan.name for plan in plans]
    rated = [plan for plan in plans if plan.speed and plan.plan.vendor in SPEED_VENDORS]
    yield (
        "the fastest row of each chip with memory to spare (*: none has); `plan` with one chip has all rows. "
        "GiB: of the fullest device; recompute: activation checkpointing; tokens/s: per device; error: "
        "median error of published runs like the row" + (f"; ratio: over {base.name}" if base.name else "")
    )
    errors = ((plan.name, plan.plan.row_errors, plan.plan) for plan in plans if plan.row)
    yield from _grouped(
        [
            (name, f"error: of {entry.rows} run(s) by {plan.request.framework} in {plan.precision} on {plan.vendor}")
            for name, entry, plan in errors
            if entry
        ],
        names,
    )
    missing = ((plan.name, base.ratio(plan)[1]) for plan in plans)
    yield from _grouped([(name, f"no ratio: {reason}") for name, reason in missing if reason], names)
    if base.name and len(rated) > 1 and plans[0].plan.question.work.model.experts is None:
        middle, most = CHIP_RATIO_ERRORS
        vendors = " and ".join(SPEED_VENDORS)
        yield (
            f"ratios between {vendors} chips, over {CHIP_PAIRS} published pairs: median error {100 * middle:.0f} %, "
            f"max {100 * most:.0f} %"
        )
    notes = [(plan.name, sentence) for plan in plans if plan.speed for sentence in expected(plan.plan)]
    notes += [(plan.name, f"assumed: {remark}") for plan in plans for remark in plan.plan.remarks]
    notes += [(plan.name, nothing_fits(plan.plan)) for plan in plans if plan.row is None]
    notes += [(name, f"no plan: {error}") for name, error in refused.items()]
    yield from _grouped(notes, names)


def _grouped(notes: Iterable[tuple[str, str]], rows: list[str]) -> Iterator[str]:
    """Yield each sentence once, behind the names of its chips where it is not of all rows. Sentences that differ only
    in the name of their chip are one."""
    same: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, sentence in notes:
        same[sentence.replace(name, "the chip")][name] = sentence
    for shared, sentences in same.items():
        sentence = shared if len(sentences) > 1 else next(iter(sentences.values()))
        yield sentence if list(sentences) == rows else f"{', '.join(sentences)}: {sentence}"


def _training(plans: Sequence[ChipPlan], tokens: float) -> Sheet:
    """Return what a training on so many tokens takes on each chip that has a speed, with the days at both ends of the
    interval of its speed."""
    prices, rows, notes = plans[0].plan.request.prices, [], []
    header = ("chip", "days", "90 % interval", "device-hours", "MWh", *([prices.currency] if prices else []))
    for plan in plans:
        if plan.row and plan.speed:
            bill, ends = plan.plan.bill(plan.row), plan.plan.bills_at_ends(plan.row)
            days, *others = bill_cells(bill)
            between = " to ".join(bill_cells(end)[0] for end in ends) if ends else NONE
            rows.append((plan.name, days, between, *others)[: len(header)])
            notes += [(plan.name, sentence) for sentence in training_notes(plan.plan, bill)]
    heading = f"a training on {tokens:,.0f} tokens" + ("" if rows else ": no chip here has a speed")
    return Sheet(heading, header if rows else (), tuple(rows), tuple(_grouped(notes, [row[0] for row in rows])))
