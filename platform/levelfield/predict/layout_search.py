"""The search over all valid layouts of a case: the predicted memory and time of each, in order of speed."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product, takewhile
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, overload

from levelfield.predict.activations import layer_bytes
from levelfield.predict.footprint import Footprint, constant_bytes, expected_memory, stage_transients
from levelfield.predict.layout_rules import broken_layout_rules, can_interleave, divisors
from levelfield.predict.machines import MachineRates
from levelfield.predict.pass_timing import PassSeconds, RankWork, pass_seconds, rank_work
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.predict.timing import PredictedStep, StepPasses, predicted_step, step_passes, weight_exchange
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.implementation import RECOMPUTE_FIRST_LAYERS, Refusable, refused_choices
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Recompute, Tuning

T = TypeVar("T")
MicroBatchSizes = list[tuple[int, list[int]]]  # micro-batches, smallest first, for each number of model chunks
# How many rows that do not fit a search remembers. Until it has so many, it also computes rows that cannot fit.
MAX_OVERFULL_ROWS = 20
# Recomputation repeats a forward pass beside one and a backward pass; of messages, two calls beside four.
MAX_RECOMPUTE_GAIN = 1.5
MAX_FIRST_LAYER_ROWS = 20  # of the rows that recompute the first layers only: slower ones are left out
# Of a sequence on a context rank. Published runs have 4,096 and more; the rates here are not made for a few tokens.
MIN_CONTEXT_TOKENS = 1024
PARTIAL_SHARDING: Refusable = "partial sharding"
RECOMPUTATIONS: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class SupportedParallelism:
    """The parallelism and recomputation that a framework supports on a device kind, and the choices that it refuses,
    in implementation.yaml's words."""

    parallelism: frozenset[str]
    recompute: tuple[Recompute, ...]
    refusals: tuple[Refusable, ...] = ()

    @property
    def can_repeat_first_layers(self) -> bool:
        """Whether full recomputation may be of the first layers only."""
        return "full" in self.recompute and RECOMPUTE_FIRST_LAYERS not in self.refusals

    def missing_parallelism(self, tuning: Tuning, layers: int) -> tuple[str, ...]:
        """Return the kinds of parallelism that the fields need, with so many layers, and the framework does not offer;
        `hybrid` for sharded states over a part of the ranks."""
        parts = tuning.layout.pipeline * tuning.virtual_pipeline
        needed = (*tuning.parallelism, *(("uneven",) if layers % parts else ()))
        lacking = tuple(name for name in needed if name not in self.parallelism)
        return (
            (*lacking, "hybrid") if tuning.layout.is_hybrid_sharded and PARTIAL_SHARDING in self.refusals else lacking
        )


@dataclass(frozen=True)
class SearchConstraints:
    """What the user asks for; None: every value. A layout that the user asks for may have stages of unequal length, and
    replicated shards, whether the framework runs them or not."""

    layout: Layout | None = None
    micro_batch: int | None = None
    recompute: Recompute | None = None
    recompute_layers: int | None = None  # of `full`; None: all layers
    virtual_pipeline: int | None = None


@dataclass(frozen=True)
class LayoutQuestion:
    """A case on devices."""

    work: Work
    machine: MachineRates
    constants: Constants
    supported: SupportedParallelism
    on_host: bool
    devices: int
    capacity_bytes: int | None  # of one device; None: unknown, and every layout counts as fitting
    constraints: SearchConstraints = SearchConstraints()

    def fits(self, total_bytes: int) -> bool:
        return self.capacity_bytes is None or total_bytes <= self.capacity_bytes


def is_tight(question: LayoutQuestion, total_bytes: int) -> bool:
    """Return whether a row leaves less of a device free than the memory of a run may be from the estimate."""
    max_bytes = (1 - question.constants.keeping.uncertainty) * (question.capacity_bytes or math.inf)
    return total_bytes > max_bytes


@dataclass(frozen=True)
class LayoutEstimate:
    """One layout and its predictions."""

    tuning: Tuning
    memory: Footprint
    fits: bool
    time: PredictedStep
    tokens_per_second: float  # of one device

    @property
    def layout(self) -> Layout:
        return self.tuning.layout


