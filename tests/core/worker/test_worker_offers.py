"""Refusals that every implementation calls before the ranks join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from levelfield.worker import Unsupported, check_layout, check_no_graph, check_parts, check_recomputed_layers
from levelfield.worker.job import Job
from worker_jobs import LLAMA, make_job

USES: dict[str, dict[str, Any]] = {
    "data": {"data": 2},
    "tensor": {"tensor": 2},
    "sequence": {"sequence_parallel": True},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
    "expert": {"expert": 2},
    "zero1": {"sharding_stage": 1},
    "zero3": {"sharding_stage": 3},
}


@pytest.mark.parametrize("kind", USES)
def test_a_kind_of_parallelism_is_refused_unless_it_is_named(kind: str, tmp_path: Path) -> None:
    others = [name for name in (*USES, "zero2", "interleaved") if name != kind]
    job = make_job(tmp_path, layout=USES[kind])
    with pytest.raises(Unsupported, match=rf"parallelism {kind}: .*\b{others[0]}\b"):
        check_layout(job, *others)
    check_layout(job, kind)


REFUSALS: dict[str, tuple[Callable[[Job], None], dict[str, Any], str]] = {
    "model chunks": (check_layout, {"virtual_pipeline": 2},
        "parallelism interleaved: this implementation does not have it; it trains in one process"),
    "some layers": (check_recomputed_layers, {"recompute_layers": 3},
        "recompute of the first 3 layers: this implementation has it of all layers"),
    "a graph": (check_no_graph, {"graph": True}, "graph: this implementation does not capture its steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_tuning_that_an_implementation_lacks_is_refused(name: str, tmp_path: Path) -> None:
    check, tuning, words = REFUSALS[name]
    check(make_job(tmp_path))
    with pytest.raises(Unsupported) as error:
        check(make_job(tmp_path, tuning=tuning))
    assert str(error.value).startswith(words)


def test_a_later_part_of_a_model_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    check_parts(make_job(tmp_path, model={**LLAMA, "qkv_bias": False, "experts": None}))
    with pytest.raises(Unsupported, match="head_dim, qkv_bias: "):
        check_parts(make_job(tmp_path, model={**LLAMA, "qkv_bias": True, "head_dim": 12}))
    check_parts(make_job(tmp_path, model={**LLAMA, "qkv_bias": True}), "qkv_bias")
