"""The parts of a step of model/decoder.py, which DeepSpeed trains as well. kineto.py records them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kineto import TorchProfile
from levelfield.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

# The part that each module of model/decoder.py belongs to, by the end of its name; the longest end counts.
PARTS = {
    "embedding": "embedding",
    "position": "embedding",
    "attention": "elementwise",  # what it does besides its products and its core: the rotation
    "attention.query": "attention projections",
    "attention.key": "attention projections",
    "attention.value": "attention projections",
    "attention.output": "attention projections",
    "mlp": "mlp",
    "head": "head and loss",
}
MIXTURE = {"mlp.router": "router", "mlp.experts": "experts", "mlp.shared": "experts", "mlp": "router"}
LATENT = ("query_down", "query_up", "latent_down", "latent_up", "key_up", "value_up")
# Methods of a training that are a part by themselves: (the path to the method, the part)
METHODS = (
    ("optimizer.take_gradients", "optimizer"),
    ("optimizer.step", "optimizer"),
    ("optimizer.drop_gradients", "optimizer"),
    ("optimizer.squares", "gradient clipping"),
    ("reduce", "gradient clipping"),
    ("clip", "gradient clipping"),
    ("update", "gradient clipping"),  # what it does besides the optimizer
    ("casts.make", "elementwise"),
    ("engine.step", "optimizer"),
    ("engine.optimizer.scaled_global_norm", "gradient clipping"),
    ("engine.optimizer.unscale_and_clip_grads", "gradient clipping"),
)
# The same of the model, or of each of its chunks where stages are interleaved
END_METHODS = (("embed", "embedding"), ("scores", "head and loss"))  # also where the embedding is the head


def open_profile(job: Job, trainer: Any, scratch: Path) -> TorchProfile:
    modules: Iterator[tuple[str, Any, nn.Module]]
    trainer.graph = None  # the further steps launch each kernel by itself: in a graph none has a part
    modules = ((name, find_part(name, module), module) for name, module in trainer.model.named_modules())
    owners = [f"model.chunks.{number}" for number, _ in enumerate(getattr(trainer.model, "chunks", ()))] or ["model"]
    ends = [(f"{owner}.{method}", part) for owner in owners for method, part in END_METHODS]
    return TorchProfile(job, trainer, scratch, [entry for entry in modules if entry[1]], (*METHODS, *ends))


def find_part(name: str, module: nn.Module) -> str | None:
    """Return the part of a module; None for one that is only a container."""
    ends = {**PARTS, **(MIXTURE if hasattr(module, "tally") or ".mlp." in name else {})}
    last = name.rsplit(".", 1)[-1]
    if last in LATENT:
        return "attention projections"
    if "norm" in last:
        return "elementwise"
    matches = [end for end in ends if name == end or name.endswith(f".{end}")]
    if not matches and name.count(".") == 1 and name.startswith("layers."):
        return "elementwise"  # a block by itself adds up
    return ends[max(matches, key=len)] if matches else None