def predict(question: LayoutQuestion, tuning: Tuning) -> LayoutEstimate:
    """Predict one row, whether it fits or not. Raises UnknownLink."""
    setup = training_setup(question.work, tuning, question.on_host, question.constants.keeping)
    memory = expected_memory(setup)
    time = predicted_step(setup, question.machine, question.constants.pace_on(question.on_host))
    speed = question.work.training.tokens_per_step / time.total / tuning.layout.world_size
    return LayoutEstimate(tuning, memory, question.fits(memory.total), time, speed)


class RowChoices(NamedTuple):
    """What a row chooses beside its layout."""

    micro_batch: int
    recompute: Recompute
    chunks: int  # of a pipeline stage
    recompute_layers: int | None = None  # how many first layers of each chunk `full` repeats; None: all

    def without_recomputation(self) -> RowChoices:
        return RowChoices(self.micro_batch, "none", self.chunks)

    def tuning(self, layout: Layout) -> Tuning:
        return Tuning(
            layout=layout,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            recompute_layers=self.recompute_layers,
            virtual_pipeline=self.chunks,
        )


PLAIN_CHOICES = RowChoices(1, "none", 1)  # for figures that the choices of a row do not change


class OverfullRow(NamedTuple):
    """A row that does not fit. No search computes its speed."""

    layout: Layout
    choices: RowChoices
    total_bytes: int


class RankedRow(NamedTuple):
    """A row that fits, without its parts."""

    layout: Layout
    choices: RowChoices
    total_bytes: int
    tokens_per_second: float  # of one device


def fastest_first(rows: Iterable[RankedRow]) -> list[RankedRow]:
    """Return the rows by falling speed. Of equally fast rows that with the least memory is first, then the earlier."""
    return sorted(sorted(rows, key=attrgetter("total_bytes")), key=attrgetter("tokens_per_second"), reverse=True)


@dataclass(frozen=True)
class RankedRows(Sequence[LayoutEstimate]):
    """The rows of a search, fastest first. A row gets its parts when it is read: few of many thousands are."""

    question: LayoutQuestion
    ranked: Sequence[RankedRow]

    def prefer_margin(self) -> RankedRows:
        """Return the rows with those first that leave the planner's margin free."""
        return RankedRows(self.question, sorted(self.ranked, key=lambda row: is_tight(self.question, row.total_bytes)))

    def __len__(self) -> int:
        return len(self.ranked)

    @overload
    def __getitem__(self, index: int) -> LayoutEstimate: ...
    @overload
    def __getitem__(self, index: slice) -> RankedRows: ...
    def __getitem__(self, index: int | slice) -> LayoutEstimate | RankedRows:
        if isinstance(index, slice):
            return RankedRows(self.question, self.ranked[index])
        row = self.ranked[index]
        return predict(self.question, row.choices.tuning(row.layout))


@dataclass(frozen=True)
class LayoutRanking:
    """The result of a search."""

    rows: RankedRows  # those that fit, fastest first
    considered: int  # how many rows were computed
    # Of the rows that ended a branch, as they do not fit: those with the least memory, least first.
    overfull_rows: tuple[LayoutEstimate, ...]

    @property
    def least_memory(self) -> LayoutEstimate | None:
        """The row with the least memory, where none fits."""
        return None if self.rows or not self.overfull_rows else self.overfull_rows[0]


def search_layouts(question: LayoutQuestion) -> LayoutRanking:
    """Search all layouts. A branch is left only when none of its layouts can fit, so no fitting layout is lost."""
    search = _Search(question)
    rows = RankedRows(question, search.add_first_layer_rows(search.fastest()))
    nearest = heapq.nsmallest(MAX_OVERFULL_ROWS, search.overfull, key=attrgetter("total_bytes"))
    overfull_rows = tuple(predict(question, row.choices.tuning(row.layout)) for row in nearest)
    return LayoutRanking(rows, search.considered, overfull_rows)


def unsupported_rows(question: LayoutQuestion) -> RankedRows:
    """Return the rows that fit and need context or expert parallelism, stages of unequal layers or hybrid sharding that
    the framework does not offer here, fastest first."""
    supported, layers = question.supported, question.work.model.layers
    refusals = tuple(name for name in supported.refusals if name != PARTIAL_SHARDING)
    uneven = {"uneven"} if "pipeline" in supported.parallelism else set()
    parallelism = supported.parallelism | {"context", "expert"} | uneven
    wider_question = replace(question, supported=replace(supported, parallelism=parallelism, refusals=refusals))
    rows = _Search(wider_question).fastest()
    return RankedRows(
        wider_question, [row for row in rows if supported.missing_parallelism(row.choices.tuning(row.layout), layers)]
    )


