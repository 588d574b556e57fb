"""What every training gives in the same way: its memory, and the seed of a step's random numbers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.worker import dropout_seed, process_memory
from levelfield.worker.job import Coordinates
from worker_jobs import make_job

Seed = Callable[..., int]


def test_the_memory_of_a_process_is_in_bytes() -> None:
    memory = process_memory()
    assert memory["allocated_peak_bytes"] is memory["reserved_peak_bytes"] is None
    assert 10 * 2**20 < (memory["process_peak_bytes"] or 0) < 2**40  # KiB as bytes would be a few ten thousand
    allocation = bytearray(2**28)
    assert (process_memory()["process_peak_bytes"] or 0) > 2**28 and len(allocation)


def test_counters_of_the_framework_stay_as_they_are() -> None:
    memory = process_memory(7, 0)
    assert (memory["allocated_peak_bytes"], memory["reserved_peak_bytes"]) == (7, 0)


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    """seed(step=..., sequence_parallel=..., data=..., ...): the seed of a rank at this place; 0 by default."""

    def make(step: int = 3, sequence_parallel: bool = False, data: int = 0, pipeline: int = 0, tensor: int = 0) -> int:
        job = make_job(tmp_path, training={"seed": 7}, layout={"sequence_parallel": sequence_parallel})
        return dropout_seed(job, Coordinates(pipeline, data, 0, tensor), step)

    return make


def test_the_seed_is_that_of_earlier_runs(seed: Seed) -> None:
    digest = hashlib.sha256(b"dropout 7 3 0 0 0").digest()
    assert seed() == int.from_bytes(digest[:8], "big") >> 1


@pytest.mark.parametrize(
    "change", [{"step": 4}, {"data": 1}, {"pipeline": 1}, {"tensor": 1, "sequence_parallel": True}]
)
def test_another_step_or_place_has_another_seed(seed: Seed, change: dict[str, int]) -> None:
    assert seed(**change) != seed(sequence_parallel=bool(change.get("sequence_parallel")))


def test_ranks_with_the_same_hidden_state_have_one_seed(seed: Seed) -> None:
    assert seed(tensor=1) == seed(tensor=0) and sys.maxsize >= seed() >= 0
