"""The parts of a step of Megatron-Core's GPTModel. kineto.py of the torch implementation records them."""

import re

from kineto import TorchProfile

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
NORMS = ("layernorm", "rotary_pos_emb")
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


def open_profile(job, trainer, scratch):
    numbers = range(len(trainer.chunks))
    losses = [(f"chunks.{number}.compute_language_model_loss", "head and loss") for number in numbers]
    buffers = [(f"wrapped.{number}.zero_grad_buffer", "optimizer") for number in numbers]
    named = [each for chunk in trainer.chunks for each in chunk.named_modules()]
    modules = [(place_of(name), part, module) for name, module in named if (part := part_of(name, module))]
    return TorchProfile(job, trainer, scratch, modules, (*METHODS, *losses, *buffers))


def place_of(name):
    """The name of a module, as near to the canonical one as it goes: layers.0.attention.linear_qkv."""
    return name.removeprefix("decoder.").replace("self_attention", "attention")


def part_of(name, module):
    """The part of a module; None of one that is only a container."""
    if name.endswith(NORMS):
        return "elementwise"
    found = [end for end in PARTS if name == end or name.endswith(f".{end}")]
    if found:
        return "router" if name.endswith(".mlp") and hasattr(module, "router") else PARTS[max(found, key=len)]
    return "elementwise" if BLOCK.search(name) else None  # a block by itself adds up