class _LayoutFigures:
    """The memory and the speed of the rows of one layout: sums of figures that many rows of a search share."""

    def __init__(self, search: _Search, layout: Layout) -> None:
        self._search, self.layout = search, layout
        ranks = layout.data, layout.context, layout.tensor, layout.pipeline
        self._weight_key = (*ranks, layout.expert, layout.sharding_stage, layout.sharding_degree)
        self._transient_bytes: dict[RowChoices, tuple[int, ...]]
        self._passes: dict[tuple[object, ...], StepPasses]
        self._transient_bytes = search.cached(("transient bytes", *ranks, layout.sequence_parallel), dict)
        self._passes = search.cached(("passes", *ranks, layout.sequence_parallel, layout.expert), dict)
        self._constant_bytes = search.cached(
            ("constant bytes", *self._weight_key), lambda: constant_bytes(self._rank_work(PLAIN_CHOICES).setup)
        )

    def total_bytes(self, choices: RowChoices) -> int:
        """Return the bytes of the fullest stage."""
        transient_bytes = self._transient_bytes.get(choices)
        if transient_bytes is None:
            setup = self._rank_work(choices).setup
            layer = self._search.cached(("layer bytes", *_layer_key(setup)), lambda: layer_bytes(setup))
            transient_bytes = tuple(sum(stage_transients(setup, stage, layer)) for stage in setup.critical_stages)
            self._transient_bytes[choices] = transient_bytes
        stages, gap_share = zip(self._constant_bytes, transient_bytes, strict=True), self._search.fragmentation
        return max(
            stored + transient + int(gap_share * (transient + buffers)) for (stored, buffers), transient in stages
        )

    def tokens_per_second(self, choices: RowChoices) -> float:
        """Return the speed of one device. Raises UnknownLink."""
        key = choices if choices.recompute_layers else choices[:2]  # where all layers are alike, so are chunks of them
        passes = self._passes.get(key)
        if passes is None:
            work, unrepeated = self._rank_work(choices), None
            if choices.recompute_layers is not None:
                unrepeated = self._pass_seconds(self._rank_work(choices.without_recomputation()))
            passes = self._passes[key] = step_passes(work, self._pass_seconds(work), unrepeated)
        exchange = self._search.cached(
            ("exchange", *self._weight_key), lambda: weight_exchange(self._rank_work(PLAIN_CHOICES))
        )
        step = exchange.predict_step(passes, choices.chunks)
        return self._search.tokens_per_step / step.total / self._search.question.devices

    def _pass_seconds(self, work: RankWork) -> PassSeconds:
        return self._search.cached(("layer seconds", *_layer_key(work.setup)), lambda: pass_seconds(work))

    def _rank_work(self, choices: RowChoices) -> RankWork:
        question = self._search.question
        setup = training_setup(question.work, choices.tuning(self.layout), question.on_host, question.constants.keeping)
        return rank_work(setup, question.machine, question.constants.pace_on(question.on_host))


def _layer_key(setup: TrainingSetup) -> tuple[object, ...]:
    """Return all that the figures of one micro-batch in a layer depend on."""
    layout, tuning = setup.layout, setup.tuning
    ranks = layout.tensor, layout.context, layout.expert, layout.sequence_parallel
    return (*ranks, tuning.micro_batch, tuning.recompute)


