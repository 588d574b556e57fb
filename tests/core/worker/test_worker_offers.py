"""Refusals that every implementation calls before the ranks join."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.worker import Unsupported, check_layout, check_no_graph, check_parts, check_recomputed_layers

ONE = {"data": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "sharding_stage": 0}
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


def job(chunks: int = 1, model: dict[str, Any] | None = None, **layout: Any) -> SimpleNamespace:
    whole = SimpleNamespace(**{**ONE, "sequence_parallel": False, **layout})
    tuning = SimpleNamespace(virtual_pipeline=chunks)
    return SimpleNamespace(layout=whole, tuning=tuning, model=SimpleNamespace(**(model or {})))


@pytest.mark.parametrize("kind", USES)
def test_a_kind_of_parallelism_is_refused_unless_it_is_named(kind: str) -> None:
    others = [name for name in (*USES, "zero2", "interleaved") if name != kind]
    with pytest.raises(Unsupported, match=f"parallelism {kind}: this implementation does not have it; it has "):
        check_layout(job(**USES[kind]), *others)
    check_layout(job(**USES[kind]), kind)


def test_model_chunks_and_one_process() -> None:
    check_layout(job())
    with pytest.raises(
        Unsupported, match="parallelism interleaved: this implementation does not have it; it trains in one process"
    ):
        check_layout(job(chunks=2))


def test_recomputation_of_some_layers_is_refused_where_it_is_of_all() -> None:
    check_recomputed_layers(SimpleNamespace(tuning=SimpleNamespace(recompute_layers=None)))
    with pytest.raises(Unsupported, match="recompute of the first 3 layers: this implementation has it of all layers"):
        check_recomputed_layers(SimpleNamespace(tuning=SimpleNamespace(recompute_layers=3)))


def test_a_graph_is_refused_where_no_step_is_captured() -> None:
    check_no_graph(SimpleNamespace(tuning=SimpleNamespace(graph=False)))
    with pytest.raises(Unsupported, match="graph: this implementation does not capture its steps"):
        check_no_graph(SimpleNamespace(tuning=SimpleNamespace(graph=True)))


def test_a_later_part_of_a_model_is_refused_unless_it_is_named() -> None:
    check_parts(job(model={"qkv_bias": False, "experts": None}))
    with pytest.raises(Unsupported, match="model parts head_dim, qkv_bias: "):
        check_parts(job(model={"qkv_bias": True, "head_dim": 12}))
    check_parts(job(model={"qkv_bias": True}), "qkv_bias")
