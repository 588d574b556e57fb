"""The search over all valid layouts of a case: the predicted memory and time of each, in order of speed."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from levelfield.predict.activations import LayerBytes, layer_bytes
from levelfield.predict.footprint import Footprint, StageStates, end_states, expected_memory
from levelfield.predict.layout_rules import broken_beside_batches, divisors, interleaves
from levelfield.predict.machines import MachineRates
from levelfield.predict.pass_timing import PassSeconds, pass_seconds
from levelfield.predict.setup import TrainingSetup, setup_of
from levelfield.predict.timing import PredictedStep, step_time
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import Refusable, refused
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Recompute, Tuning

Pass = tuple[int, int, int, bool, int, Recompute]
BEYOND = 20  # rows that do not fit to remember
# Of a sequence on a context rank. Published runs have 4,096 and more; the rates here are not made for a few tokens.
LEAST_TOKENS = 1024
PARTIAL: Refusable = "partial sharding"
RECOMPUTATIONS: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class SupportedParallelism:
    """The parallelism and recomputation that a framework supports on a device kind, and the choices that it refuses,
    in implementation.yaml's words."""

    parallelism: frozenset[str]
    recompute: tuple[Recompute, ...]
    refuses: tuple[Refusable, ...] = ()

    def lacks(self, tuning: Tuning, layers: int) -> tuple[str, ...]:
        """Return the kinds of parallelism that the fields need, with so many layers, and the framework does not offer;
        `hybrid` for sharded states over a part of the ranks."""
        parts = tuning.layout.pipeline * tuning.virtual_pipeline
        needed = (*tuning.parallelism, *(("uneven",) if layers % parts else ()))
        lacking = tuple(name for name in needed if name not in self.parallelism)
        return (*lacking, "hybrid") if tuning.layout.shards_a_part and PARTIAL in self.refuses else lacking


@dataclass(frozen=True)
class Wanted:
    """What the user asks for; None: every value. A wanted layout may have stages of unequal length, and replicated
    shards, whether the framework runs them or not."""

    layout: Layout | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    virtual_pipeline: int | None = None


@dataclass(frozen=True)
class LayoutQuestion:
    """A case on devices. capacity_bytes: of one device; None: unknown, and every layout counts as fitting."""

    work: Work
    machine: MachineRates
    constants: Constants
    offer: SupportedParallelism
    on_host: bool
    devices: int
    capacity_bytes: int | None
    wanted: Wanted = Wanted()


@dataclass(frozen=True)
class LayoutEstimate:
    """One layout and its predictions. tokens_per_second: of one device."""

    tuning: Tuning
    memory: Footprint
    fits: bool
    time: PredictedStep
    tokens_per_second: float

    @property
    def layout(self) -> Layout:
        return self.tuning.layout


@dataclass(frozen=True)
class LayoutRanking:
    """The rows that fit, fastest first. nearest: the row with the least memory, when no row fits. considered: the
    number of computed layouts; pruned: branches that were left because their smallest layout does not fit.
    beyond: the rows that need least beyond the memory, of those where branches were left, least first."""

    rows: tuple[LayoutEstimate, ...]
    nearest: LayoutEstimate | None
    considered: int
    pruned: int
    beyond: tuple[LayoutEstimate, ...] = ()


def answer(question: LayoutQuestion) -> LayoutRanking:
    """Search all layouts. A branch is left only when none of its layouts can fit, so no fitting layout is lost."""
    search = _Search(question)
    rows = search.fastest(_layouts(question))
    beyond = search.beyond()
    return LayoutRanking(
        tuple(rows), None if rows or not beyond else beyond[0], search.considered, search.pruned, beyond
    )


def not_offered(question: LayoutQuestion) -> tuple[LayoutEstimate, ...]:
    """Return the rows that fit and need context or expert parallelism, stages of unequal layers or hybrid sharding that
    the framework does not offer here, fastest first."""
    offer, layers = question.offer, question.work.model.layers
    refuses = tuple(name for name in offer.refuses if name != PARTIAL)
    uneven = {"uneven"} if "pipeline" in offer.parallelism else set()
    wider = replace(offer, parallelism=offer.parallelism | {"context", "expert"} | uneven, refuses=refuses)
    rows = _Search(replace(question, offer=wider)).fastest(_layouts(replace(question, offer=wider)))
    return tuple(row for row in rows if offer.lacks(row.tuning, layers))


def predict(question: LayoutQuestion, tuning: Tuning) -> LayoutEstimate:
    """Predict one row, whether it fits or not. Raises UnknownLink."""
    search = _Search(question)
    return search.row(search.setup(tuning))


