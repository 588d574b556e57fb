"""The job, a rank's coordinates, the learning rate."""

import json

import pytest
from levelfield.worker import JobError, Unsupported, coordinates, learning_rate, load_job
from worker_jobs import SCHEDULE, document, make_job


def test_the_job_is_read_with_the_ranks_environment(tmp_path, monkeypatch):
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    job = make_job(tmp_path)
    assert (job.rank, job.world_size, job.local_rank) == (5, 8, 1)
    assert job.training.schedule.peak_lr == 1.2e-4
    assert job.data.split == [998, 1, 1]


def test_a_pipeline_stage_is_one_chunk_unless_the_job_says_more(tmp_path):
    assert make_job(tmp_path).tuning.virtual_pipeline == 1
    assert make_job(tmp_path, tuning=dict(virtual_pipeline=2)).tuning.virtual_pipeline == 2


def test_all_layers_are_computed_again_unless_the_job_says_how_many(tmp_path):
    assert make_job(tmp_path).tuning.recompute_layers is None
    assert make_job(tmp_path, tuning=dict(recompute="full", recompute_layers=2)).tuning.recompute_layers == 2


def test_no_step_is_a_graph_unless_the_job_says_so(tmp_path):
    assert make_job(tmp_path).tuning.graph is False
    assert make_job(tmp_path, tuning=dict(graph=True)).tuning.graph is True


def test_without_a_launcher_there_is_one_rank(tmp_path, monkeypatch):
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
def test_a_wrong_job_is_refused(tmp_path, content, message):
    (tmp_path / "job.json").write_text(content)
    with pytest.raises(JobError, match=message):
        load_job(str(tmp_path / "job.json"))


def test_a_missing_job_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("LEVELFIELD_JOB", raising=False)
    with pytest.raises(JobError, match="LEVELFIELD_JOB"):
        load_job()
    with pytest.raises(JobError, match="No such file"):
        load_job(str(tmp_path / "job.json"))


def test_a_rank_that_is_no_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(JobError, match="RANK: found 'first'"):
        make_job(tmp_path)


def test_tensor_is_innermost_and_pipeline_outermost(tmp_path):
    job = make_job(tmp_path, layout=dict(data=3, tensor=2, pipeline=2))
    job.world_size = 12
    found = []
    for job.rank in range(12):
        place = coordinates(job)
        found.append((place.pipeline, place.data, place.tensor))
    assert found == sorted(found)
    assert found[7] == (1, 0, 1)
    assert len(set(found)) == 12


@pytest.mark.parametrize(("rank", "world"), [(0, 4), (0, 1), (2, 2), (-1, 2)])
def test_a_world_that_is_not_the_layouts_is_refused(tmp_path, rank, world):
    job = make_job(tmp_path, layout=dict(data=2, tensor=1, pipeline=1))
    job.rank, job.world_size = rank, world
    with pytest.raises(JobError, match="needs 2 ranks"):
        coordinates(job)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, 1.2e-4 / 188), (100, 6.382978723e-5), (188, 1.2e-4), (136314880, 1.2e-5), (200_000_000, 1.2e-5)],
)
def test_the_learning_rate_of_gpt3(tmp_path, step, expected):
    assert learning_rate(make_job(tmp_path).training.schedule, step) == pytest.approx(expected, rel=1e-9)


def test_the_cosine_without_warm_up(tmp_path):
    schedule = make_job(
        tmp_path, training=dict(schedule=dict(SCHEDULE, peak_lr=1e-5, min_lr=1e-6, warmup_steps=0, decay_steps=300))
    ).training.schedule
    rates = [learning_rate(schedule, step) for step in range(1, 302)]
    assert rates[149] == pytest.approx(5.5e-6)  # half way
    assert rates[74] == pytest.approx(1e-6 + 9e-6 * (1 + 2**-0.5) / 2)  # a quarter
    assert rates == sorted(rates, reverse=True)
    assert rates[299] == rates[300] == 1e-6
    assert rates[0] < 1e-5


def test_another_schedule_is_refused(tmp_path):
    job = make_job(tmp_path)
    job.training.schedule.style = "linear"
    with pytest.raises(Unsupported, match="found 'linear'"):
        learning_rate(job.training.schedule, 1)
