"""The validity rules: a right run has no reason, and every planted fault has its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.measure.raw_facts import CHECKSUM_MODULUS, Coordinates, StepRecord, WeightSlice, coordinates
from levelfield.measure.validity import clock_reasons, loss_curve, tokens_checksum, validity_reasons
from levelfield.measure.weights import weight_checksums
from levelfield.specs.base import load
from levelfield.specs.case import Case, Work
from levelfield.specs.layout import Layout
from levelfield.worker.job import Schedule as WorkerSchedule
from levelfield.worker.job import parse
from levelfield.worker.schedule import learning_rate

WORK: Work = load(Case, Path(__file__).resolve().parents[3] / "configs/cases/gpt2_small.yaml").work("smoke")
STEPS, SECOND = WORK.training.steps, 10**9
SHARE = WORK.training.tokens_per_step // 2
LAYOUT = Layout(data=2, tensor=2, pipeline=2)
Records = list[StepRecord]


def record(rank: int, step: int, layout: Layout = LAYOUT) -> StepRecord:
    place = coordinates(rank, layout)
    owns = place.owns_tokens
    last_stage = place.pipeline == layout.pipeline - 1
    reads = place.pipeline in (0, layout.pipeline - 1)
    return StepRecord(
        rank=rank,
        step=step,
        end_ns=step * SECOND + rank * 1000,
        loss=7.0 * 0.95**step if last_stage else None,
        grad_norm=1.0,
        tokens=WORK.training.tokens_per_step // layout.data if owns else 0,
        tokens_checksum=1000 * step + place.data if reads else None,
    )


def records(layout: Layout = LAYOUT) -> Records:
    return [record(rank, step, layout) for rank in range(layout.world_size) for step in range(1, STEPS + 1)]


def weights(layout: Layout = LAYOUT) -> list[WeightSlice]:
    """Every rank's part: pipeline stages share nothing but replicas, tensor ranks halve rows, data ranks repeat."""
    pieces = []
    for rank in range(layout.world_size):
        place = coordinates(rank, layout)
        for index, (name, shape) in enumerate(parameter_shapes(WORK.model, WORK.training.sequence_length).items()):
            if index % layout.pipeline == place.pipeline:
                part = shape[0] // layout.tensor
                rows = (place.tensor * part, place.tensor * part + part)
                box = (rows, *((0, size) for size in shape[1:]))
                pieces.append(WeightSlice(rank, name, shape, box, hash((name, rows)) % CHECKSUM_MODULUS))
    return pieces


def reasons(facts: Records, slices: list[WeightSlice] | None = None, layout: Layout = LAYOUT) -> list[str]:
    return [str(r) for r in validity_reasons(facts, weights(layout) if slices is None else slices, WORK, layout)]


def with_rates(facts: Records, **changes: float | None) -> Records:
    """Give every step the schedule's rate, as each framework reports it; changes: of rank 1's step of that number."""
    schedule = parse(WorkerSchedule, WORK.training.schedule.model_dump(), "schedule")
    rated = [replace(r, learning_rate=learning_rate(schedule, r.step)) for r in facts]
    return [
        replace(r, learning_rate=changes.get(f"step{r.step}", r.learning_rate)) if r.rank == 1 else r for r in rated
    ]


def at(step: int, rank: int, **changes: object) -> Callable[[Records], Records]:
    """Change one record."""

    def plant(facts: Records) -> Records:
        return [replace(r, **changes) if (r.step, r.rank) == (step, rank) else r for r in facts]  # type: ignore[arg-type]

    return plant


def test_a_right_run_has_no_reason() -> None:
    for layout in (LAYOUT, Layout(), Layout(data=2), Layout(tensor=4), Layout(pipeline=2)):
        assert reasons(records(layout), layout=layout) == []


def test_rank_order_is_tensor_then_data_then_pipeline() -> None:
    assert [coordinates(rank, LAYOUT) for rank in (0, 1, 2, 4)] == [
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 1, 0, 0),
        (1, 0, 0, 0),
    ]
    assert [r for r in range(8) if coordinates(r, LAYOUT).owns_tokens] == [0, 2]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.data())
