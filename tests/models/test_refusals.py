"""What each framework cannot do: refused by an event of its own class, before any rank joins the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from layouts import MODELS, NOBODY_JOINS, ROOT, SINGLE, Variant, events, launch, parsed_job, planted, small_job
from levelfield.worker import Unsupported

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

ZERO_2 = {"data": 2, "sharding_stage": 2, "sharding_degree": 2}
EXPERTS = MODELS["mixture"]["experts"]
COMPILED, CAPTURED, FLASH = (
    {"tuning": each} for each in ({"compile": True}, {"graph": True}, {"attention": "flash_attn"})
)
NO_GRAPH = "does not capture its steps"
# By framework: what a job of the small GPT changes, and what the refusal says.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "torch": [
        ({"precision": "fp8", "layout": {"tensor": 2}}, "fp8 with tensor parallel 2: not written"),
        ({"layout": {"tensor": 3}}, "heads 4"),
        ({"layout": {"pipeline": 4}, "model": {"layers": 2}}, "4 stages"),
        (FLASH, "flash-attn cannot be imported"),
        ({"tuning": {"recompute": "some"}}, "recompute 'some'"),
    ],
    "paddle": [
        ({"layout": {"tensor": 3}}, "heads 4"),
        ({"layout": {"pipeline": 3}, "accumulation": 2}, "2 micro-batches a step"),
        ({"layout": ZERO_2}, "accelerators only"),
        ({"layout": {"tensor": 2, "sequence_parallel": True}}, "parallelism sequence"),
        ({"layout": {"context": 2}}, "parallelism context"),
        ({"tuning": {"recompute": "selective"}}, "selective"),
        (COMPILED, "dynamic graph"),
        (CAPTURED, NO_GRAPH),
        ({"precision": "bf16"}, "float32 only"),
        (FLASH, "accelerators only"),
    ],
    "deepspeed": [
        ({"layout": {"tensor": 2}}, "parallelism tensor"),
        ({"layout": {"pipeline": 2}}, "parallelism pipeline"),
        ({"precision": "fp8"}, "precision fp8"),
        ({"layout": {"data": 4, "sharding_stage": 3, "sharding_degree": 2}}, "2 of 4 ranks"),
        (CAPTURED, NO_GRAPH),
    ],
    "oneflow": [
        ({"layout": {"tensor": 3}}, "heads 4"),
        ({"layout": {"pipeline": 5}}, "4 layers"),
        ({"layout": {"data": 2, "sharding_stage": 1, "sharding_degree": 2}}, "parallelism zero1: this implementation"),
        ({"layout": {"tensor": 2, "sequence_parallel": True}}, "parallelism sequence"),
        ({"layout": {"context": 2}}, "parallelism context"),
        ({"model": {"query_key_norm": True}}, "model parts query_key_norm"),
        ({"tuning": {"recompute": "selective"}}, "selective"),
        (COMPILED, "eagerly"),
        (CAPTURED, NO_GRAPH),
        (FLASH, "flash_attn"),
        ({"precision": "bf16"}, "has fp32, and fp16 on NVIDIA devices"),
        ({"precision": "fp16"}, "OneFlow's automatic mixed precision is for CUDA"),
    ],
    "jax": [
        ({"layout": {"tensor": 3}}, "heads 4"),
        ({"layout": {"pipeline": 2}}, "pipeline parallel over 2 ranks: not written"),
        ({"layout": {"tensor": 2, "context": 2}}, "context parallel over 2 ranks: not written"),
        (COMPILED, "XLA compiles"),
        (CAPTURED, NO_GRAPH),
        (FLASH, "flash_attn"),
        ({"tuning": {"recompute": "some"}}, "none, selective and full"),
        ({"precision": "fp16"}, "fp32 and bf16"),
        ({"model": {"sliding_window": 8}}, "model parts sliding_window"),
        ({"model": {"activation": "geglu_tanh"}}, "activation geglu_tanh"),
    ],
    "megatron": [
        ({"layout": {"tensor": 3}}, "heads 4, kv_heads 4, ffn_hidden_size 128, vocab_size 128"),
        ({"layout": {"pipeline": 3}}, "4 layers"),
        ({"layout": {"sequence_parallel": True}}, "needs tensor parallel"),
        ({"layout": ZERO_2}, "is stage 1"),
        ({"layout": {"data": 4, "sharding_stage": 1, "sharding_degree": 2}}, "2 of 4 data-parallel ranks"),
        ({"precision": "fp8"}, "fp8 needs an NVIDIA device"),
        (FLASH, "transformer-engine's"),
        (COMPILED, "fuses its own"),
        (CAPTURED, NO_GRAPH),
        ({"tuning": {"recompute": "some"}}, "recompute 'some'"),
        ({"tuning": {"virtual_pipeline": 2}}, "interleaves the stages of a pipeline; this has one"),
        ({"layout": {"pipeline": 4}, "tuning": {"virtual_pipeline": 2}}, "divided into 2 chunks for each of 4 stages"),
        ({"layout": {"pipeline": 2}, "tuning": {"virtual_pipeline": 2}, "accumulation": 1}, "no multiple of 2 stages"),
        ({"layout": {"data": 3, "expert": 3}, "model": {"experts": EXPERTS}}, "4 experts cannot be divided"),
        ({"layout": {"tensor": 2}, "model": {"experts": EXPERTS, "bias": False}}, "needs sequence parallel"),
        ({"layout": {"context": 3}}, "context parallel over 3 ranks cannot divide a sequence"),
        ({"model": {"experts": EXPERTS, "bias": True}}, "experts with biases"),
        ({"layout": {"data": 2, "expert": 2}}, "has no experts"),
        ({"model": {"norm": "layernorm", "query_key_norm": True}}, "expected rmsnorm"),
        ({"layout": {"data": 2, "context": 2, "sharding_stage": 1, "sharding_degree": 2}}, "2 of 4 data-parallel"),
    ],
}  # fmt: skip
# These frameworks check a job in a module of its own, which needs no rank.
CHECKED_ALONE = ("oneflow", "jax", "megatron")


def refused_job(change: dict[str, Any]) -> dict[str, Any]:
    model = {**MODELS["gpt"], **change.get("model", {})}
    job = small_job(model, Variant("refused", change.get("layout", {})), 2, precision=change.get("precision", "fp32"))
    job["tuning"].update(change.get("tuning", {}))
    return {**job, "accumulation": change.get("accumulation", job["accumulation"])}


def limits(framework: str) -> ModuleType:
    """models/<framework>/limits.py. On the path, its folder would hide names of models/torch."""
    path = ROOT / "models" / framework / "limits.py"
    spec = importlib.util.spec_from_file_location(f"{framework}_limits", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def rows(frameworks: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, *row, id=f"{name} {row[1]}") for name in frameworks for row in REFUSED[name]]


@pytest.mark.parametrize(("framework", "change", "words"), rows(CHECKED_ALONE))
def test_a_check_that_needs_no_rank_refuses(framework: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        limits(framework).check(parsed_job(refused_job(change)))


FIRST = [pytest.param(name, *REFUSED[name][0], id=name) for name in CHECKED_ALONE]


@pytest.mark.parametrize(("framework", "change", "words"), [*rows(("torch", "paddle", "deepspeed")), *FIRST])
def test_what_cannot_be_done_is_unsupported(
    framework: str, change: dict[str, Any], words: str, tmp_path: Path, interpreter_of: Callable[[str], Path]
) -> None:
    """Each rank that starts says so; none waits for another, and jax is not even imported."""
    alone = "import sys; sys.modules['jax'] = None" if framework == "jax" else NOBODY_JOINS
    job = refused_job(change)
    script = planted(tmp_path, framework, "pass" if framework in ("paddle", "oneflow") else alone)
    ends = launch(job, tmp_path, script, interpreter_of(framework))
    assert {end.returncode for end in ends} == {1}
    for rank in range(len(ends)):
        error = events(tmp_path, rank)[-1]
        assert (error["event"], error["class"]) == ("error", "unsupported") and words in error["message"]


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("mixture", {"data": 2, "tensor": 2, "sequence_parallel": True, "expert": 2}),
        ("llama", {"data": 2, "sharding_stage": 1, "sharding_degree": 2, "tensor": 2, "sequence_parallel": True}),
        ("llama", SINGLE.layout),
    ],
)
def test_megatron_does_not_refuse_what_it_can_do(family: str, layout: dict[str, Any]) -> None:
    pipeline = {} if family == "mixture" else {"pipeline": 2}
    limits("megatron").check(parsed_job(small_job(MODELS[family], Variant("all", {**layout, **pipeline}), 2)))