class _Search:
    """A search. Layouts with equal tensor, context and expert ranks and micro-batch share the figures of one
    micro-batch in a layer."""

    def __init__(self, question: LayoutQuestion) -> None:
        self.question = question
        self.considered = self.pruned = 0
        self._left: list[tuple[int, int, TrainingSetup, Footprint]] = []
        self._bytes: dict[Pass, LayerBytes] = {}
        self._seconds: dict[Pass, PassSeconds] = {}
        self._sizes: dict[tuple[int, ...], list[int]] = {}  # of micro-batches, whatever is sharded
        self._states: tuple[Layout, tuple[StageStates, ...]] | None = None  # of the layout that is searched

    def fastest(self, layouts: Iterable[Layout]) -> list[LayoutEstimate]:
        """Return the rows of all layouts that fit, fastest first."""
        rows = [row for layout in layouts for row in self.rows_of(layout)]
        return sorted(rows, key=lambda row: (-row.tokens_per_second, row.memory.total))

    def rows_of(self, layout: Layout) -> Iterator[LayoutEstimate]:
        """Return the rows of a layout that fit.

        Memory grows with the micro-batch and with model chunks, and shrinks with recomputation. So the first
        micro-batch that does not fit ends its branch, and where none fits, less recomputation and more chunks end.
        """
        sizes, uneven = self._allowed(layout), _may_be_uneven(self.question)
        for chunks in _chunks(self.question, layout) if sizes else ():
            micro_batches = [n for n in sizes if interleaves(self.question.work, layout, n, chunks, uneven)]
            rows = list(self._rows_of_chunks(layout, chunks, micro_batches))
            yield from rows
            if chunks == 1 and micro_batches and not rows and self._has_enough_left():
                return

    def _rows_of_chunks(self, layout: Layout, chunks: int, micro_batches: list[int]) -> Iterator[LayoutEstimate]:
        for recompute in _recomputations(self.question):
            for n, micro_batch in enumerate(micro_batches):
                tuning = Tuning(layout=layout, micro_batch=micro_batch, recompute=recompute, virtual_pipeline=chunks)
                setup = self.setup(tuning)
                self.considered += 1
                memory = self.memory(setup)
                if not _fits(self.question, memory):
                    self.pruned += 1
                    self._left.append((memory.total, self.considered, setup, memory))
                    if n == 0 and self._has_enough_left():
                        return
                    break
                yield self.row(setup, memory)

    def _has_enough_left(self) -> bool:
        """Return whether there are rows enough for `beyond`. Until then rows that cannot fit are computed as well."""
        return len(self._left) >= BEYOND

    def _allowed(self, layout: Layout) -> list[int]:
        """Return the micro-batches that the rules and the framework allow, without the rule of chunks. A wanted layout
        is predicted for any program. What a framework refuses of a micro-batch, it refuses of each larger one."""
        work, refuses = self.question.work, self.question.offer.refuses
        key = (layout.data, layout.context, layout.expert, layout.tensor, layout.pipeline, layout.sequence_parallel)
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = _micro_batches(self.question, layout)
        if not (refuses and sizes) or self.question.wanted.layout is not None:
            return sizes
        return sizes[: bisect_left(sizes, True, key=lambda n: bool(refused(refuses, work, _plain(layout, n))))]

    def beyond(self) -> tuple[LayoutEstimate, ...]:
        """Return the rows that ended a branch and need least memory."""
        least = heapq.nsmallest(BEYOND, self._left)
        return tuple(self.row(setup, memory) for _, _, setup, memory in least)

    def setup(self, tuning: Tuning) -> TrainingSetup:
        return setup_of(self.question.work, tuning, self.question.on_host, self.question.constants.keeping)

    def memory(self, setup: TrainingSetup) -> Footprint:
        key = _pass(setup)
        layer = self._bytes.get(key)
        if layer is None:
            layer = self._bytes[key] = layer_bytes(setup)
        if self._states is None or self._states[0] is not setup.layout:
            self._states = setup.layout, end_states(setup)
        return expected_memory(setup, layer, self._states[1])

    def row(self, setup: TrainingSetup, memory: Footprint | None = None) -> LayoutEstimate:
        """Return the row with its time. memory: as `memory` returns it, if known."""
        memory = memory or self.memory(setup)
        machine, pace = self.question.machine, self.question.constants.pace_on(self.question.on_host)
        key = _pass(setup)
        each = self._seconds.get(key)
        if each is None:
            each = self._seconds[key] = pass_seconds(setup, machine, pace)
        time = step_time(setup, machine, pace, each)
        tokens = self.question.work.training.tokens_per_step / time.total / setup.layout.world_size
        return LayoutEstimate(setup.tuning, memory, _fits(self.question, memory), time, tokens)


def _plain(layout: Layout, micro_batch: int) -> Tuning:
    return Tuning(layout=layout, micro_batch=micro_batch)


def _pass(setup: TrainingSetup) -> Pass:
    """Return all that the figures of one micro-batch in a layer depend on."""
    layout, tuning = setup.layout, setup.tuning
    return (
        layout.tensor,
        layout.context,
        layout.expert,
        layout.sequence_parallel,
        tuning.micro_batch,
        tuning.recompute,
    )


def _fits(question: LayoutQuestion, memory: Footprint) -> bool:
    return question.capacity_bytes is None or memory.total <= question.capacity_bytes


