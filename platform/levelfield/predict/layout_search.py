"""The search over all valid layouts of a case: the predicted memory and time of each, in order of speed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from levelfield.predict.footprint import Footprint, expected_memory
from levelfield.predict.layout_rules import broken_beside_batches, divisors, interleaves
from levelfield.predict.setup import setup_of
from levelfield.predict.timing import Machine, PredictedStep, step_time
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.layout import Layout
from levelfield.specs.refusable import Refusable, refused
from levelfield.specs.tuning import Recompute, Tuning

BEYOND = 20  # rows that do not fit to remember
RECOMPUTATIONS: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class SupportedParallelism:
    """The parallelism and recomputation that a framework supports on a device kind, and the choices that it refuses,
    in implementation.yaml's words."""

    parallelism: frozenset[str]
    recompute: tuple[Recompute, ...]
    refuses: tuple[Refusable, ...] = ()


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
    machine: Machine
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
    rows = [row for layout in _layouts(question) for row in search.rows_of(layout)]
    rows.sort(key=lambda row: (-row.tokens_per_second, row.memory.total))
    beyond = search.beyond()
    return LayoutRanking(
        tuple(rows), None if rows or not beyond else beyond[0], search.considered, search.pruned, beyond
    )


def predict(question: LayoutQuestion, tuning: Tuning) -> LayoutEstimate:
    """Predict one row, whether it fits or not. Raises UnknownLink."""
    return _row(question, tuning, _memory(question, tuning))


def _row(question: LayoutQuestion, tuning: Tuning, memory: Footprint) -> LayoutEstimate:
    setup = setup_of(question.work, tuning, question.on_host, question.constants.keeping)
    time = step_time(setup, question.machine, question.constants.pace_on(question.on_host))
    tokens = question.work.training.tokens_per_step / time.total / tuning.layout.world_size
    return LayoutEstimate(tuning, memory, _fits(question, memory), time, tokens)


class _Search:
    def __init__(self, question: LayoutQuestion) -> None:
        self.question = question
        self.considered = self.pruned = 0
        self._left: list[tuple[int, int, Tuning, Footprint]] = []

    def rows_of(self, layout: Layout) -> Iterator[LayoutEstimate]:
        """Return the rows of a layout that fit. Memory grows with the micro-batch and shrinks with recomputation: the
        first micro-batch that does not fit ends its branch."""
        for chunks in _chunks(self.question, layout):
            micro_batches = _micro_batches(self.question, layout, chunks)
            for recompute in _recomputations(self.question):
                for micro_batch in micro_batches:
                    tuning = Tuning(
                        layout=layout, micro_batch=micro_batch, recompute=recompute, virtual_pipeline=chunks
                    )
                    if self._is_refused(tuning):
                        continue
                    self.considered += 1
                    memory = _memory(self.question, tuning)
                    if not _fits(self.question, memory):
                        self.pruned += 1
                        self._left.append((memory.total, self.considered, tuning, memory))
                        break
                    yield _row(self.question, tuning, memory)

    def _is_refused(self, tuning: Tuning) -> bool:
        """Return whether the framework refuses the row. A wanted layout is predicted for any program."""
        question = self.question
        return question.wanted.layout is None and bool(refused(question.offer.refuses, question.work, tuning))

    def beyond(self) -> tuple[LayoutEstimate, ...]:
        """Return the rows that ended a branch and need least memory."""
        least = heapq.nsmallest(BEYOND, self._left)
        return tuple(_row(self.question, tuning, memory) for _, _, tuning, memory in least)


def _memory(question: LayoutQuestion, tuning: Tuning) -> Footprint:
    return expected_memory(setup_of(question.work, tuning, question.on_host, question.constants.keeping))


def _fits(question: LayoutQuestion, memory: Footprint) -> bool:
    return question.capacity_bytes is None or memory.total <= question.capacity_bytes


def _layouts(question: LayoutQuestion) -> Iterator[Layout]:
    """Return every division of the devices that the framework supports. _micro_batches applies the case's rules."""
    if question.wanted.layout is not None:
        yield question.wanted.layout
        return
    has = question.offer.parallelism
    for tensor in divisors(question.devices) if "tensor" in has else (1,):
        for pipeline in divisors(question.devices // tensor) if "pipeline" in has else (1,):
            data = question.devices // tensor // pipeline
            if data == 1 or "data" in has:
                yield from _variants(has, tensor, pipeline, data)


def _variants(has: frozenset[str], tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    stages = [0, *(stage for stage in (1, 2, 3) if f"zero{stage}" in has and data > 1)]
    sequences = [False, True] if tensor > 1 and "sequence" in has else [False]
    for stage in stages:
        for sequence_parallel in sequences:
            yield Layout(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                sequence_parallel=sequence_parallel,
                sharding_stage=stage,
                sharding_degree=data if stage else 1,
            )


def _chunks(question: LayoutQuestion, layout: Layout) -> list[int]:
    """Return the numbers of model chunks: 1, or every divisor of a stage's layers if the framework interleaves."""
    if question.wanted.virtual_pipeline is not None:
        return [question.wanted.virtual_pipeline]
    if layout.pipeline == 1 or "interleaved" not in question.offer.parallelism:
        return [1]
    return divisors(max(1, question.work.model.layers // layout.pipeline))


def _recomputations(question: LayoutQuestion) -> tuple[Recompute, ...]:
    asked = question.wanted.recompute
    return question.offer.recompute if asked is None else (asked,)


def _micro_batches(question: LayoutQuestion, layout: Layout, chunks: int) -> list[int]:
    """Return the micro-batches that satisfy every rule: divisors of a rank's sequences, smallest first."""
    work, asked = question.work, question.wanted
    if work.training.global_batch % layout.data:
        return []
    sizes = divisors(work.training.global_batch // layout.data)
    if broken_beside_batches(work, layout, question.devices, uneven_stages=asked.layout is not None):
        return []
    sizes = [n for n in sizes if interleaves(work, layout, n, chunks)]
    return sizes if asked.micro_batch is None else [n for n in sizes if n == asked.micro_batch]
