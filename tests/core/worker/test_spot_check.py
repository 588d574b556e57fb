"""A rank samples two steps of the window: the next ones after it is told, or the last one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.worker import Batch, SpotCheck, StorageError
from levelfield.worker.job import Job, Window
from levelfield.worker.spot_check import MAX_BYTES, ROWS, pack_array, unpack_array
from worker_jobs import make_job

NUMBERS = np.array([[1.5, -2.0, 3e-30], [0.0, np.inf, 7.25]], np.float32)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return replace(make_job(tmp_path), events_dir=str(tmp_path), spot_check=True, window=Window(3, 6))


def tell(job: Job, rank: int = 0) -> None:
    (Path(job.events_dir) / f"rank{rank}.spot_check").write_text("a seed")


def test_the_next_two_steps_after_it_is_told_are_sampled(job: Job) -> None:
    check = SpotCheck(job)
    assert [check.wants(step) for step in (1, 2, 3)] == [False] * 3
    tell(job)
    assert [check.wants(step) for step in (4, 5, 6)] == [True, True, False]


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


def test_numbers_of_a_parameter_are_the_same_in_both_steps_and_rows_are_not(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.wants(3)
    places, rows = check.updated_places("head.weight", 1000), check.rows(1000)
    assert check.updated_places("head.weight", 1000) == places != check.updated_places("embedding.weight", 1000)
    check.wants(4)
    assert check.updated_places("head.weight", 1000) == places and check.rows(1000) != rows


def test_each_step_has_what_was_sampled_in_it(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    for step in (3, 4, 5):
        if check.wants(step):
            assert not check.has("final_norm")
            check.norm("final_norm", NUMBERS, NUMBERS[0], None, step * NUMBERS)
            assert check.has("final_norm")
    lines = written(check, job)
    assert [(line["event"], line.get("step")) for line in lines] == [
        *(("sampled", 3), ("norm", None), ("sampled", 4), ("norm", None))
    ]
    assert unpack_array(lines[1]["output"], 6)[0, 0] == 4.5 and unpack_array(lines[3]["output"], 6)[0, 0] == 6.0


def written(check: SpotCheck, job: Job) -> list[dict[str, Any]]:
    check.write()
    return [json.loads(line) for line in (Path(job.events_dir) / "rank0.spot_check.jsonl").read_text().splitlines()]


INPUTS = np.array([[[7, 3, 7], [2, 5, 3]], [[1, 1, 1], [4, 4, 9]]])  # [micro-batch, rows, sequence]


def begun(job: Job) -> SpotCheck:
    tell(job)
    check = SpotCheck(job)
    check.begin(Batch(3, INPUTS, INPUTS + 1, 12, 0))
    check.wants(3)
    return check


def test_tokens_are_those_of_the_batch(job: Job) -> None:
    check = begun(job)
    assert (check.batch_tokens, check.inputs_at([0, 4])) == (6, [7, 5])
    assert set(check.tokens(3)) < {2, 3, 5, 7} and check.tokens(8) == [2, 3, 5, 7]


def test_the_tokens_that_a_training_uses_have_checksums_beside_those_of_the_batch(job: Job) -> None:
    check = begun(job)
    check.read("inputs", INPUTS[0])
    check.read("inputs", INPUTS[0])
    check.read("targets", (INPUTS + 1)[0].astype(np.int32))
    _, inputs, targets = written(check, job)
    assert inputs["read"][0] == inputs["read"][1] == inputs["expected"][0] != inputs["expected"][1]
    assert targets["read"] == targets["expected"][:1] and len(targets["expected"]) == 2


def test_a_loss_has_the_targets_of_the_batch(job: Job) -> None:
    check = begun(job)
    numbers = np.arange(6.0)
    check.loss((numbers, numbers, numbers), [1, 5], np.ones((2, 9)), np.ones((2, 9)))
    check.micro_batch_loss(2.5, 0.5)
    check.micro_batch_loss(3.5, 0.25)
    _, loss, losses = written(check, job)
    assert unpack_array(loss["targets"], 9).tolist() == [4, 4] and (losses["losses"], losses["factors"]) == (
        [2.5, 3.5],
        [0.5, 0.25],
    )


class OnDevice:
    """Numbers that a device still has."""

    def __init__(self, array: Any) -> None:
        self.array, self.is_read = np.asarray(array), False

    def numbers(self) -> Any:
        self.is_read = True
        return self.array


def test_numbers_on_a_device_are_waited_for_when_they_are_written(job: Job) -> None:
    check = begun(job)
    tokens, loss, output = OnDevice(INPUTS[0]), OnDevice(2.5), OnDevice(np.arange(4.0).reshape(2, 2))
    check.read("inputs", tokens)
    check.micro_batch_loss(loss, 1.0)
    check.norm("final_norm", output, np.ones(2), None, output)
    assert not (tokens.is_read or loss.is_read or output.is_read)
    _, inputs, losses, norm = written(check, job)
    assert inputs["read"] == inputs["expected"][:1] and losses["losses"] == [2.5]
    assert unpack_array(norm["output"], 4).tolist() == [[0, 1], [2, 3]]


def test_numbers_on_the_host_are_those_of_the_call(job: Job) -> None:
    check, weight = begun(job), np.ones(2, np.float32)
    check.norm("final_norm", weight, weight, None, weight)
    weight[:] = 7
    _, norm = written(check, job)
    assert unpack_array(norm["weight"], 2).tolist() == [1, 1]


def test_a_tables_gradient_has_the_inputs_of_the_batch(job: Job) -> None:
    check = begun(job)
    check.table_gradient("embedding", [3, 7], np.ones((2, 4)), np.ones((6, 4)), None)
    _, table = written(check, job)
    assert unpack_array(table["read"], 9).tolist() == [7, 3, 7, 2, 5, 3] and table["head_gradient"] is None


def test_one_micro_batch_of_a_sampled_step_is_drawn(job: Job) -> None:
    tell(job)
    check = SpotCheck(job)
    check.begin(Batch(2, INPUTS, INPUTS + 1, 12, 0))
    assert not check.wants(2) and list(check.micro_batches(3)) == [0, 1, 2]
    drawn = set()
    for seed in range(30):
        (Path(job.events_dir) / "rank0.spot_check").write_text(str(seed))
        check = SpotCheck(job)
        check.begin(Batch(3, INPUTS, INPUTS + 1, 12, 0))
        check.wants(3)
        (sampled,) = [number for number in check.micro_batches(2) if not check.has("final_norm")]
        assert check.inputs_at([0, 4]) == [[7, 5], [1, 4]][sampled] and not check.has("final_norm")
        drawn.add(sampled)
    assert drawn == {0, 1}


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