def test_coordinates_undo_the_rank_order(data: int, tensor: int, pipeline: int, draw: st.DataObject) -> None:
    layout = Layout(data=data, tensor=tensor, pipeline=pipeline)
    rank = draw.draw(st.integers(0, layout.world_size - 1))
    place = coordinates(rank, layout)
    assert place == Coordinates(place.pipeline, place.data, place.context, place.tensor)
    assert (place.pipeline * data + place.data) * tensor + place.tensor == rank


@pytest.mark.parametrize(("late", "is_told"), [(0.0, False), (2.0, False), (2.01, True), (-2.01, True)])
def test_windows_of_ranks_may_differ_by_two_of_the_longest_steps(late: float, is_told: bool) -> None:
    """Those of the middle rank: the one that is late does not widen its own bound."""
    window = WORK.window
    facts = [
        replace(record(rank, step), end_ns=step * 10**9) for rank in range(3) for step in range(window.last_step + 1)
    ]
    last = next(i for i, fact in enumerate(facts) if (fact.rank, fact.step) == (2, window.last_step))
    facts[last] = replace(facts[last], end_ns=facts[last].end_ns + int(late * 10**9))
    assert bool(clock_reasons(facts, window)) is is_told


def swapped(facts: Records) -> Records:
    i = next(i for i, r in enumerate(facts) if (r.rank, r.step) == (1, 5))
    return [*facts[:i], facts[i + 1], facts[i], *facts[i + 2 :]]


