"""The planned time of models/* beside a bound: what the operations of a rehearsed step take at the chip's full rates.

One chip has timed a few of these plans (docs/verified/chip.md), too few to fit anything. But a rehearsal has counted
their products and messages (docs/verified/rehearsed.json), and no step is faster than these at the rates of the chip,
all of them hidden behind each other. A plan below its bound is wrong. What a plan has beyond it is named.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from levelfield.catalog.lookup import find_selection
from levelfield.catalog.registry import Registry
from levelfield.catalog.rehearsals import Rehearsals
from levelfield.plan.default_layout import LayoutTask, layout_question
from levelfield.predict.layout_search import LayoutQuestion, predict
from levelfield.predict.machines import MachineRates
from levelfield.predict.operations import ATTENTION_BACKWARD_FACTOR, BACKWARD_FACTOR, layer_forward_cost
from levelfield.predict.pass_timing import attention_kernel, rank_slice
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.specs.rehearsed_runs import RehearsedRow
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import Tuning

FRAMEWORKS = ("torch", "deepspeed", "megatron")
FREE = 1e30  # bytes/s of a memory that takes no time


@dataclass(frozen=True)
class Bounded:
    """A rehearsed row. planned, bound: seconds of a step. beyond: what the plan has more than the bound, by its cause;
    together they are the difference."""

    row: RehearsedRow
    planned: float
    bound: float
    beyond: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.planned / self.bound

    @property
    def holds(self) -> bool:
        return self.planned >= self.bound


def bounded(registry: Registry) -> list[Bounded]:
    """Return every rehearsal beside its plan of now. A change of the code since then is no change of its products."""
    return [beside(registry, row) for row in Rehearsals(registry).faults if row.framework in FRAMEWORKS]


def beside(registry: Registry, row: RehearsedRow) -> Bounded:
    selector = f"{row.case}:{row.framework}:{row.chip}:{row.nodes}:{row.devices}"
    selection = find_selection(registry, parse_selector(selector))
    question = layout_question(LayoutTask(selection, selection.case.work("full"), row.nodes, row.devices))
    assert question is not None
    tuning = row.tuning
    setup = training_setup(question.work, tuning, False, question.constants.keeping)
    planned, bound = predict(question, tuning).time.total, bound_seconds(row, setup, question)
    return Bounded(row, planned, bound, _beyond(question, tuning, planned, bound))


def bound_seconds(row: RehearsedRow, setup: TrainingSetup, question: LayoutQuestion) -> float:
    """Return the longest of what a rank computes and of what it sends and receives, as rehearsed."""
    return max(_products(row, question.machine) + _attention(setup, question), _messages(row, question.machine))


def _products(row: RehearsedRow, machine: MachineRates) -> float:
    """Return the time of all products at the rate that large ones reach on the chip."""
    return row.product_flops / machine.matmul_flops_per_second


def _attention(s: TrainingSetup, question: LayoutQuestion) -> float:
    """Return the time of attention's core in the plan's kernel, without the masked half: its FLOPs are no products of
    the rehearsal. Selective recomputation may keep the core; it is counted once."""
    machine, pace = question.machine, question.constants.pace
    passes = 1 + (BACKWARD_FACTOR if s.memory_model.score_bytes else ATTENTION_BACKWARD_FACTOR)
    rate = machine.attention.get(attention_kernel(s, machine, pace), machine.matmul_flops_per_second)
    stages = range(s.layout.pipeline)
    layers = passes * min(s.layers_of(stage) for stage in stages)
    layers += min(s.repeated_layers[stage][0] for stage in stages) if s.tuning.recompute == "full" else 0
    return layers * s.micro_batches * layer_forward_cost(s.model, rank_slice(s)).attention_flops / rate


def _messages(row: RehearsedRow, machine: MachineRates) -> float:
    """Return the time of the collectives over the fastest link. Of two ranks, a half of each tensor crosses it."""
    if machine.node is None:
        return 0.0
    crossing = (row.gathered_bytes + row.scattered_bytes) / 2 + row.all_reduced_bytes
    return crossing / machine.node.bytes_per_second


def _beyond(question: LayoutQuestion, tuning: Tuning, planned: float, bound: float) -> dict[str, float]:
    """Return what the plan has beyond the bound: the gaps of calls, then the memory's traffic, then messages and
    waiting for other stages; the rest are products and attention below the full rates."""
    pace = question.constants.pace.model_copy(update={"launch_seconds": 0.0})
    constants = question.constants.model_copy(update={"pace": pace})
    eager = replace(question, constants=constants)
    still = replace(eager, machine=replace(question.machine, memory_bytes_per_second=FREE))
    gapless, moving = predict(eager, tuning).time.total, predict(still, tuning).time
    computing = moving.compute + moving.imbalance
    return {
        "gaps of calls": planned - gapless,
        "memory traffic": gapless - moving.total,
        "messages and pipeline": moving.total - computing,
        "below the full rates": computing - bound,
    }


def bound_words(bounds: list[Bounded]) -> str:
    ratios = [plan.ratio for plan in bounds]
    share = f"{sum(plan.holds for plan in bounds)} of {len(bounds)} rehearsed plans"
    return f"{share}, median {statistics.median(ratios):.2f}, max {max(ratios):.2f}"


def bound_rows(bounds: Iterable[Bounded]) -> Iterator[list[str]]:
    causes = ("gaps of calls", "memory traffic", "messages and pipeline", "below the full rates")
    head = ("case", "framework", "chip", "devices", "layout", "micro_batch", "planned_s", "bound_s", "ratio")
    yield [*head, *causes]
    for plan in bounds:
        row, shares = plan.row, (f"{plan.beyond[cause] / plan.planned:.0%}" for cause in causes)
        cells = (row.case, row.framework, row.chip, row.nodes * row.devices, row.layout, row.micro_batch)
        yield [*map(str, cells), f"{plan.planned:.2f}", f"{plan.bound:.2f}", f"{plan.ratio:.2f}", *shares]
