"""Which kernel torch takes: the same choice as for tensors with memory, and as what its operators run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import MODELS
from levelfield.worker.job import namespace
from torch.nn.attention import SDPBackend
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
LENGTH, SEQUENCES = 32, 2


def job_of(family: str = "llama", context: int = 1, tensor: int = 1, kernel: str = "sdpa", **model: Any) -> Any:
    return SimpleNamespace(
        model=namespace({**MODELS[family], **model}),
        training=SimpleNamespace(sequence_length=LENGTH, precision="fp32"),
        tuning=SimpleNamespace(micro_batch=SEQUENCES, attention=kernel),
        layout=SimpleNamespace(context=context, tensor=tensor),
    )


def operators(job: Any) -> str:
    """The names of attention's operators in one call of the training's own attention."""
    from attention import choose_attention
    from attention_kernel import heads_of, lengths
    from levelfield.worker import part

    (queries, keys), (heads, key_heads, width, value_width) = lengths(job), heads_of(job)
    shapes = ((queries, heads, width), (keys, key_heads, width), (keys, key_heads, value_width))
    tensors = [torch.randn(SEQUENCES, *shape, requires_grad=True) for shape in shapes]
    attend = choose_attention("sdpa", job.model.attention_dropout, None, part(job.model, "sliding_window"))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        attend(*tensors).sum().backward()
    return " ".join(e.key for e in found.key_averages() if "_scaled_dot_product" in e.key)


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "flash"),
        ({"attention_dropout": 0.1}, "math"),  # torch's kernel for processors has no dropout
        ({"sliding_window": 8}, "flash"),
        ({"context": 2}, "flash"),
    ],
)
def test_the_named_kernel_is_what_the_training_runs(changes: dict[str, Any], kernel: str) -> None:
    from attention_kernel import attention_kernel

    job = job_of(**changes)
    assert attention_kernel(job, CPU) == kernel
    assert kernel in operators(job)


def test_it_needs_no_memory_of_the_tensors_sizes(monkeypatch) -> None:
    from attention_kernel import attention_kernel

    seen = []
    choice = torch._fused_sdp_choice
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *a, **k: (seen.extend(a), choice(*a, **k))[1])
    job = job_of(sliding_window=8)
    job.training.sequence_length, job.tuning.micro_batch = 1 << 20, 64
    assert attention_kernel(job, CPU) == "flash"
    assert len(seen) == 3 and all(t.untyped_storage().nbytes() <= 4 * 256 for t in seen)
    assert all(t.requires_grad and t.shape[2] == 1 << 20 for t in seen)


def test_dropout_window_and_groups_reach_torch(monkeypatch) -> None:
    from attention_kernel import attention_kernel

    asked = {}
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **options: asked.update(options) or 3)
    assert attention_kernel(job_of(attention_dropout=0.125), CPU) == "cudnn"
    assert (asked["dropout_p"], asked["is_causal"], asked["attn_mask"], asked["enable_gqa"]) == (
        0.125,
        True,
        None,
        True,
    )
    attention_kernel(job_of("gpt", context=2), CPU)
    assert (asked["is_causal"], asked["enable_gqa"]) == (False, False)
    assert asked["attn_mask"].shape == (LENGTH // 4, LENGTH)


@pytest.mark.parametrize("answer", [-1, 99, RuntimeError("not here"), TypeError("other arguments")])
def test_an_answer_that_names_no_kernel_is_none(monkeypatch, answer: Any) -> None:
    from attention_kernel import attention_kernel

    def choose(*_arguments: Any, **_options: Any) -> int:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    assert attention_kernel(job_of(), CPU) is None
    monkeypatch.delattr(torch, "_fused_sdp_choice")  # it is private: another version may not have it
    assert attention_kernel(job_of(), CPU) is None


def test_the_package_is_named_and_every_backend_has_its_own_name() -> None:
    from attention_kernel import NAMES, attention_kernel

    assert attention_kernel(job_of(kernel="flash_attn"), CPU) == "flash_attn"
    known = {SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION}
    assert set(NAMES) == known and len(set(NAMES.values())) == 4
