"""The further steps of `--explain-step`: they change nothing that the training recorded."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Variant, events, launch, launch_explained, shallow, small_job

pytestmark = [pytest.mark.torch, pytest.mark.layouts]
STEPS = 3


def run(folder: Path, model: dict[str, Any], variant: Variant, explained: int, **more: Any) -> list[dict[str, Any]]:
    """Train in a folder of its own; rank 0's events. explained: the recorded steps; 0: an ordinary training."""
    folder.mkdir()
    job = {**small_job(model, variant, STEPS), **more}
    ends = launch_explained(job, folder, explained) if explained else launch(job, folder)
    assert [end.returncode for end in ends] == [0] * variant.ranks, ends[0].output[-2000:]
    return events(folder, 0)


def judged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without times, memory and what an explained training adds."""
    dropped = ("end_ns", "memory", "before_exchange_seconds", "compile_seconds")
    kept = [event for event in found if event["event"] != "measured"]
    return [{key: value for key, value in event.items() if key not in dropped} for event in kept]


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        (MODELS["llama"], Variant("selective", recompute="selective")),
        pytest.param(MODELS["mixture"], Variant("EP2", {"data": 2, "expert": 2}, 1), marks=pytest.mark.thorough),
        pytest.param(MODELS["gpt"], Variant("PP2", {"pipeline": 2}), marks=pytest.mark.thorough),
    ],
    ids=["selective", "EP2", "PP2"],
)
def test_the_further_steps_change_nothing_that_was_recorded(
    model: dict[str, Any], variant: Variant, tmp_path: Path
) -> None:
    ordinary = run(tmp_path / "ordinary", shallow(model), variant, 0)
    explained = run(tmp_path / "explained", shallow(model), variant, 1)
    assert judged(ordinary) == judged(explained)
    names = [event["name"] for event in explained if event["event"] == "measured"]
    assert names == ["profiled_step"] * 4 + ["step_profile", "step_alone"] and explained[-1]["event"] == "end"
    kinds = [event["event"] for event in explained]
    assert kinds.index("measured") > kinds.index("final_weights"), "a figure of the run could change"
    assert list(explained[-3]["values"]["files"]) == ["rank0.step0.json.gz", "rank0.step1.json.gz"]
    for name, digest in explained[-3]["values"]["files"].items():
        content = (tmp_path / "explained" / "profile" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        trace = json.loads(gzip.decompress(content))
        assert trace["host_name"] == "0" and str(tmp_path) not in str(trace), "it names the place where it was made"


def test_a_mixture_that_follows_choices_ends_them_with_the_training(tmp_path: Path) -> None:
    model, choices = shallow(MODELS["mixture"]), {"choices": {"known": None}}
    run(tmp_path / "ordinary", model, SINGLE, 0, **choices)
    run(tmp_path / "explained", model, SINGLE, 1, **choices)
    said = [(tmp_path / name / "rank0.choices.jsonl").read_text() for name in ("ordinary", "explained")]
    assert said[0] == said[1] and said[0].count('"chosen"') >= STEPS


def test_an_error_of_the_further_steps_is_said_and_the_training_counts(tmp_path: Path) -> None:
    blocked = tmp_path / "explained"
    blocked.mkdir()
    (blocked / "profile").write_text("a file where the folder should be")
    ends = launch_explained(small_job(shallow(MODELS["gpt"]), SINGLE, STEPS), blocked, 1)
    found = events(blocked, 0)
    assert ends[0].returncode == 0 and found[-1]["event"] == "end"
    assert found[-2]["values"]["failed"].startswith("FileExistsError")


def test_a_record_that_is_too_large_is_left_out_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    launch_explained(small_job(shallow(MODELS["gpt"]), SINGLE, STEPS), folder, 1, most_bytes=1000)
    values = events(folder, 0)[-3]["values"]
    assert values["files"] == {} and values["left_out"] == ["rank0.step0.json.gz", "rank0.step1.json.gz"]
    assert not list((folder / "profile").iterdir())