class _Search:
    """A search over layouts. It counts the rows that it computes, and remembers those that end a branch."""

    def __init__(self, question: LayoutQuestion) -> None:
        self.question = question
        self.considered = 0
        self.fragmentation = 0.0 if question.on_host else question.constants.keeping.fragmentation
        self.tokens_per_step = question.work.training.tokens_per_step
        self.overfull: list[OverfullRow] = []
        self._figures: dict[tuple[object, ...], Any] = {}
        recompute = question.constraints.recompute
        self._recomputations = (
            (recompute,) if recompute else question.supported.recompute[::-1]
        )  # what keeps least is first

    def cached(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        """Return a figure, which is computed once. key: its name, and all that it depends on."""
        if key not in self._figures:
            self._figures[key] = compute()
        return self._figures[key]  # type: ignore[no-any-return]

    def fastest(self) -> list[RankedRow]:
        """Return the rows of all layouts that fit, fastest first."""
        return fastest_first(row for layout in _layouts(self.question) for row in self._rows(layout))

    def _rows(self, layout: Layout) -> Iterator[RankedRow]:
        """Yield the rows of a layout that fit.

        Memory grows with the micro-batch and with model chunks, and shrinks with recomputation. So the first
        micro-batch that does not fit ends its branch, and where none fits, less recomputation and more chunks end, but
        for programs whose plain stages have buffers that chunks do without (receives_all).
        """
        grows_with_chunks = not self.question.constants.keeping.receives_all
        allowed = self._allowed_micro_batches(layout)
        if not allowed:
            return
        figures = _LayoutFigures(self, layout)
        for chunks, sizes in allowed:
            rows = list(self._rows_with_chunks(figures, chunks, sizes))
            yield from rows
            if grows_with_chunks and chunks == 1 and sizes and not rows and len(self.overfull) >= MAX_OVERFULL_ROWS:
                return

    def _rows_with_chunks(self, figures: _LayoutFigures, chunks: int, sizes: list[int]) -> Iterator[RankedRow]:
        for recompute in self._recomputations:
            for micro_batch in sizes:
                choices = RowChoices(micro_batch, recompute, chunks, self.question.constraints.recompute_layers)
                self.considered += 1
                total = figures.total_bytes(choices)
                if not self.question.fits(total):
                    self.overfull.append(OverfullRow(figures.layout, choices, total))
                    if micro_batch == sizes[0] and len(self.overfull) >= MAX_OVERFULL_ROWS:
                        return
                    break
                yield RankedRow(figures.layout, choices, total, figures.tokens_per_second(choices))

    def add_first_layer_rows(self, rows: list[RankedRow]) -> list[RankedRow]:
        """Return the rows with further ones, in which the first layers only are computed again.

        A row whose layers are all computed again may have room to keep some of them. Its further row has the least
        layers that leave the planner's margin free. It is no faster than without recomputation, so that bound ends
        the search.
        """
        question, further_rows = self.question, list[RankedRow]()
        if (
            question.constraints.recompute
            or not question.supported.can_repeat_first_layers
            or question.capacity_bytes is None
        ):
            return rows
        roomy_speeds = (row.tokens_per_second for row in rows if not is_tight(question, row.total_bytes))
        fastest_speeds = list(islice(roomy_speeds, MAX_FIRST_LAYER_ROWS))
        for row in rows:
            min_speed = fastest_speeds[-1] if len(fastest_speeds) == MAX_FIRST_LAYER_ROWS else 0.0
            if row.tokens_per_second * MAX_RECOMPUTE_GAIN < min_speed:
                break
            if row.choices.recompute != "full" or is_tight(question, row.total_bytes):
                continue
            figures = _LayoutFigures(self, row.layout)
            may_be_faster = figures.tokens_per_second(row.choices.without_recomputation()) > min_speed
            if may_be_faster and (extended := self._first_layer_row(row, figures)):
                further_rows.append(extended)
                fastest_speeds = sorted((*fastest_speeds, extended.tokens_per_second), reverse=True)[
                    :MAX_FIRST_LAYER_ROWS
                ]
        return fastest_first((*rows, *further_rows)) if further_rows else rows

    def _first_layer_row(self, row: RankedRow, figures: _LayoutFigures) -> RankedRow | None:
        """Return the row with the least layers that leaves the margin free; None where that is none, or all."""
        longest = math.ceil(self.question.work.model.layers / (row.layout.pipeline * row.choices.chunks))
        partial_choices = [row.choices._replace(recompute_layers=layers) for layers in range(1, longest)]
        options = [row.choices.without_recomputation(), *partial_choices]
        layers = bisect_left(options, True, key=lambda n: not is_tight(self.question, figures.total_bytes(n)))
        if layers in (0, longest):
            return None
        self.considered += 1
        chosen = options[layers]
        return RankedRow(row.layout, chosen, figures.total_bytes(chosen), figures.tokens_per_second(chosen))

    def _allowed_micro_batches(self, layout: Layout) -> MicroBatchSizes:
        """Return the micro-batches that the rules and the framework allow.

        A layout that the user asks for is predicted for any program. What a framework refuses for a micro-batch, it
        refuses for each larger one, and what it refuses for two chunks, for more.
        """
        work, refusals = self.question.work, self.question.supported.refusals
        ranks = layout.data, layout.context, layout.expert, layout.tensor, layout.pipeline, layout.sequence_parallel
        sizes = self.cached(("sizes", *ranks), lambda: _valid_micro_batches(self.question, layout))
        if not (refusals and sizes) or self.question.constraints.layout is not None:
            return sizes

        all_sizes = sorted({n for _, batches in sizes for n in batches})
        first_refused = bisect_left(
            all_sizes, True, key=lambda n: bool(refused_choices(refusals, work, Tuning(layout=layout, micro_batch=n)))
        )
        allowed = all_sizes[:first_refused]
        if not allowed:
            return []
        two_chunks = Tuning(layout=layout, micro_batch=allowed[0], virtual_pipeline=2)
        allows_chunks = layout.pipeline == 1 or not refused_choices(refusals, work, two_chunks)
        return [
            (chunks, [n for n in batches if n in allowed]) for chunks, batches in sizes if allows_chunks or chunks == 1
        ]


def _layouts(question: LayoutQuestion) -> Iterator[Layout]:
    """Yield every division of the devices that the framework supports, with every sharding, with and without sequence
    parallelism, by expert ranks. `_valid_micro_batches` applies the case's other rules.

    A ZeRO stage shards over all ranks, or with hybrid sharding over those of a node, whose links are fast. A
    layout that the user asks for may have any other degree.
    """
    if question.constraints.layout is not None:
        yield question.constraints.layout
        return
    supported, training, experts = question.supported.parallelism, question.work.training, question.work.model.experts
    # context ranks: 1, or so many that each has enough tokens of a sequence
    max_contexts = max(1, training.sequence_length // MIN_CONTEXT_TOKENS) if "context" in supported else 1
    for tensor in divisors(question.devices) if "tensor" in supported else (1,):
        sequences = [False, True] if tensor > 1 and "sequence" in supported else [False]
        node_ranks = question.machine.devices_per_node // tensor
        for pipeline in divisors(question.devices // tensor) if "pipeline" in supported else (1,):
            ranks = question.devices // tensor // pipeline
            can_be_hybrid = (
                PARTIAL_SHARDING not in question.supported.refusals
                and 1 < node_ranks < ranks
                and ranks % node_ranks == 0
            )
            stages = [stage for stage in (1, 2, 3) if f"zero{stage}" in supported and ranks > 1]
            shardings = [(0, 1), *product(stages, (ranks, node_ranks) if can_be_hybrid else (ranks,))]
            expert_ranks = divisors(math.gcd(ranks, experts.count)) if experts and "expert" in supported else [1]
            for context in takewhile(max_contexts.__ge__, divisors(ranks)):
                data = ranks // context
                if (data > 1 and "data" not in supported) or training.global_batch % data:
                    continue
                for (stage, degree), sequence_parallel, expert in product(shardings, sequences, expert_ranks):
                    yield Layout(
                        data=data,
                        context=context,
                        tensor=tensor,
                        pipeline=pipeline,
                        expert=expert,
                        sequence_parallel=sequence_parallel,
                        sharding_stage=stage,
                        sharding_degree=degree,
                    )


def _valid_micro_batches(question: LayoutQuestion, layout: Layout) -> MicroBatchSizes:
    """Return the divisors of a rank's sequences that satisfy every rule, smallest first, by model chunks.

    A micro-batch that shares a factor with the context is left out: with both divided by it the rank has the same
    tokens and passes, and exchanges less.
    """
    work, constraints = question.work, question.constraints
    # stages may differ by a layer where the framework runs them, and in a layout that the user asks for
    uneven = constraints.layout is not None or "uneven" in question.supported.parallelism
    if work.training.global_batch % layout.data:
        return []
    if broken_layout_rules(work, layout, 1, question.devices, uneven_stages=uneven):
        return []
    sizes = divisors(work.training.global_batch // layout.data)
    if constraints.layout is None:
        sizes = [n for n in sizes if math.gcd(n, layout.context) == 1]
    if constraints.micro_batch is not None:
        sizes = [n for n in sizes if n == constraints.micro_batch]
    chunk_counts = [constraints.virtual_pipeline or 1]
    if constraints.virtual_pipeline is None and layout.pipeline > 1 and "interleaved" in question.supported.parallelism:
        layers, stages = work.model.layers, layout.pipeline
        longest = math.ceil(layers / stages) if uneven else max(1, layers // stages)
        chunk_counts = [n for n in divisors(longest) if n == 1 or n * stages <= layers]
    return [(chunks, [n for n in sizes if can_interleave(work, layout, n, chunks, uneven)]) for chunks in chunk_counts]