FAULTS: dict[str, tuple[Callable[[Records], Records], str]] = {
    "missing step": (lambda k: [r for r in k if (r.rank, r.step) != (3, 7)], "steps: rank 3: step 7 missing"),
    "cut off": (lambda k: [r for r in k if r.step < STEPS], f"steps: rank 0: step {STEPS} missing"),
    "repeated step": (lambda k: [*k, k[4]], "steps: rank 0: step 5 repeated"),
    "swapped steps": (swapped, "steps: rank 1: step 5 out of order"),
    "silent rank": (lambda k: [r for r in k if r.rank != 6], "steps: rank 6: steps 1, 2, 3, 4, 5 and"),
    "strange rank": (lambda k: [*k, replace(k[0], rank=8)], "steps: rank 8 is not one"),
    "time stood still": (at(9, 2, end_ns=8 * SECOND), "steps: rank 2: step 9 took no time"),
    "nan loss": (at(12, 5, loss=math.nan), "finite: step 12, rank 5: loss is nan"),
    "inf loss": (at(12, 5, loss=math.inf), "finite: step 12, rank 5: loss is inf"),
    "nan gradient norm": (at(12, 0, grad_norm=math.nan), "finite: step 12, rank 0: gradient norm is nan"),
    "negative norm": (at(12, 0, grad_norm=-1.0), "finite: step 12, rank 0: gradient norm is -1.0"),
    "skipped in fp32": (at(12, 0, skipped=True), "finite: step 12, rank 0: the optimizer skipped it"),
    "one token short": (at(3, 2, tokens=SHARE - 1), f"tokens: step 3, rank 2: {SHARE - 1} tokens, expected {SHARE}"),
    "counted twice": (at(3, 1, tokens=SHARE), f"tokens: step 3, rank 1: {SHARE} tokens, expected 0"),
    "sequences for tokens": (at(3, 0, tokens=16), "tokens: step 3, rank 0: 16 tokens"),
    "loss differs by 1 %": (at(20, 7, loss=7.0 * 0.95**20 * 1.01), "loss: step 20: ranks disagree"),
    "one rank's loss is nan": (at(20, 7, loss=math.nan), "loss: step 20: ranks disagree"),
    "nobody has the loss": (
        lambda k: [replace(r, loss=None) if r.step == 4 else r for r in k],
        "loss: step 4: no rank",
    ),
    "tensor ranks read apart": (at(6, 1, tokens_checksum=1), "data: step 6, data rank 0: ranks read different tokens"),
    "stages read apart": (at(6, 4, tokens_checksum=1), "data: step 6, data rank 0: ranks read different tokens"),
    "a silent data rank": (
        lambda k: [replace(r, tokens_checksum=None) if r.step == 6 and r.rank in (2, 3, 6, 7) else r for r in k],
        "data: step 6: no token checksum from data rank 1",
    ),
    "data ranks read alike": (
        lambda k: [replace(r, tokens_checksum=9) if r.step == 6 and r.tokens_checksum else r for r in k],
        "data: step 6: two data ranks read the same tokens",
    ),
    "milliseconds on one rank": (
        lambda k: [replace(r, end_ns=r.end_ns * 1000) if r.rank == 5 else r for r in k],
        "clock: ranks' windows last differently",
    ),
    "loss that does not fall": (
        lambda k: [replace(r, loss=7.0) if r.loss is not None else r for r in k],
        "acceptance: mean loss of the last",
    ),
    "tail of nan": (
        lambda k: [replace(r, loss=math.nan) if r.loss is not None and r.step == STEPS else r for r in k],
        "acceptance: mean loss of the last 5 steps is nan",
    ),
    "no record at all": (lambda k: [], "acceptance: 0 losses"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_gives_its_reason(name: str) -> None:
    plant, words = FAULTS[name]
    texts = reasons(plant(records()))
    assert any(reason.startswith(words) for reason in texts), texts


def test_last_bits_of_float32_are_no_disagreement() -> None:
    loss = 7.0 * 0.95**20
    assert reasons(at(20, 7, loss=loss * (1 + 2e-7))(records())) == []


def test_many_faults_of_a_kind_are_counted_not_listed() -> None:
    texts = reasons([replace(r, grad_norm=math.inf) for r in records()])
    assert len(texts) == 6 and texts[-1] == f"finite: and {8 * STEPS - 5} more"


def test_fp16_may_skip_a_step_on_all_ranks_only() -> None:
    fp16 = WORK.training.model_copy(update={"precision": "fp16"})
    work = WORK.model_copy(update={"training": fp16})
    everywhere = [replace(r, skipped=True, grad_norm=math.inf) if r.step == 2 else r for r in records()]
    assert validity_reasons(everywhere, weights(), work, LAYOUT) == ()
    one = at(2, 3, skipped=True, grad_norm=math.inf)(records())
    (reason,) = validity_reasons(one, weights(), work, LAYOUT)
    assert reason.detail.startswith("step 2: ")
    assert "some ranks" in reason.detail


def test_the_curve_takes_one_loss_a_step() -> None:
    curve = loss_curve(reversed(records()))
    assert list(curve) == list(range(1, STEPS + 1)) and curve[3] == 7.0 * 0.95**3


def test_the_token_checksum_is_the_same_in_every_layout() -> None:
    sums = {step: [1000 * step, 1000 * step + 1] for step in range(1, STEPS + 1)}
    expected = sum(map(sum, sums.values()))
    assert tokens_checksum(records(), LAYOUT) == expected
    one = [replace(record(0, step, Layout()), tokens_checksum=sum(sums[step])) for step in sums]
    assert tokens_checksum(one, Layout()) == expected
    assert tokens_checksum([r for r in records() if r.step != 3 or r.rank in (0, 1)], LAYOUT) is None
    assert tokens_checksum([], LAYOUT) is None


def altered(name: str, rank: int, **changes: object) -> list[WeightSlice]:
    """Change what one rank says of one parameter."""
    return [replace(s, **changes) if (s.name, s.rank) == (name, rank) else s for s in weights()]  # type: ignore[arg-type]


V, H = WORK.model.vocab_size, WORK.model.hidden_size
HALF = V // 2
EMBEDDING = "embedding.weight"


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        (altered(EMBEDDING, 2, checksum=1), "ranks 0 and 2 hold different values"),
        (altered(EMBEDDING, 0, slices=((0, HALF + 1), (0, H))), "overlap"),
        ([s for s in weights() if s.name != EMBEDDING or s.rank not in (1, 3)], f"{HALF * H} of {V * H} values"),
        (altered(EMBEDDING, 0, slices=((0, V + 1), (0, H))), "rank 0 holds"),
        (altered(EMBEDDING, 0, slices=((0, HALF),)), "rank 0 holds"),
        (altered(EMBEDDING, 0, shape=(H, V)), "rank 0 holds"),
        ([s for s in weights() if s.name != EMBEDDING], "not reported by any rank"),
        ([s for s in weights() if s.rank != 5], "rank 5 reports no weights"),
        ([*weights(), WeightSlice(0, "head.scale", (1,), ((0, 1),), 0)], "head.scale: the model has no such"),
        ([], "rank 0 reports no weights"),
    ],
)
def test_planted_faults_in_weights(slices: list[WeightSlice], words: str) -> None:
    texts = reasons(records(), slices)
    assert any(r.startswith("weights: ") and words in r for r in texts), texts


