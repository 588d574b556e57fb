"""What a case will need on devices that need not be here: every valid layout, its memory, its time, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from levelfield.measure.footprint import Footprint, expected_memory
from levelfield.measure.timing import Machine, StepTime, step_time
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants
from levelfield.specs.layout import Layout
from levelfield.specs.tuning import Recompute, Tuning

RECOMPUTATIONS: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Offer:
    """What the framework has on this kind of device, as implementation.yaml names it."""

    parallelism: frozenset[str]
    recompute: tuple[Recompute, ...]


@dataclass(frozen=True)
class Question:
    """A case on devices. capacity_bytes: of one device, None where unknown: then everything is taken to fit."""

    work: Work
    machine: Machine
    constants: Constants
    offer: Offer
    device_kind: str
    devices: int
    capacity_bytes: int | None


@dataclass(frozen=True)
class Row:
    """One layout and what is predicted of it. tokens_per_second: of one device."""

    tuning: Tuning
    memory: Footprint
    fits: bool
    time: StepTime
    tokens_per_second: float

    @property
    def layout(self) -> Layout:
        return self.tuning.layout


@dataclass(frozen=True)
class Answer:
    """Rows that fit, fastest first. nearest: where none fits, the row that needs least memory. considered: layouts
    that were computed; pruned: branches left because the smallest of them does not fit."""

    rows: tuple[Row, ...]
    nearest: Row | None
    considered: int
    pruned: int


def answer(question: Question) -> Answer:
    """Go through all layouts; a branch is left only when nothing in it can fit, so none that fits is missed."""
    search = _Search(question)
    rows = [row for layout in _layouts(question) for row in search.rows_of(layout)]
    rows.sort(key=lambda row: (-row.tokens_per_second, row.memory.total))
    return Answer(tuple(rows), None if rows else search.nearest, search.considered, search.pruned)


def predict(question: Question, tuning: Tuning) -> Row:
    """One row, whether it fits or not. Raises UnknownLink."""
    memory = _memory(question, tuning)
    time = step_time(
        question.work.model,
        question.work.training,
        tuning.layout,
        tuning,
        question.machine,
        question.constants.keeping,
        question.constants.pace_on(question.device_kind),
    )
    tokens = question.work.training.tokens_per_step / time.total / tuning.layout.world_size
    return Row(tuning, memory, _fits(question, memory), time, tokens)


class _Search:
    def __init__(self, question: Question) -> None:
        self.question = question
        self.considered = self.pruned = 0
        self.nearest: Row | None = None

    def rows_of(self, layout: Layout) -> Iterator[Row]:
        """Memory grows with the micro-batch and shrinks with recomputation: the first micro-batch that does not fit
        ends its branch."""
        for chunks in _chunks(self.question, layout):
            for recompute in self.question.offer.recompute:
                for micro_batch in _micro_batches(self.question, layout, chunks):
                    tuning = Tuning(
                        layout=layout, micro_batch=micro_batch, recompute=recompute, virtual_pipeline=chunks
                    )
                    self.considered += 1
                    if not _fits(self.question, _memory(self.question, tuning)):
                        self.pruned += 1
                        self._note(tuning)
                        break
                    yield predict(self.question, tuning)

    def _note(self, tuning: Tuning) -> None:
        if tuning.micro_batch > 1 and self.nearest:
            return
        memory = _memory(self.question, tuning).total
        if self.nearest is None or memory < self.nearest.memory.total:
            self.nearest = predict(self.question, tuning)


def _memory(question: Question, tuning: Tuning) -> Footprint:
    return expected_memory(
        question.work.model,
        question.work.training,
        tuning.layout,
        tuning,
        question.device_kind,
        question.constants.keeping,
    )


def _fits(question: Question, memory: Footprint) -> bool:
    return question.capacity_bytes is None or memory.total <= question.capacity_bytes


def _layouts(question: Question) -> Iterator[Layout]:
    """Every cut of the devices that the case and the framework allow."""
    model, devices, has = question.work.model, question.devices, question.offer.parallelism
    for tensor in _divisors(devices):
        if any(size % tensor for size in (model.heads, model.kv_heads, model.ffn_hidden_size, model.vocab_size)):
            continue
        for pipeline in _divisors(devices // tensor):
            data = devices // tensor // pipeline
            if model.layers % pipeline or question.work.training.global_batch % data:
                continue
            used = {"tensor": tensor, "pipeline": pipeline, "data": data}
            if any(size > 1 and name not in has for name, size in used.items()):
                continue
            yield from _variants(question, tensor, pipeline, data)


def _variants(question: Question, tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    has = question.offer.parallelism
    stages = [0, *(stage for stage in (1, 2, 3) if f"zero{stage}" in has and data > 1)]
    even = question.work.training.sequence_length % tensor == 0
    sequences = [False, True] if tensor > 1 and even and "sequence" in has else [False]
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


def _chunks(question: Question, layout: Layout) -> Iterator[int]:
    """Model chunks of a stage: 1, and where the framework interleaves, every division of a stage's layers."""
    yield 1
    if layout.pipeline == 1 or "interleaved" not in question.offer.parallelism:
        return
    yield from (n for n in _divisors(question.work.model.layers // layout.pipeline) if n > 1)


def _micro_batches(question: Question, layout: Layout, chunks: int) -> Iterator[int]:
    """Powers of two, smallest first; interleaving takes whole rounds of stages."""
    per_rank = question.work.training.global_batch // layout.data
    size = 1
    while size <= per_rank and per_rank % size == 0:
        if chunks == 1 or per_rank // size % layout.pipeline == 0:
            yield size
        size *= 2


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
