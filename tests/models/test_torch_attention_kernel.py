"""Which kernel torch takes: the same choice as for tensors with memory, and as what its operators run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import MODELS, parsed_model
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
LENGTH = 32


def small_job(family: str = "llama", context: int = 1, tensor: int = 1, kernel: str = "sdpa", **model: Any) -> Any:
    return SimpleNamespace(
        model=parsed_model({**MODELS[family], **model}),
        training=SimpleNamespace(sequence_length=LENGTH, precision="fp32"),
        tuning=SimpleNamespace(micro_batch=2, attention=kernel),
        layout=SimpleNamespace(context=context, tensor=tensor),
    )


def operators(job: Any) -> str:
    """The names of attention's operators in one call of the training's own attention."""
    from levelfield.worker import part
    from model.attention import choose_attention
    from model.attention_kernel import example

    tensors = [torch.randn_like(each.transpose(1, 2)).requires_grad_() for each in example(job, CPU)[:3]]
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
    from model.attention_kernel import attention_kernel

    job = small_job(**changes)
    assert attention_kernel(job, CPU) == kernel
    assert kernel in operators(job)


def test_dropout_window_and_groups_reach_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from model.attention_kernel import attention_kernel

    asked = {}
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **options: asked.update(options) or 3)
    assert attention_kernel(small_job(attention_dropout=0.125), CPU) == "cudnn"
    assert (asked["dropout_p"], asked["is_causal"], asked["attn_mask"], asked["enable_gqa"]) == (
        0.125,
        True,
        None,
        True,
    )
    attention_kernel(small_job("gpt", context=2), CPU)
    assert (asked["is_causal"], asked["enable_gqa"]) == (False, False)
    assert asked["attn_mask"].shape == (LENGTH // 4, LENGTH)


def test_context_ranks_of_cuda_need_no_mask_where_the_kernel_returns_its_log_sum_exp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from model import attention_kernel

    tensors_of, calls = attention_kernel.tensors_of, []
    monkeypatch.setattr(attention_kernel, "tensors_of", lambda job, device, *sizes: tensors_of(job, CPU, *sizes))

    def choice(job: Any, backend: int = 3, device: str = "cuda") -> str | None:
        def fused_choice(*inputs: Any, **more: Any) -> int:
            calls.append((inputs, more))
            return backend

        monkeypatch.setattr(torch, "_fused_sdp_choice", fused_choice)
        return attention_kernel.joined_kernel(job, torch.device(device))

    assert choice(small_job(context=2)) == "cudnn" and choice(small_job(context=2), 1) == "flash"
    (query, key, value), more = calls[0]
    assert query.shape[2] == key.shape[2] == value.shape[2] == LENGTH // 4
    assert more["is_causal"] and more["attn_mask"] is None
    assert attention_kernel.attention_kernel(small_job(context=2), torch.device("cuda")) == "flash"
    assert [choice(small_job(context=2), backend) for backend in (-1, 0, 2)] == [None] * 3
    changes: tuple[dict[str, Any], ...] = (
        {"attention_dropout": 0.1},
        {"sliding_window": 8},
        {"kernel": "flash_attn"},
        {"head_dim": 12},
    )
    assert [choice(small_job(context=2, **each)) for each in changes] == [None] * 4
    assert choice(small_job(context=1)) is None and choice(small_job(context=2), device="cpu") is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert choice(small_job(context=2)) is None


@pytest.mark.parametrize("error", [RuntimeError("not here"), NotImplementedError("not on this device")], ids=repr)
def test_a_device_whose_choice_is_unknown_has_no_name(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from model.attention_kernel import attention_kernel

    def choose(*_arguments: Any, **_options: Any) -> int:
        raise error

    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    assert attention_kernel(small_job(), CPU) is None


def test_the_package_is_named_without_asking_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from model.attention_kernel import attention_kernel

    monkeypatch.delattr(torch, "_fused_sdp_choice")
    assert attention_kernel(small_job(kernel="flash_attn"), CPU) == "flash_attn"
