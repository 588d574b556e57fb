"""The choices of experts that a rank follows or records: packing, this rank's part, and damaged ones."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.worker.choices import ChoiceRecord, choice_record, digest_of, joined, own_places, packed, unpacked
from levelfield.worker.faults import JobError, StorageError
from levelfield.worker.job import Job
from worker_jobs import make_job

SHAPE = (2, 2, 8, 4, 2)  # steps, mixtures, global batch, sequence, chosen
EXPERTS = np.random.default_rng(1).integers(0, 4, SHAPE)


def job_at(
    path: Path, monkeypatch: pytest.MonkeyPatch, rank: int = 0, followed: str | None = None, **layout: int
) -> Job:
    data, ranks = layout.get("data", 1), math.prod(layout.values())
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    experts = {"count": 4, "chosen": 2, "ffn_hidden_size": 8, "first_layer": 1}
    return make_job(
        path, layout=layout, accumulation=8 // 2 // data, choices={"known": followed},
        model={"layers": 3, "experts": experts}, training={"steps": 2, "global_batch": 8, "sequence_length": 4},
    )  # fmt: skip


def lines(path: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"rank{rank}.choices.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("count", [4, 256, 257, 60000])
def test_what_was_packed_is_unpacked(count: int) -> None:
    experts = np.random.default_rng(2).integers(0, count, SHAPE)
    assert (unpacked(packed(experts, count), SHAPE, count) == experts).all()


def test_a_data_rank_follows_the_choices_of_its_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batch m of data rank d has the samples (m D + d) B and the next, as Batches reads them."""
    record = ChoiceRecord(job_at(tmp_path, monkeypatch, 1, packed(EXPERTS, 4), data=2))
    experts = record.known(2, 1)
    assert experts is not None and experts.shape == (2, 2, 4, 2)
    assert (experts[0] == EXPERTS[1, 0, 2:4]).all() and (experts[1] == EXPERTS[1, 0, 6:8]).all()


def test_a_context_rank_follows_those_of_its_two_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ChoiceRecord(job_at(tmp_path, monkeypatch, 1, packed(EXPERTS, 4), context=2))
    experts = record.known(1, 2)
    assert experts is not None and (experts.reshape(8, 2, 2) == EXPERTS[0, 1][:, [1, 2]]).all()
    assert list(own_places(8, 2, 0)) == [0, 1, 6, 7] and list(own_places(8, 1, 0)) == list(range(8))


def test_the_file_has_the_followed_choices_and_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = packed(EXPERTS, 4)
    record = ChoiceRecord(job_at(tmp_path, monkeypatch, followed=followed))
    record.compared(1, 1, 64, 3, 1e-7, float("nan"))
    first, second = lines(tmp_path)
    assert first == {"event": "choices", "follows": digest_of(followed)}
    assert second == {"event": "compared", "step": 1, "layer": 1, "choices": 64, "changed": 3, "margin": 1e-7,
                      "gates": "nan"}  # fmt: skip


def test_recorded_choices_are_what_another_run_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ChoiceRecord(job_at(tmp_path, monkeypatch))
    assert record.known(1, 1) is None
    for step in (1, 2):
        for number, layer in enumerate(record.layers):
            record.chosen(step, layer, EXPERTS[step - 1, number])
    assert lines(tmp_path)[0] == {"event": "choices", "follows": None}
    parts = [line["experts"] for line in lines(tmp_path)[1:]]
    assert joined(parts, SHAPE[2:], 4) == packed(EXPERTS, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no base64!", "damaged"),
        (base64.b64encode(b"not compressed").decode(), "damaged"),
        (packed(EXPERTS[:1], 4), "found 128 bytes, expected 256 for 2 x 2 x 8 x 4 x 2"),
        (packed(np.concatenate((EXPERTS, EXPERTS)), 4), "found more than 256 bytes"),
        (packed(EXPERTS + 4, 8), "found expert 7, expected below 4"),
        (packed(EXPERTS, 4)[:-8], "damaged"),
    ],
)
def test_damaged_choices_are_refused(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError, match=words):
        ChoiceRecord(job_at(tmp_path, monkeypatch, followed=text))


def test_what_unpacks_to_more_than_all_memory_is_refused_early() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(2**26), 9)).decode()
    with pytest.raises(JobError, match=r"more than 256\b"):
        unpacked(bomb, SHAPE, 4)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(job_at(tmp_path, monkeypatch), events_dir=str(tmp_path / "absent"))
    with pytest.raises(StorageError, match=r"absent/rank0\.choices\.jsonl"):
        ChoiceRecord(job)


def test_a_layer_by_itself_has_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_JOB", raising=False)
    choice_record.cache_clear()
    assert choice_record() is None
    choice_record.cache_clear()