def is_tight(question: LayoutQuestion, memory: Footprint) -> bool:
    """Return whether a row leaves less of a device free than the memory of a run may be from the estimate."""
    most = (1 - question.constants.keeping.uncertainty) * (question.capacity_bytes or math.inf)
    return memory.total > most


def _layouts(question: LayoutQuestion) -> Iterator[Layout]:
    """Return every division of the devices that the framework supports. _micro_batches applies the case's rules."""
    if question.wanted.layout is not None:
        yield question.wanted.layout
        return
    has = question.offer.parallelism
    for tensor in divisors(question.devices) if "tensor" in has else (1,):
        for pipeline in divisors(question.devices // tensor) if "pipeline" in has else (1,):
            ranks = question.devices // tensor // pipeline
            for context in _contexts(question, ranks):
                if context == ranks or "data" in has:
                    yield from _variants(question, tensor, pipeline, context, ranks // context)


def _contexts(question: LayoutQuestion, ranks: int) -> list[int]:
    """Return the numbers of context ranks: 1, and those that leave each rank enough tokens of a sequence."""
    most = question.work.training.sequence_length // LEAST_TOKENS
    return [n for n in divisors(ranks) if n == 1 or ("context" in question.offer.parallelism and n <= most)]


def _variants(question: LayoutQuestion, tensor: int, pipeline: int, context: int, data: int) -> Iterator[Layout]:
    has = question.offer.parallelism
    if question.work.training.global_batch % data:
        return  # _micro_batches would refuse each of them
    sequences = [False, True] if tensor > 1 and "sequence" in has else [False]
    for stage, degree in _shardings(question, tensor, data * context):
        for sequence_parallel, expert in product(sequences, _expert_ranks(question, data * context)):
            yield Layout(
                data=data,
                context=context,
                expert=expert,
                tensor=tensor,
                pipeline=pipeline,
                sequence_parallel=sequence_parallel,
                sharding_stage=stage,
                sharding_degree=degree,
            )


def _expert_ranks(question: LayoutQuestion, ranks: int) -> list[int]:
    """Return the numbers of ranks that can divide the experts: 1, and for a mixture those that divide both."""
    experts = question.work.model.experts
    if experts is None or "expert" not in question.offer.parallelism:
        return [1]
    return divisors(math.gcd(ranks, experts.count))


def _shardings(question: LayoutQuestion, tensor: int, ranks: int) -> Iterator[tuple[int, int]]:
    """Return ZeRO stages with their degrees: all ranks, or with hybrid sharding those of a node, whose links are fast.
    An asked layout may have any other degree."""
    has, inside = question.offer.parallelism, question.machine.devices_per_node // tensor
    hybrid = PARTIAL not in question.offer.refuses and 1 < inside < ranks and ranks % inside == 0
    yield 0, 1
    for stage in (1, 2, 3):
        if f"zero{stage}" in has and ranks > 1:
            yield from ((stage, degree) for degree in ((ranks, inside) if hybrid else (ranks,)))


def _chunks(question: LayoutQuestion, layout: Layout) -> list[int]:
    """Return the numbers of model chunks: 1, or every divisor of the longest stage's layers if the framework
    interleaves."""
    if question.wanted.virtual_pipeline is not None:
        return [question.wanted.virtual_pipeline]
    if layout.pipeline == 1 or "interleaved" not in question.offer.parallelism:
        return [1]
    layers, stages = question.work.model.layers, layout.pipeline
    longest = math.ceil(layers / stages) if _may_be_uneven(question) else max(1, layers // stages)
    return [chunks for chunks in divisors(longest) if chunks == 1 or chunks * stages <= layers]


def _may_be_uneven(question: LayoutQuestion) -> bool:
    """Return whether stages may differ by a layer: where the framework runs them, and in a wanted layout."""
    return question.wanted.layout is not None or "uneven" in question.offer.parallelism


def _recomputations(question: LayoutQuestion) -> tuple[Recompute, ...]:
    """Return the kinds of recomputation, the one that keeps least first."""
    asked = question.wanted.recompute
    return tuple(reversed(question.offer.recompute)) if asked is None else (asked,)


def _micro_batches(question: LayoutQuestion, layout: Layout) -> list[int]:
    """Return the micro-batches that satisfy every rule but that of chunks: divisors of a rank's sequences, smallest
    first.

    A micro-batch that shares a factor with the context is left out: with both divided by it the rank has the same
    tokens and passes, and exchanges less.
    """
    work, asked = question.work, question.wanted
    if work.training.global_batch % layout.data:
        return []
    if broken_beside_batches(work, layout, 1, question.devices, uneven_stages=_may_be_uneven(question)):
        return []
    sizes = divisors(work.training.global_batch // layout.data)
    if asked.layout is None:
        sizes = [n for n in sizes if math.gcd(n, layout.context) == 1]
    return sizes if asked.micro_batch is None else [n for n in sizes if n == asked.micro_batch]
