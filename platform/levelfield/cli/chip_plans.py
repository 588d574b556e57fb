"""The best row of a plan on each of several chips, side by side, as a table and as JSON."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from levelfield.catalog.registry import Registry
from levelfield.cli.plan_question import AnsweredPlan, ChipPlanner
from levelfield.cli.plan_tables import (
    bill_cells,
    bills_at_ends,
    expected,
    nothing_fits,
    plan_content,
    planned_bill,
    training_notes,
)
from levelfield.cli.terminal import Terminal
from levelfield.errors import UsageError
from levelfield.measure.cost import TrainingBill
from levelfield.measure.parameter_counts import parameters
from levelfield.predict.layout_search import LayoutEstimate, is_tight
from levelfield.report.sheets import Sheet, as_text
from levelfield.report.words import GIB, NONE, parameters_in_words
from levelfield.specs.constants import CHIP_PAIRS, CHIP_RATIO_OFF, SPEED_VENDORS
from levelfield.specs.readable_json import json_text
from levelfield.specs.vendor import Chip, VendorFile

_SILENT_SECONDS = 2.0  # after which each further chip is named


@dataclass(frozen=True)
class ChipPlan:
    """A plan, and its fastest row that leaves memory free, else its fastest; None where no layout fits."""

    plan: AnsweredPlan
    row: LayoutEstimate | None

    @property
    def name(self) -> str:
        return self.plan.chip.name

    @property
    def speed(self) -> float | None:
        """Tokens/s of a device; None where no layout fits, and where the chip's rates are not known."""
        return None if self.row is None or self.plan.assumes_rates else self.row.tokens_per_second

    @property
    def not_calibrated(self) -> str | None:
        """Why the speed is in no ratio; None where published runs on chips of this vendor set the rates."""
        vendor = self.plan.vendor
        return None if vendor in SPEED_VENDORS else f"{vendor}: not calibrated; error unknown"


@dataclass(frozen=True)
class RatioBase:
    """What the speeds are divided by: the first chip. why: there is none, as no published run shows its error."""

    chip: ChipPlan
    why: str | None

    @property
    def name(self) -> str | None:
        """The first chip's name; None where nothing is divided by its speed."""
        return None if self.why or not self.chip.speed else self.chip.name

    def ratio(self, each: ChipPlan) -> float | None:
        """Return the speed of a chip over that of the first; None with the reason of `why_none`."""
        return None if self.why_none(each) or not (each.speed and self.chip.speed) else each.speed / self.chip.speed

    def why_none(self, each: ChipPlan) -> str | None:
        """Return why a speed has no ratio; None where it has one, and where there is no speed."""
        if not each.speed:
            return None
        return each.not_calibrated or self.why


def print_chips(options: argparse.Namespace, registry: Registry, chips: Sequence[tuple[VendorFile, Chip]]) -> None:
    """Print the best row of each chip, fastest first. Raises UsageError or LayoutError where no chip has a plan."""
    found, refused = list[ChipPlan](), dict[str, UsageError]()
    terminal, begin = Terminal(), time.monotonic()
    for number, (vendor, chip) in enumerate(chips, 1):
        if time.monotonic() - begin > _SILENT_SECONDS:
            terminal.say(f"planning {chip.name}, {number} of {len(chips)} chips")
        try:
            plan = ChipPlanner(options, registry, vendor, chip).plan()
        except UsageError as error:
            refused[chip.name] = error
        else:
            found.append(ChipPlan(plan, next(iter(plan.ranking.rows.roomy_first()), None)))
    if not found:
        raise next(iter(refused.values()))
    first = next((each for each in found if each.speed or each.not_calibrated), found[0])
    why = first.not_calibrated
    base = RatioBase(first, f"{first.name}, the first chip, is of {why}" if why else None)
    found.sort(key=lambda each: each.speed or 0, reverse=True)
    if options.json:
        print(json_text(_content(options, found, refused, base)))
    else:
        print(as_text(_sheets(options, found, refused, base)), end="")


def _content(
    options: argparse.Namespace, found: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase
) -> dict[str, object]:
    chips = [
        {
            **plan_content(each.plan, [each.row] if each.row else []),
            "speed_over_base": base.ratio(each),
            "no_ratio": base.why_none(each),
        }
        for each in found
    ]
    return {
        "schema": "levelfield.planned_chips/1",
        "case": options.case,
        "framework": options.framework,
        "base": base.name,
        "chips": chips,
        "not_planned": [{"chip": name, "why": str(error)} for name, error in refused.items()],
    }


