"""The search over all valid layouts of a case: the predicted memory and time of each, in order of speed."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TypeVar, overload

from levelfield.predict.activations import LayerBytes, layer_bytes
from levelfield.predict.footprint import Footprint, expected_memory, fullest_bytes, gaps, held_bytes, passing_bytes
from levelfield.predict.layout_rules import broken_beside_batches, divisors, interleaves
from levelfield.predict.machines import MachineRates
from levelfield.predict.pass_timing import PassSeconds, RankWork, pass_seconds, work_of
from levelfield.predict.setup import TrainingSetup, setup_of
from levelfield.predict.timing import (
    PredictedStep,
    StepPasses,
    WeightExchange,
    exchange_of,
    step_passes,
    step_time,
)
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import FIRST_LAYERS, Refusable, refused
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Recompute, Tuning

T = TypeVar("T")
Pass = tuple[int, int, int, bool, int, Recompute]
# Micro-batch, recomputation, model chunks, and the layers of each chunk that full recomputation repeats (None: all).
Fields = tuple[int, Recompute, int, int | None]
# A row before anybody reads it: tokens/s, negative, and bytes, which give its order; its number, layout and fields.
Found = tuple[float, int, int, Layout, Fields]
BEYOND = 20  # rows that do not fit to remember
# Recomputation repeats a forward pass beside one and a backward pass; of messages, two calls beside four.
MOST_GAIN = 1.5
FIRST_ROWS = 20  # rows that recompute the first layers only; of more, slower ones are left out
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

    @property
    def repeats_some(self) -> bool:
        """Whether full recomputation may be of the first layers only."""
        return "full" in self.recompute and FIRST_LAYERS not in self.refuses

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
    shards, whether the framework runs them or not. recompute_layers: of a wanted `full`; None: all layers."""

    layout: Layout | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    recompute_layers: int | None = None
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
class RankedRows(Sequence[LayoutEstimate]):
    """The rows of a search, fastest first. A row gets all its parts when it is read: a search finds many thousands, of
    which few are."""

    question: LayoutQuestion
    found: Sequence[Found]

    def roomy_first(self) -> RankedRows:
        """Return the rows with those first that leave the planner's margin free."""
        return RankedRows(self.question, sorted(self.found, key=lambda row: is_tight(self.question, row[1])))

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, at: int) -> LayoutEstimate: ...
    @overload
    def __getitem__(self, at: slice) -> RankedRows: ...
    def __getitem__(self, at: int | slice) -> LayoutEstimate | RankedRows:
        if isinstance(at, slice):
            return RankedRows(self.question, self.found[at])
        *_, layout, fields = self.found[at]
        return predict(self.question, _tuning(layout, fields))


@dataclass(frozen=True)
class LayoutRanking:
    """The rows that fit, fastest first. nearest: the row with the least memory, when no row fits. considered: the
    number of computed layouts. beyond: the rows that need least beyond the memory, of those where branches were left,
    least first."""

    rows: RankedRows
    nearest: LayoutEstimate | None
    considered: int
    beyond: tuple[LayoutEstimate, ...] = ()


def answer(question: LayoutQuestion) -> LayoutRanking:
    """Search all layouts. A branch is left only when none of its layouts can fit, so no fitting layout is lost."""
    search = _Search(question)
    rows = search.with_first_layers(search.fastest(_layouts(question)))
    beyond = search.beyond()
    return LayoutRanking(rows, None if rows or not beyond else beyond[0], search.considered, beyond)


def not_offered(question: LayoutQuestion) -> RankedRows:
    """Return the rows that fit and need context or expert parallelism, stages of unequal layers or hybrid sharding that
    the framework does not offer here, fastest first."""
    offer, layers = question.offer, question.work.model.layers
    refuses = tuple(name for name in offer.refuses if name != PARTIAL)
    uneven = {"uneven"} if "pipeline" in offer.parallelism else set()
    wider = replace(offer, parallelism=offer.parallelism | {"context", "expert"} | uneven, refuses=refuses)
    asked = replace(question, offer=wider)
    rows = _Search(asked).fastest(_layouts(asked))
    return RankedRows(asked, [row for row in rows.found if offer.lacks(_tuning(*row[3:]), layers)])


