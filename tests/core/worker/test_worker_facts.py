"""What every training gives in the same way: its memory, and the seed of a step's random numbers."""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace

import pytest
from levelfield.worker import dropout_seed, process_memory


def test_the_memory_of_a_process_is_in_bytes() -> None:
    found = process_memory()
    assert found["allocated_peak_bytes"] is found["reserved_peak_bytes"] is None
    assert 10 * 2**20 < (found["process_peak_bytes"] or 0) < 2**40  # KiB as bytes would be a few ten thousand
    held = bytearray(2**28)
    assert (process_memory()["process_peak_bytes"] or 0) > 2**28 and len(held)


def test_counters_of_the_framework_stay_as_they_are() -> None:
    found = process_memory(7, 0)
    assert (found["allocated_peak_bytes"], found["reserved_peak_bytes"]) == (7, 0)


def job(sequence_parallel: bool) -> SimpleNamespace:
    layout = SimpleNamespace(sequence_parallel=sequence_parallel)
    return SimpleNamespace(layout=layout, training=SimpleNamespace(seed=7))


def seed(step: int = 3, sequence_parallel: bool = False, **place: int) -> int:
    whole = {"data": 0, "pipeline": 0, "tensor": 0, "context": 0, **place}
    return dropout_seed(job(sequence_parallel), SimpleNamespace(**whole), step)


def test_the_seed_is_that_of_earlier_runs() -> None:
    digest = hashlib.sha256(b"dropout 7 3 0 0 0").digest()
    assert seed() == int.from_bytes(digest[:8], "big") >> 1


@pytest.mark.parametrize(
    "change", [{"step": 4}, {"data": 1}, {"pipeline": 1}, {"tensor": 1, "sequence_parallel": True}]
)
def test_another_step_or_place_has_another_seed(change: dict[str, int]) -> None:
    assert seed(**change) != seed(sequence_parallel=bool(change.get("sequence_parallel")))


def test_ranks_that_hold_the_same_hidden_state_have_one_seed() -> None:
    assert seed(tensor=1) == seed(tensor=0) and sys.maxsize >= seed() >= 0
