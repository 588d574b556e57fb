"""Recomputation of activations (Chen et al., 2016) and compilation: both change how a block runs, not what it does."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import Unsupported, part
from levelfield.worker.job import Job, Tuning
from model.onednn import uses_onednn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from model.decoder import Decoder

_SAVED_OPERATIONS = [
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_grouped_mm",
    "levelfield::product",
    "levelfield::joined_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "flash_attn::_flash_attn_forward",
]


def check_recompute(tuning: Tuning) -> None:
    """Check what to recompute. Raises Unsupported for what `recompute_blocks` does not have."""
    mode, layers = tuning.recompute, tuning.recompute_layers
    if mode not in ("none", "selective", "full"):
        raise Unsupported(f"recompute '{mode}'; this implementation has none, selective and full")
    if layers is not None and (mode != "full" or layers < 1):
        raise Unsupported(f"recompute '{mode}' of {layers} layers; this implementation has 1 or more with full")


def recompute_blocks(model: Decoder, tuning: Tuning) -> None:
    """Set what each block keeps for its backward pass.

    It is everything (none), matrix products and attention (selective), or only its input (full). With recompute_layers
    that is so of the first blocks of this stage, and the others keep everything.
    """
    mode = tuning.recompute
    for block in list(model.layers.values())[: tuning.recompute_layers] if mode != "none" else ():
        has_dropout = bool(model.model.hidden_dropout or model.model.attention_dropout)
        block.forward = partial(_run, block.forward, mode, has_dropout)


def repeats(job: Job) -> str:
    """Return what the backward pass repeats, for the platform's count (levelfield.measure.flops).

    Full: torch ends a block's second forward pass at the last tensor that the backward pass needs. That is the input
    of mlp.down, unless dropout follows. Products by oneDNN or in fp8 hand their inputs over only after they were
    computed. In a mixture the gates' gradients need what the experts return; its dense layers, which are few, are
    counted as its others.
    """
    mode = job.tuning.recompute
    needs_last_product = job.model.hidden_dropout or products_by_onednn(job) or part(job.model, "experts") is not None
    needs_last_product = needs_last_product or job.training.precision == "fp8"
    return "full-except-down" if mode == "full" and (job.tuning.compile or not needs_last_product) else mode


def products_by_onednn(job: Job) -> bool:
    """Return whether OneDnnLinear computes the products of the blocks."""
    return uses_onednn() and job.device == "cpu" and job.training.precision == "fp32" and job.layout.tensor == 1


def compile_whole(model: Decoder) -> None:
    """Compile all that precedes the head by torch.compile, without torch's launches and checks between blocks.

    The head is not compiled: it has kernels and products of its own in any case.
    """
    if model.tied is not None:
        model.embed = torch.compiler.disable(model.embed)  # type: ignore[method-assign]  # its gradient joins the head's: tied.py
    model.hidden = torch.compile(model.hidden)  # type: ignore[method-assign]


def compile_blocks(model: Decoder) -> None:
    """Compile each block by torch.compile; they share one compilation, as they differ in their parameters only.

    Their gradients are there one after another, as their exchange wants it.
    """
    for block in model.layers.values():
        block.forward = torch.compile(block.forward)


def compiled_part(job: Job) -> str | None:
    """Return what of the model is compiled: `whole`, `blocks` or None. Capture and explain need blocks to hook them."""
    if not job.tuning.compile:
        return None
    needs_hooks = job.capture is not None or getattr(job, "explain_step", None) is not None
    return "blocks" if job.world_size > 1 or needs_hooks else "whole"


def compile_seconds() -> float | None:
    """Return the seconds that torch.compile has taken in this process; None where it was not used."""
    compiler = sys.modules.get("torch._dynamo.utils")
    seconds = 0.0 if compiler is None else compiler.calculate_time_spent()["total_wall_time"]
    return seconds or None


def _run(forward: Callable[..., torch.Tensor], mode: str, has_dropout: bool, *inputs: Any) -> Any:
    options: dict[str, Any] = {"context_fn": _selective_contexts} if mode == "selective" else {}
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=has_dropout, **options)


def _selective_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-any-return]


def _policy(_context: object, operation: Any, *_inputs: object, **_options: object) -> CheckpointPolicy:
    is_saved = operation.name().split(".")[0] in _SAVED_OPERATIONS if hasattr(operation, "name") else False
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE
