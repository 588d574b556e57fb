"""A rank samples one step of the window: the next one after it is told, or the last one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.worker import SpotCheck, StorageError
from levelfield.worker.job import Job, Window
from levelfield.worker.spot_check import MAX_BYTES, ROWS, pack_array, unpack_array
from worker_jobs import make_job

NUMBERS = np.array([[1.5, -2.0, 3e-30], [0.0, np.inf, 7.25]], np.float32)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return replace(make_job(tmp_path), events_dir=str(tmp_path), spot_check=True, window=Window(3, 6))


def tell(job: Job, rank: int = 0) -> None:
    (Path(job.events_dir) / f"rank{rank}.spot_check").write_text("a seed")


def test_the_next_step_after_it_is_told_is_sampled_once(job: Job) -> None:
    check = SpotCheck(job)
    assert [check.wants(step) for step in (1, 2, 3)] == [False] * 3
    tell(job)
    assert [check.wants(step) for step in (4, 5, 6)] == [True, False, False]


def test_a_step_before_the_window_is_not_sampled(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    assert [check.wants(step) for step in (1, 2, 3)] == [False, False, True]


def test_the_first_rank_of_a_node_that_is_not_told_samples_the_last_step(job: Job) -> None:
    first, second = SpotCheck(job), SpotCheck(replace(job, rank=1, local_rank=1))
    assert [first.wants(step) for step in range(1, 9)] == [step == 6 for step in range(1, 9)]
    assert not any(second.wants(step) for step in range(1, 9))


@pytest.mark.parametrize("changes", [{"spot_check": False}, {"window": None}])
def test_a_job_that_does_not_ask_samples_nothing(job: Job, changes: dict[str, Any]) -> None:
    tell(job)
    check = SpotCheck(replace(job, **changes))
    assert not any(check.wants(step) for step in range(1, 9))
    check.write()
    assert not list(Path(job.events_dir).glob("*.jsonl"))


def test_places_follow_from_the_seed(job: Job) -> None:
    tell(job)
    places = []
    for _ in range(2):
        check = SpotCheck(job)
        assert check.wants(3)
        places.append(check.places(ROWS, 1000))
    assert places[0] == places[1] == sorted(set(places[0])) and len(places[0]) == ROWS
    assert check.places(5, 3) == [0, 1, 2]


def test_rows_of_one_number_of_tokens_are_the_same(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.wants(3)
    first = check.rows(1000)
    check.rows(2000)
    assert check.rows(1000) == first and check.places(ROWS, 1000) != first


def test_wide_layers_are_sampled_as_far_as_the_bytes_go(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.wants(3)
    assert check.layers(range(4)) == [0, 1, 2, 3]
    wide = SpotCheck(replace(job, model=replace(job.model, hidden_size=MAX_BYTES, ffn_hidden_size=MAX_BYTES)))
    wide.wants(3)
    assert len(wide.layers(range(10, 20))) == 1 and wide.layers(range(10, 20))[0] in range(10, 20)


def test_samples_are_written_as_they_were_then(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.wants(4)
    weight = np.ones((2, 3), np.float32)
    check.product("layers.0.mlp.up", NUMBERS, weight, None, np.ones((2, 2), np.float32))
    weight[:] = 9  # an optimizer writes into the memory of a parameter
    check.write()
    path = Path(job.events_dir) / "rank0.spot_check.jsonl"
    first, product = map(json.loads, path.read_text().splitlines())
    assert first == {"event": "sampled", "step": 4, "told": True}
    assert (product["event"], product["name"], product["bias"]) == ("product", "layers.0.mlp.up", None)
    assert (unpack_array(product["weight"], 100) == 1).all()


def test_a_folder_that_is_gone_is_named(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.wants(4)
    check._path = str(Path(job.events_dir) / "gone" / "rank0.spot_check.jsonl")
    with pytest.raises(StorageError, match=r"rank0\.spot_check\.jsonl: cannot be written"):
        check.write()


def test_an_array_comes_back_bit_for_bit() -> None:
    assert unpack_array(pack_array(NUMBERS), 6).tolist() == NUMBERS.astype(float).tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [3, 3]},
        {"shape": [-1, 6]},
        {"shape": [2]},
        {"shape": None},
        {"data": "!"},
        {"data": pack_array(np.zeros(10**6, np.float32))["data"]},
        {"data": "AAAA"},
    ],
)
def test_a_damaged_array_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack_array({**pack_array(NUMBERS), **changes}, 100)


def test_an_array_that_says_it_is_huge_is_not_unpacked() -> None:
    with pytest.raises(ValueError, match="expected at most 5 numbers"):
        unpack_array(pack_array(NUMBERS), 5)