def _sheets(
    options: argparse.Namespace, found: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase
) -> Iterator[Sheet]:
    first = found[0].plan
    model, training = first.question.work.model, first.question.work.training
    count = parameters(model, training.sequence_length)
    places = {_place(each) for each in found}
    devices = f" on {places.pop()} devices" if len(places) == 1 else ""
    about = (
        f"{options.case} ({options.scale}) by {options.framework}{devices}, "
        f"{parameters_in_words(count.total, count.active)}; predicted, not measured"
    )
    header = ("chip", *([] if devices else ["devices"]), "layout", "micro", "again", "GiB", "tokens/s", "ratio")
    yield Sheet(
        about,
        header,
        tuple((each.name, *([] if devices else [_place(each)]), *_cells(each, base)) for each in found),
        tuple(_notes(found, refused, base)),
    )
    if first.tokens is not None:
        yield _training(found, first.tokens)


def _place(each: ChipPlan) -> str:
    return f"{each.plan.devices.nodes} x {each.plan.devices.per_node}"


def _cells(each: ChipPlan, base: RatioBase) -> tuple[str, ...]:
    row, over = each.row, base.ratio(each)
    if row is None:
        return ("none fits", *[NONE] * 5)
    return (
        str(row.layout),
        str(row.tuning.micro_batch),
        str(row.tuning.recomputation),
        f"{row.memory.total / GIB:.1f}" + ("*" if is_tight(each.plan.question, row.memory.total) else ""),
        f"{each.speed:,.0f}" if each.speed else NONE,
        f"{over:.2f}" if over else NONE,
    )


def _notes(found: Sequence[ChipPlan], refused: Mapping[str, UsageError], base: RatioBase) -> Iterator[str]:
    """Yield what the figures mean and what is assumed; of several chips at once where it is the same sentence."""
    rated = [each for each in found if each.speed and each.plan.vendor in SPEED_VENDORS]
    yield (
        "the fastest row of each chip that leaves memory free (* where none does); `plan` with one chip has all rows. "
        "GiB: of the fullest device; again: what is recomputed; tokens/s: of one device"
        + (f"; ratio: over {base.name}" if base.name else "")
    )
    yield from _grouped(
        [(each.name, f"no ratio: {why}") for each in found if (why := base.why_none(each))],
        [each.name for each in found],
    )
    if base.name and len(rated) > 1 and found[0].plan.question.work.model.experts is None:
        middle, most = CHIP_RATIO_OFF
        makers = " and ".join(SPEED_VENDORS)
        yield (
            f"planned ratios of {CHIP_PAIRS} pairs of {makers} chips were off from published ones by {middle:.0%} in "
            f"the middle and {most:.0%} at most"
        )
    said = [(each.name, sentence) for each in found if each.speed for sentence in expected(each.plan)]
    said += [(each.name, f"assumed: {remark}") for each in found for remark in each.plan.remarks]
    said += [(each.name, nothing_fits(each.plan)) for each in found if each.row is None]
    said += [(name, f"no plan: {error}") for name, error in refused.items()]
    yield from _grouped(said, [each.name for each in found])


def _grouped(said: Iterable[tuple[str, str]], rows: list[str]) -> Iterator[str]:
    """Yield each sentence once, behind the names of its chips where it is not of all rows. Sentences that differ only
    in the name of their chip are one."""
    same: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, sentence in said:
        same[sentence.replace(name, "the chip")][name] = sentence
    for shared, own in same.items():
        sentence = shared if len(own) > 1 else next(iter(own.values()))
        yield sentence if list(own) == rows else f"{', '.join(own)}: {sentence}"


def _training(found: Sequence[ChipPlan], tokens: float) -> Sheet:
    """Return what a training on so many tokens takes on each chip that has a speed."""
    known = [(each, planned_bill(each.plan, each.row)) for each in found if each.row and each.speed]
    prices = found[0].plan.prices
    header = ("chip", "days", "in 90 of 100 runs", "device-hours", "MWh", *([prices.currency] if prices else []))
    rows = tuple(_bill_row(each, bill)[: len(header)] for each, bill in known)
    said = ((each.name, sentence) for each, bill in known for sentence in training_notes(each.plan, bill))
    heading = f"a training on {tokens:,.0f} tokens" + ("" if known else ": no chip here has a speed")
    return Sheet(heading, header if known else (), rows, tuple(_grouped(said, [each.name for each, _ in known])))


def _bill_row(each: ChipPlan, bill: TrainingBill) -> tuple[str, ...]:
    """Return the cells of a training, with the days at both ends of the interval of its speed."""
    ends = bills_at_ends(each.plan, each.row) if each.row else None
    days, *others = bill_cells(bill)
    return each.name, days, " to ".join(bill_cells(end)[0] for end in ends) if ends else NONE, *others