def predict(question: LayoutQuestion, tuning: Tuning) -> LayoutEstimate:
    """Predict one row, whether it fits or not. Raises UnknownLink."""
    setup = setup_of(question.work, tuning, question.on_host, question.constants.keeping)
    memory = expected_memory(setup)
    time = step_time(setup, question.machine, question.constants.pace_on(question.on_host))
    speed = question.work.training.tokens_per_step / time.total / tuning.layout.world_size
    return LayoutEstimate(tuning, memory, _fits(question, memory.total), time, speed)


Sizes = list[tuple[int, list[int]]]  # micro-batches, for each number of model chunks


@dataclass
class _Shared:
    """The figures that the rows of a layout are sums of, and share with those of others: the bytes that come and go on
    its stages by fields, and the passes of a step by the fields that change them."""

    layout: Layout
    passing: dict[Fields, tuple[int, ...]]
    steps: dict[Fields, StepPasses]
    states: _States


@dataclass
class _States:
    """What a rank holds, and how weights are exchanged; None: not yet computed."""

    held: tuple[tuple[int, int], ...] | None = None
    exchange: WeightExchange | None = None


class _Search:
    """A search. A row is a sum of figures, each of which many rows share: of a layer, of the stages' activations and
    passes, of a rank's states, and of the exchange of weights. Each figure is computed once."""

    def __init__(self, question: LayoutQuestion) -> None:
        self.question = question
        self.considered = 0
        self._left: list[tuple[int, int, Layout, Fields]] = []
        self._recomputations = _recomputations(question)
        self._gaps = gaps(question.constants.keeping, question.on_host)
        self._pace = question.constants.pace_on(question.on_host)
        self._tokens = question.work.training.tokens_per_step
        self._sizes: dict[tuple[int, ...], Sizes] = {}  # whatever is sharded
        self._bytes: dict[Pass, LayerBytes] = {}
        self._seconds: dict[Pass, PassSeconds] = {}
        self._passing: dict[tuple[int, ...], dict[Fields, tuple[int, ...]]] = {}
        self._steps: dict[tuple[int, ...], dict[Fields, StepPasses]] = {}
        self._states: dict[tuple[int, ...], _States] = {}

    def fastest(self, layouts: Iterable[Layout]) -> RankedRows:
        """Return the rows of all layouts that fit, fastest first."""
        return RankedRows(self.question, sorted(found for layout in layouts for found in self.rows_of(layout)))

    def rows_of(self, layout: Layout) -> Iterator[Found]:
        """Return the rows of a layout that fit.

        Memory grows with the micro-batch and with model chunks, and shrinks with recomputation. So the first
        micro-batch that does not fit ends its branch, and where none fits, less recomputation and more chunks end, but
        for programs whose plain stages have buffers that chunks do without (receives_all).
        """
        sizes = self._allowed(layout)
        if not sizes:
            return
        shared = self._shared(layout)
        for chunks, micro_batches in sizes:
            rows = self._rows_of_chunks(shared, chunks, micro_batches)
            yield from rows
            grows = not self.question.constants.keeping.receives_all
            if grows and chunks == 1 and micro_batches and not rows and self._has_enough_left():
                return

    def _rows_of_chunks(self, shared: _Shared, chunks: int, micro_batches: list[int]) -> list[Found]:
        layout = shared.layout
        rows: list[Found] = []
        for recompute in self._recomputations:
            for n, micro_batch in enumerate(micro_batches):
                fields = micro_batch, recompute, chunks, self.question.wanted.recompute_layers
                self.considered += 1
                total = self._total_bytes(shared, fields)
                if not _fits(self.question, total):
                    self._left.append((total, self.considered, layout, fields))
                    if n == 0 and self._has_enough_left():
                        return rows
                    break
                rows.append((-self._speed(shared, fields), total, self.considered, layout, fields))
        return rows

    def with_first_layers(self, rows: RankedRows) -> RankedRows:
        """Return the rows with further ones, in which the first layers only are computed again.

        A row whose layers are all computed again may have room to keep some of them. Its further row has the least
        layers that leave the planner's margin free. It is no faster than without recomputation, so that bound ends
        the search.
        """
        asked, offer = self.question.wanted.recompute, self.question.offer
        if asked is not None or not offer.repeats_some or self.question.capacity_bytes is None:
            return rows
        found: list[Found] = []
        roomy = (-row[0] for row in rows.found if not is_tight(self.question, row[1]))
        fastest = list(islice(roomy, FIRST_ROWS))
        for speed, total, _, layout, fields in rows.found:
            least = fastest[-1] if len(fastest) == FIRST_ROWS else 0.0
            if -speed * MOST_GAIN < least:
                break
            if fields[1] != "full" or is_tight(self.question, total):
                continue
            shared = self._shared(layout)
            may_be_faster = self._speed(shared, _without(fields)) > least
            if may_be_faster and (more := self._with_least_layers(shared, fields)):
                found.append(more)
                fastest = sorted((*fastest, -more[0]), reverse=True)[:FIRST_ROWS]
        return RankedRows(self.question, sorted((*rows.found, *found))) if found else rows

    def _with_least_layers(self, shared: _Shared, fields: Fields) -> Found | None:
        """Return the row with the least layers that leaves the margin free; None where that is none, or all."""
        micro_batch, recompute, chunks, _ = fields
        parts = shared.layout.pipeline * chunks
        longest = math.ceil(self.question.work.model.layers / parts)

        def is_roomy(layers: int) -> bool:
            tried = (micro_batch, recompute, chunks, layers) if layers else _without(fields)
            return not is_tight(self.question, self._total_bytes(shared, tried))

        layers = bisect_left(range(longest), True, key=is_roomy)
        if layers in (0, longest):
            return None
        self.considered += 1
        more: Fields = micro_batch, recompute, chunks, layers
        total = self._total_bytes(shared, more)
        return -self._speed(shared, more), total, self.considered, shared.layout, more

    def _speed(self, shared: _Shared, fields: Fields) -> float:
        return self._tokens / self._time(shared, fields).total / self.question.devices

    def _has_enough_left(self) -> bool:
        """Return whether there are rows enough for `beyond`. Until then rows that cannot fit are computed as well."""
        return len(self._left) >= BEYOND

    def _allowed(self, layout: Layout) -> Sizes:
        """Return the micro-batches that the rules and the framework allow. A wanted layout is predicted for any
        program. What a framework refuses of a micro-batch, it refuses of each larger one, and what of two chunks, of
        more."""
        work, refuses = self.question.work, self.question.offer.refuses
        key = (layout.data, layout.context, layout.expert, layout.tensor, layout.pipeline, layout.sequence_parallel)
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = _sizes(self.question, layout)
        if not (refuses and sizes) or self.question.wanted.layout is not None:
            return sizes
        every = sorted({n for _, micro_batches in sizes for n in micro_batches})

        def is_refused(micro_batch: int, chunks: int = 1) -> bool:
            return bool(refused(refuses, work, Tuning(layout=layout, micro_batch=micro_batch, virtual_pipeline=chunks)))

        runs = every[: bisect_left(every, True, key=is_refused)]
        if not runs:
            return []
        most = 1 if layout.pipeline > 1 and is_refused(runs[0], chunks=2) else max(chunks for chunks, _ in sizes)
        return [(chunks, [n for n in batches if n in runs]) for chunks, batches in sizes if chunks <= most]

    def beyond(self) -> tuple[LayoutEstimate, ...]:
        """Return the rows that ended a branch and need least memory."""
        least = heapq.nsmallest(BEYOND, self._left)
        return tuple(predict(self.question, _tuning(layout, fields)) for _, _, layout, fields in least)

    def _shared(self, layout: Layout) -> _Shared:
        stages = layout.data, layout.context, layout.tensor, layout.pipeline
        divided, sharded = layout.sequence_parallel, (layout.sharding_stage, layout.sharding_degree)
        return _Shared(
            layout,
            self._passing.setdefault((*stages, divided), {}),
            self._steps.setdefault((*stages, divided, layout.expert), {}),
            self._states.setdefault((*stages, layout.expert, *sharded), _States()),
        )

    def _total_bytes(self, shared: _Shared, fields: Fields) -> int:
        """Return the bytes of the fullest stage."""
        passing = shared.passing.get(fields)
        if passing is None:
            setup = _setup(self.question, shared.layout, fields)
            passing = shared.passing[fields] = passing_bytes(setup, _once(self._bytes, setup, layer_bytes))
        if shared.states.held is None:
            shared.states.held = held_bytes(_setup(self.question, shared.layout, fields))
        return fullest_bytes(shared.states.held, passing, self._gaps)

    def _time(self, shared: _Shared, fields: Fields) -> PredictedStep:
        micro_batch, recompute, chunks, layers = fields
        key = fields if layers else (micro_batch, recompute, 1, None)  # where all layers are alike, chunks are too
        passes, exchange = shared.steps.get(key), shared.states.exchange
        if passes is None or exchange is None:
            work = self._work(shared, fields)
            each = self._pass_seconds(work)
            plain = self._pass_seconds(self._work(shared, _without(fields))) if layers else None
            passes = shared.steps[key] = passes or step_passes(work, each, plain)
            exchange = shared.states.exchange = exchange or exchange_of(work)
        return exchange.added_to(passes, chunks)

    def _work(self, shared: _Shared, fields: Fields) -> RankWork:
        return work_of(_setup(self.question, shared.layout, fields), self.question.machine, self._pace)

    def _pass_seconds(self, work: RankWork) -> PassSeconds:
        return _once(self._seconds, work.setup, lambda _: pass_seconds(work))


