"""The job, a rank's coordinates, the learning rate."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from levelfield.specs import architecture as model_documents
from levelfield.specs import case, layout, plan, tuning
from levelfield.specs.base import Value
from levelfield.worker import JobError, Unsupported, architecture, coordinates, learning_rate, load_job
from levelfield.worker import job as worker_job
from worker_jobs import SCHEDULE, document, make_job


def test_the_job_is_read_with_the_ranks_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    job = make_job(tmp_path)
    assert (job.rank, job.world_size, job.local_rank) == (5, 8, 1)
    assert job.training.schedule.peak_lr == 1.2e-4
    assert job.data.split == (998, 1, 1)


def test_a_pipeline_stage_is_one_chunk_unless_the_job_says_more(tmp_path: Path) -> None:
    assert make_job(tmp_path).tuning.virtual_pipeline == 1
    assert make_job(tmp_path, tuning=dict(virtual_pipeline=2)).tuning.virtual_pipeline == 2


def test_all_layers_are_computed_again_unless_the_job_says_how_many(tmp_path: Path) -> None:
    assert make_job(tmp_path).tuning.recompute_layers is None
    assert make_job(tmp_path, tuning=dict(recompute="full", recompute_layers=2)).tuning.recompute_layers == 2


def test_no_step_is_a_graph_unless_the_job_says_so(tmp_path: Path) -> None:
    assert make_job(tmp_path).tuning.graph is False
    assert make_job(tmp_path, tuning=dict(graph=True)).tuning.graph is True


def test_without_a_launcher_there_is_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    job = make_job(tmp_path)
    assert (job.rank, job.world_size, job.local_rank) == (0, 1, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "found list"),
        (json.dumps({}), "found None, expected 'levelfield.job/1'"),
        (json.dumps(document(schema="levelfield.job/2")), "found 'levelfield.job/2'"),
    ],
)
def test_a_wrong_job_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "job.json").write_text(content)
    with pytest.raises(JobError, match=message):
        load_job(str(tmp_path / "job.json"))


def test_a_missing_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEVELFIELD_JOB", raising=False)
    with pytest.raises(JobError, match="LEVELFIELD_JOB"):
        load_job()
    with pytest.raises(JobError, match=r"job\.json") as error:
        load_job(str(tmp_path / "job.json"))
    assert os.strerror(errno.ENOENT) in str(error.value)


def test_a_rank_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(JobError, match=r"RANK: .*'first'"):
        make_job(tmp_path)


def test_tensor_is_innermost_and_pipeline_outermost(tmp_path: Path) -> None:
    job = make_job(tmp_path, layout=dict(data=3, tensor=2, pipeline=2))
    places = [coordinates(replace(job, world_size=12, rank=rank)) for rank in range(12)]
    triples = [(place.pipeline, place.data, place.tensor) for place in places]
    assert triples == sorted(triples)
    assert triples[7] == (1, 0, 1)
    assert len(set(triples)) == 12


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"training": {"steps": "4"}}, "key 'training.steps': found '4', expected a whole number"),
        ({"training": {"steps": True}}, "key 'training.steps': found True, expected a whole number"),
        ({"training": {"gradient_clip": None}}, "key 'training.gradient_clip': found None, expected a number"),
        ({"training": {"optimizer": 1}}, "key 'training.optimizer': found 1, expected an object"),
        ({"layout": {"sequence_parallel": 0}}, "key 'layout.sequence_parallel': found 0, expected true or false"),
        ({"gradient_steps": [1, 2.5]}, "key 'gradient_steps[1]': found 2.5, expected a whole number"),
        ({"preload": "json"}, "key 'preload': found 'json', expected a list"),
        ({"capture": {"step": 1}}, "key 'capture.folder': missing; it is required"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(JobError) as error:
        make_job(tmp_path, **changes)
    assert str(error.value) == f"{tmp_path / 'job.json'}: {fault}"


def test_keys_of_a_newer_platform_are_ignored(tmp_path: Path) -> None:
    assert make_job(tmp_path, later=1, model={"later": 1}) == make_job(tmp_path)


# -- the platform's documents have the same keys


PAIRS: list[tuple[type, type[Value], set[str]]] = [
    (architecture.Model, model_documents.Model, set()),
    (architecture.RopeScaling, model_documents.RopeScaling, set()),
    (architecture.LatentAttention, model_documents.LatentAttention, set()),
    (architecture.Experts, model_documents.Experts, set()),
    (architecture.Router, model_documents.Router, set()),
    (architecture.RouterGroups, model_documents.RouterGroups, set()),
    (worker_job.Training, case.Training, set()),
    (worker_job.Optimizer, case.Optimizer, set()),
    (worker_job.Schedule, case.Schedule, set()),
    (worker_job.LossScale, case.LossScale, set()),
    (worker_job.Data, case.Data, set()),
    (worker_job.Window, case.Window, set()),
    (worker_job.Limits, case.TimeLimits, set()),
    (worker_job.Layout, layout.Layout, set()),
    (worker_job.Tuning, tuning.FreeFields, {"layout"}),  # beside it in a job
    (worker_job.Choices, plan.ChoicesPlan, {"follows"}),  # the digest of `known`
]


@pytest.mark.parametrize(("ours", "theirs", "elsewhere"), PAIRS, ids=lambda item: getattr(item, "__name__", ""))
def test_a_part_of_the_job_has_the_fields_of_the_platforms_document(
    ours: type, theirs: type[Value], elsewhere: set[str]
) -> None:
    """With the same types, and where both have a default with the same one."""
    hints = get_type_hints(ours)
    assert set(hints) == set(theirs.model_fields) - elsewhere
    for field in fields(ours):
        document = theirs.model_fields[field.name]
        assert plain(hints[field.name]) == plain(document.annotation), field.name
        if field.default is not MISSING:
            default = document.default.model_dump() if isinstance(document.default, Value) else document.default
            value = asdict(field.default) if is_dataclass(type(field.default)) else field.default
            assert value == default, field.name


def plain(kind: Any) -> Any:
    """The name of a type, of an optional value's type, or of a tuple's items: a worker's text may be a closed list of
    the platform."""
    variants = get_args(kind)
    if get_origin(kind) is Literal:
        return {type(word).__name__ for word in variants}.pop()
    if variants:
        return frozenset(plain(variant) for variant in variants if variant is not ...)
    return {"TimeLimits": "Limits"}.get(kind.__name__, kind.__name__)


@pytest.mark.parametrize(("rank", "world"), [(0, 4), (0, 1), (2, 2), (-1, 2)])
def test_a_world_that_is_not_the_layouts_is_refused(tmp_path: Path, rank: int, world: int) -> None:
    job = make_job(tmp_path, layout=dict(data=2, tensor=1, pipeline=1))
    with pytest.raises(JobError, match=r"\b2 ranks"):
        coordinates(replace(job, rank=rank, world_size=world))


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, 1.2e-4 / 188), (100, 6.382978723e-5), (188, 1.2e-4), (136314880, 1.2e-5), (200_000_000, 1.2e-5)],
)
def test_the_learning_rate_of_gpt3(tmp_path: Path, step: int, expected: float) -> None:
    assert learning_rate(make_job(tmp_path).training.schedule, step) == pytest.approx(expected, rel=1e-9)


def test_the_cosine_without_warm_up(tmp_path: Path) -> None:
    schedule = make_job(
        tmp_path, training=dict(schedule=dict(SCHEDULE, peak_lr=1e-5, min_lr=1e-6, warmup_steps=0, decay_steps=300))
    ).training.schedule
    rates = [learning_rate(schedule, step) for step in range(1, 302)]
    assert rates[149] == pytest.approx(5.5e-6)  # half way
    assert rates[74] == pytest.approx(1e-6 + 9e-6 * (1 + 2**-0.5) / 2)  # a quarter
    assert rates == sorted(rates, reverse=True)
    assert rates[299] == rates[300] == 1e-6
    assert rates[0] < 1e-5


def test_another_schedule_is_refused(tmp_path: Path) -> None:
    schedule = replace(make_job(tmp_path).training.schedule, style="linear")
    with pytest.raises(Unsupported, match="found 'linear'"):
        learning_rate(schedule, 1)