def test_empty_slices_are_allowed() -> None:
    empty = WeightSlice(0, EMBEDDING, (V, H), ((V, V), (0, H)), 0)
    assert reasons(records(), [*weights(), empty]) == []
    assert weight_checksums([*weights(), empty])[EMBEDDING] == weight_checksums(weights())[EMBEDDING]


def test_totals_do_not_depend_on_replicas() -> None:
    assert weight_checksums(weights(LAYOUT)) == weight_checksums(weights(Layout(tensor=2)))


@given(st.lists(st.integers(1, V - 1), max_size=4), st.lists(st.integers(1, H - 1), max_size=4))
def test_any_grid_of_boxes_tiles_and_a_box_less_does_not(rows: list[int], columns: list[int]) -> None:
    def edges(cuts: list[int], size: int) -> list[tuple[int, int]]:
        points = [0, *sorted(set(cuts)), size]
        return list(itertools.pairwise(points))

    others = [s for s in weights(Layout()) if s.name != EMBEDDING]
    grid = [WeightSlice(0, EMBEDDING, (V, H), (r, c), 1) for r in edges(rows, V) for c in edges(columns, H)]
    assert reasons(records(Layout()), others + grid, Layout()) == []
    assert reasons(records(Layout()), others + grid[1:], Layout())


# -- the learning rate of every step


def test_the_schedules_rates_hold_also_where_float32_rounds_them_and_where_only_some_ranks_report_them() -> None:
    assert reasons(with_rates(records())) == []
    rounded = [replace(r, learning_rate=float(np.float32(r.learning_rate or 0))) for r in with_rates(records())]
    assert reasons(rounded) == []
    assert reasons([replace(r, learning_rate=None) if r.rank else r for r in rounded]) == []


RATES: dict[str, tuple[dict[str, float | None], str]] = {
    "none in the last step": ({f"step{STEPS}": None}, f"step {STEPS}, rank 1: no learning rate, expected 0.0001"),
    "0 in the last step": ({f"step{STEPS}": 0.0}, f"step {STEPS}, rank 1: learning rate 0, expected 0.0001"),
    "a millionth off": ({"step7": 3.500005e-4}, "step 7, rank 1: learning rate 0.0003500005, expected 0.00035"),
    "nan": ({"step7": math.nan}, "step 7, rank 1: learning rate nan, expected 0.00035"),
    "of the step before": ({"step7": 3.0e-4}, "step 7, rank 1: learning rate 0.0003, expected 0.00035"),
}


@pytest.mark.parametrize("name", RATES)
def test_another_learning_rate_is_named_by_step_found_and_expected(name: str) -> None:
    changes, words = RATES[name]
    (texts,) = reasons(with_rates(records(), **changes))
    assert texts.startswith(f"schedule: {words}")
