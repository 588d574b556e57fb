"""What a captured step must not have is refused by name; what of a model is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from layouts import MODELS, SINGLE, parsed_job, small_job
from levelfield.catalog.registry import Registry
from levelfield.worker import Unsupported
from levelfield.worker.job import Job

pytestmark = pytest.mark.torch

CHANGES: dict[str, dict[str, Any]] = {
    "device 'cpu'": {"device": "cpu"},
    "2 ranks": {"world_size": 2},
    "precision fp16": {"training.precision": "fp16"},
    "precision fp8": {"training.precision": "fp8"},
    "dropout": {"model.hidden_dropout": 0.1},
    "experts": {"model.experts": object()},
    "a captured step": {"capture": object()},
}

# The manifest's words for the same: a plan refuses it before anything is made
IN_PLANS = {
    "device 'cpu'": "graph",
    "2 ranks": "graph with several ranks",
    "precision fp16": "graph with fp16",
    "precision fp8": "fp8 with graph",
    "dropout": "graph with dropout",
    "experts": "experts with graph",
    "a captured step": "graph with captured tensors",
}


def job_for_a_graph(changes: dict[str, Any]) -> Job:
    job = parsed_job({**small_job(MODELS["gpt"], SINGLE, 4, precision="bf16"), "device": "cuda"})
    job = replace(job, tuning=replace(job.tuning, graph=True))
    for path, value in changes.items():
        parent, _, name = path.rpartition(".")
        job = replace(job, **{parent: replace(getattr(job, parent), **{name: value})} if parent else {name: value})
    return job


def test_one_process_on_cuda_may_have_one() -> None:
    from step.graph import check_graph

    check_graph(job_for_a_graph({}))


@pytest.mark.parametrize("reason", CHANGES)
def test_what_cannot_be_captured_is_refused_by_name(reason: str) -> None:
    from step.graph import check_graph

    with pytest.raises(Unsupported, match=f"graph with {reason}"):
        check_graph(job_for_a_graph(CHANGES[reason]))


def test_a_plan_refuses_what_a_training_refuses() -> None:
    refuses = Registry().implementation("torch")[0].refuses
    named = {name for refusals in dict(refuses).values() for name in refusals if "graph" in name.split()}
    assert named == set(IN_PLANS.values()) and IN_PLANS.keys() == CHANGES.keys()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "whole"),
        ({"world_size": 2}, "blocks"),
        ({"capture": object()}, "blocks"),
        ({"tuning.compile": False}, None),
    ],
)
def test_the_whole_model_is_compiled_where_nothing_needs_its_blocks(
    changes: dict[str, object], part: str | None
) -> None:
    from step.recompute import compiled_part

    job = job_for_a_graph({"tuning.compile": True, **changes})
    assert compiled_part(job) == part
