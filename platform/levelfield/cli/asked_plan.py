"""What the user asks of `plan` beyond case and devices, and the words for layouts that do not fit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from levelfield.errors import UsageError
from levelfield.predict.layout_rules import divisors, require
from levelfield.predict.layout_search import RECOMPUTATIONS, LayoutEstimate, LayoutQuestion, LayoutRanking, Wanted
from levelfield.report.words import GIB, wrapped
from levelfield.specs.case import Precision, Work
from levelfield.specs.constants import Constants
from levelfield.specs.layout import parse_layout
from levelfield.specs.selector import labelled, parse_selector
from levelfield.specs.tuning import Tuning

# tf32 is no precision of a case: its values have 32 bits, and only products round them.
PRECISIONS: tuple[str, ...] = (*get_args(Precision), "tf32")


def read_case(options: argparse.Namespace) -> None:
    """Put the parts of a case string into the options that they stand for. Raises UsageError for a part given twice."""
    if ":" in options.case:
        selector, parts = parse_selector(options.case), options.case.count(":") + 1
        given = {
            "case": selector.case,
            "framework": labelled(selector.framework, selector.version),
            "chip": selector.target,
            "layout": selector.layout,
            "nodes": selector.nodes if parts > 3 else None,
            "devices": selector.devices,
        }
        for name, value in given.items():
            if value is not None and name != "case" and getattr(options, name) is not None:
                raise UsageError(f"--{name}: found it in '{options.case}' too; leave one of the two out")
        vars(options).update({name: value for name, value in given.items() if value is not None})
    options.framework = options.framework or "torch"
    if options.chip is None:
        raise UsageError(f"plan {options.case}: found no chip; give --chip NAME or case:framework:chip (`show chips`)")


def work_in(work: Work, precision: str | None) -> Work:
    """Return the work in another precision, as the planner sees it; None: in its own."""
    if precision is None:
        return work
    changes = {"precision": "fp32" if precision == "tf32" else precision}
    return work.model_copy(update={"training": work.training.model_copy(update=changes)})


def asked_of(question: LayoutQuestion, options: argparse.Namespace, nodes: int) -> LayoutQuestion:
    """Return the question with the asked rows and program. Raises UsageError or LayoutError for what is impossible."""
    offer = question.offer
    if options.program:
        offer = replace(offer, recompute=RECOMPUTATIONS, refuses=())
    if options.recompute and options.recompute not in offer.recompute:
        raise UsageError(
            f"--recompute {options.recompute}: framework {question.constants.framework} offers "
            f"{', '.join(offer.recompute)}"
        )
    wanted = Wanted(
        layout=parse_layout(options.layout).layout if options.layout else None,
        micro_batch=options.micro_batch,
        recompute=options.recompute,
        virtual_pipeline=options.virtual_pipeline,
    )
    asked = replace(question, wanted=wanted, offer=offer, constants=_constants(question.constants, options))
    _require_possible(asked, nodes)
    return asked


def _constants(own: Constants, options: argparse.Namespace) -> Constants:
    if options.program is not None and options.program not in own.programs:
        known = ", ".join(own.programs) or "none"
        raise UsageError(
            f"--program {options.program}: framework {own.framework} has none of this name; known: {known}"
        )
    chosen = own.of_program(options.program) if options.program else own
    stated = {"overlap": options.overlap, "tensor_overlap": options.tensor_overlap, "attention": options.attention}
    for name in ("overlap", "tensor_overlap"):
        if stated[name] is not None and not 0 <= stated[name] <= 1:
            raise UsageError(f"--{name.replace('_', '-')}: found {stated[name]:g}, expected a share from 0 to 1")
    changes = {name: value for name, value in stated.items() if value is not None}
    return chosen.model_copy(update={"pace": chosen.pace.model_copy(update=changes)})


def _require_possible(question: LayoutQuestion, nodes: int) -> None:
    """Check an asked layout. Raises LayoutError with the broken rules and the nearest possible layouts."""
    layout, wanted = question.wanted.layout, question.wanted
    if layout is None:
        return
    batch, chunks = wanted.micro_batch or 1, wanted.virtual_pipeline or 1
    require(question.work, layout, batch, nodes, question.devices // nodes, chunks, uneven_stages=True)


def precision_remark(precision: str | None) -> Iterator[str]:
    """Yield what an asked precision means."""
    if precision == "tf32":
        yield "fp32 with products in TF32, in which no framework here trains; predicted only"
    elif precision:
        yield f"precision {precision}, whatever the case has"


def remarks_on(question: LayoutQuestion) -> Iterator[str]:
    """Yield what a mixture and an asked layout assume."""
    layout, layers = question.wanted.layout, question.work.model.layers
    if question.work.model.experts is not None:
        busiest = question.constants.pace_on(question.on_host).expert_imbalance
        yield f"the busiest expert rank has {busiest:g} x the mean's tokens; published runs lose 8 to 17 % to imbalance"
    if layout is None:
        return
    if lacks := question.offer.lacks(Tuning(layout=layout)):
        yield f"{', '.join(lacks)}, which {question.constants.framework} does not offer here; predicted only"
    if layers % layout.pipeline == 0:
        return
    less, more = divmod(layers, layout.pipeline)
    runs = "runs" if "uneven" in question.offer.parallelism else "does not run"
    stages = f"{more} stage{'s' if more > 1 else ''} of {less + 1} layers and {layout.pipeline - more} of {less}"
    yield f"{stages}; models/{question.constants.framework} {runs} them"


def breakdown(row: LayoutEstimate, assumes_rates: bool) -> Iterator[str]:
    """Yield the parts of a row's memory, and of its time where the chip's rates are known."""
    memory = ", ".join(f"{name} {size / GIB:.1f}" for name, size in row.memory.parts().items() if size)
    time = ", ".join(f"{name} {seconds:.3g}" for name, seconds in row.time.parts().items() if seconds)
    yield wrapped(f"GiB: {memory}".replace("_", " "), 2)
    if assumes_rates:
        return
    yield wrapped(f"seconds of a step of {row.time.total:.3g}: {time}", 2)


def nothing_fits(question: LayoutQuestion, found: LayoutRanking) -> Iterator[str]:
    """Yield why no row fits: the least that one needs, or the numbers that do not divide."""
    if found.nearest is None:
        yield wrapped(_what_divides(question), 0)
        return
    need, have = found.nearest.memory.total / GIB, (question.capacity_bytes or 0) / GIB
    yield "no layout fits; the smallest is"
    yield f"  {found.nearest.layout} micro-batch {found.nearest.tuning.micro_batch}: {need:.1f} GiB, of {have:.1f} GiB"
    yield ""


def _what_divides(question: LayoutQuestion) -> str:
    model, batch = question.work.model, question.work.training.global_batch
    tensor = [n for n in divisors(model.kv_heads) if not (model.heads % n or model.vocab_size % n)]
    asked = question.wanted
    rows = f" with micro-batch {asked.micro_batch}" if asked.micro_batch else ""
    rows += f" and {asked.virtual_pipeline} model chunks" if asked.virtual_pipeline else ""
    return (
        f"no layout of {question.devices} devices{rows}: data x tensor x pipeline has to be {question.devices}, where "
        f"tensor divides {model.heads} heads, {model.kv_heads} key-value heads and the vocabulary of "
        f"{model.vocab_size} ({_listed(tensor)}), pipeline divides {model.layers} layers "
        f"({_listed(divisors(model.layers))}), and data divides the global batch of {batch} "
        f"({_listed(divisors(batch))}); {question.constants.framework} offers "
        f"{', '.join(sorted(question.offer.parallelism)) or 'no parallelism'}. Try another number of devices"
    )


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(str(n) for n in numbers[:12])
    return shown if len(numbers) <= 12 else f"{shown}, ..."
