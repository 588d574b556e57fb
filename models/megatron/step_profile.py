"""The parts of a step of Megatron-Core's GPTModel. kineto.py of the torch implementation records them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kineto import TorchProfile

if TYPE_CHECKING:
    from pathlib import Path

    from levelfield.worker.job import Job
    from torch import nn
    from training import Trainer

# By the end of a module's name; the longest end counts. With transformer-engine a norm is inside the product after it.
PARTS = {
    "embedding": "embedding",
    "self_attention": "elementwise",  # what it does besides its products and its core: the rotation
    "self_attention.linear_qkv": "attention projections",
    "self_attention.linear_proj": "attention projections",
    "self_attention.core_attention": "attention core",
    "mlp": "mlp",
    "mlp.router": "router",
    "mlp.token_dispatcher": "router",
    "mlp.experts": "experts",
    "mlp.shared_experts": "experts",
    "output_layer": "head and loss",
}
BLOCK = re.compile(r"(^|\.)layers\.\d+$")
ELEMENTWISE_ENDS = ("layernorm", "rotary_pos_emb")  # of modules' names: norms and the rotation's angles
METHODS = (
    # What the schedule does besides the modules: copies of micro-batches, counts of tokens, the scale of the loss
    ("run_schedule", "elementwise"),
    ("optimizer.step", "optimizer"),
    ("optimizer.zero_grad", "optimizer"),
    ("optimizer.get_grad_norm", "gradient clipping"),
    ("optimizer.clip_grad_norm", "gradient clipping"),
    ("reduce", "head and loss"),
    ("mean_loss", "head and loss"),
)


def open_profile(job: Job, trainer: Trainer, scratch: Path) -> TorchProfile:
    numbers = range(len(trainer.chunks))
    loss_methods = [(f"chunks.{number}.compute_language_model_loss", "head and loss") for number in numbers]
    buffer_methods = [(f"ddp_chunks.{number}.zero_grad_buffer", "optimizer") for number in numbers]
    # the name of a module, as near to the canonical one as it goes: layers.0.attention.linear_qkv
    modules = [
        (name.removeprefix("decoder.").replace("self_attention", "attention"), part, module)
        for chunk in trainer.chunks
        for name, module in chunk.named_modules()
        if (part := find_part(name, module))
    ]
    return TorchProfile(job, trainer, scratch, modules, (*METHODS, *loss_methods, *buffer_methods))


def find_part(name: str, module: nn.Module) -> str | None:
    """Return the part of a module; None for one that is only a container."""
    if name.endswith(ELEMENTWISE_ENDS):
        return "elementwise"
    ends = [end for end in PARTS if name == end or name.endswith(f".{end}")]
    if ends:
        return "router" if name.endswith(".mlp") and hasattr(module, "router") else PARTS[max(ends, key=len)]
    return "elementwise" if BLOCK.search(name) else None  # a block by itself adds up
