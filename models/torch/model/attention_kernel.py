"""Which kernel computes the attention of a training: torch chooses one of its own by shape, type and device."""

from __future__ import annotations

from typing import Any

import torch
from levelfield.worker import head_size, part
from levelfield.worker.job import Job
from model.decoder import compute_dtype
from torch.nn.attention import SDPBackend


def attention_kernel(job: Job, device: torch.device) -> str | None:
    """Return the kernel's name: torch's flash, cudnn, efficient or math, or flash_attn.

    None where torch does not say it.
    """
    if job.tuning.attention == "flash_attn":
        return "flash_attn"
    return joined_kernel(job, device) or torch_choice(job, *example(job, device))


def joined_kernel(job: Job, device: torch.device) -> str | None:
    """Return the kernel of a context rank's calls without a mask (joined_attention.py); None where it needs a mask.

    A mask is needed by a sliding window, by dropout, and where torch's choice is a kernel without a log-sum-exp. On a
    processor it is as fast, and faster in bfloat16. HIP's kernels of the same names were not tried.
    """
    is_cuda = device.type == "cuda" and torch.version.hip is None
    needs_mask = job.model.attention_dropout or part(job.model, "sliding_window") is not None
    if not is_cuda or job.layout.context == 1 or job.tuning.attention == "flash_attn" or needs_mask:
        return None
    from parallelism.joined_attention import KERNELS

    piece = job.training.sequence_length // (2 * job.layout.context)
    query, key, value = tensors_of(job, device, piece, piece)
    kernel = torch_choice(job, query, key, value, None)
    return kernel if kernel in KERNELS and head_size(job.model) % 8 == 0 else None


def torch_choice(
    job: Job, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> str | None:
    """Return the kernel that torch chooses. query, key, value: [batch, heads, sequence, head_dim]."""
    options: dict[str, Any] = {"dropout_p": job.model.attention_dropout, "enable_gqa": query.shape[1] != key.shape[1]}
    try:
        choice = torch._fused_sdp_choice(query, key, value, attn_mask=mask, is_causal=mask is None, **options)
    except (NotImplementedError, RuntimeError):
        return None
    names = {int(backend): name for name, backend in SDPBackend.__members__.items()}  # type: ignore[call-overload]
    return names[choice].split("_")[0].lower() if choice in names else None


def example(job: Job, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return (query, key, value, mask) of one sequence, as scaled_dot_product has them.

    The choice does not depend on more. query, key, value: [1, heads, tokens, head_dim]; mask: [queries, keys].

    With context parallelism a piece of the sequence attends to all before its end, and needs a mask.
    """
    length = job.training.sequence_length
    queries = length if job.layout.context == 1 else length // (2 * job.layout.context)
    needs_mask = queries < length or part(job.model, "sliding_window") is not None
    mask = torch.empty(queries, length, dtype=torch.bool, device=device) if needs_mask else None
    return (*tensors_of(job, device, queries, length), mask)  # type: ignore[return-value]


def tensors_of(job: Job, device: torch.device, queries: int, keys: int) -> list[torch.Tensor]:
    """Return (query, key, value) of so many tokens of one sequence, [1, heads, tokens, head_dim]."""
    model, tensor = job.model, job.layout.tensor
    latent = part(model, "latent_attention")
    width, key_heads, value_width = head_size(model), model.kv_heads, head_size(model)
    if latent is not None:
        width, key_heads, value_width = latent.plain_size + latent.rotary_size, model.heads, latent.value_size
    sizes = ((queries, model.heads, width), (keys, key_heads, width), (keys, key_heads, value_width))
    options: dict[str, Any] = {"dtype": compute_dtype(job.training.precision), "device": device, "requires_grad": True}
    return [torch.empty(1, rows, heads // tensor, size, **options).transpose(1, 2) for rows, heads, size in sizes]