def _once(known: dict[Pass, T], setup: TrainingSetup, figure: Callable[[TrainingSetup], T]) -> T:
    """Return the figure of one micro-batch in a layer, computed once for all setups in which it is the same."""
    key = _pass(setup)
    if key not in known:
        known[key] = figure(setup)
    return known[key]


def _setup(question: LayoutQuestion, layout: Layout, fields: Fields) -> TrainingSetup:
    return setup_of(question.work, _tuning(layout, fields), question.on_host, question.constants.keeping)


def _tuning(layout: Layout, fields: Fields) -> Tuning:
    micro_batch, recompute, chunks, layers = fields
    return Tuning(
        layout=layout,
        micro_batch=micro_batch,
        recompute=recompute,
        recompute_layers=layers,
        virtual_pipeline=chunks,
    )


def _without(fields: Fields) -> Fields:
    """Return the same fields without recomputation."""
    micro_batch, _, chunks, _ = fields
    return micro_batch, "none", chunks, None


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


def _fits(question: LayoutQuestion, total_bytes: int) -> bool:
    return question.capacity_bytes is None or total_bytes <= question.capacity_bytes


def is_tight(question: LayoutQuestion, total_bytes: int) -> bool:
    """Return whether a row leaves less of a device free than the memory of a run may be from the estimate."""
    most = (1 - question.constants.keeping.uncertainty) * (question.capacity_bytes or math.inf)
    return total_bytes > most


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


def _sizes(question: LayoutQuestion, layout: Layout) -> Sizes:
    """Return the micro-batches that satisfy every rule, by model chunks."""
    sizes, uneven = _micro_batches(question, layout), _may_be_uneven(question)
    return [
        (chunks, [n for n in sizes if interleaves(question.work, layout, n, chunks, uneven)])
        for chunks in (_chunks(question, layout) if sizes else ())
    ]


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
