"""The jobs of the small models: the same work in one process and in parallel layouts."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

LONG_STEPS = 40  # to the end of the learning rate's decay


@dataclass(frozen=True)
class Variant:
    """One way to run the work: the layout, and what else differs from one process with accumulation."""

    name: str
    layout: dict[str, Any] = field(default_factory=dict)
    micro_batch: int = 2
    recompute: str = "none"
    compile: bool = False
    virtual_pipeline: int = 1

    @property
    def ranks(self) -> int:
        return math.prod(self.layout.get(key, 1) for key in ("data", "context", "tensor", "pipeline"))


SINGLE = Variant("1 process, accumulation 4")


def job_of(model: dict[str, Any], variant: Variant, steps: int = LONG_STEPS, **changes: Any) -> dict[str, Any]:
    """The job of `variant` on `model`; `changes` replace fields of training."""
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 0}
    layout = {**layout, "sharding_degree": 1, **variant.layout}
    training = {
        "steps": steps, "sequence_length": 32, "global_batch": 8, "precision": "fp32",
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"style": "cosine", "peak_lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 5, "decay_steps": LONG_STEPS},
        "loss_scale": None, "gradient_clip": 1.0, "seed": 7, **changes,
    }  # fmt: skip
    return {
        "schema": "levelfield.job/1", "run_id": "layouts", "case": "layouts", "scale": "smoke",
        "model": copy.deepcopy(model), "training": training, "corpus": {"kind": "synthetic"}, "layout": layout,
        "data": {"seed": 7, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "tuning": {"micro_batch": variant.micro_batch, "recompute": variant.recompute, "compile": variant.compile,
                   "attention": "sdpa", "threads": 1, "environment": {},
                   "virtual_pipeline": variant.virtual_pipeline},
        "accumulation": training["global_batch"] // (variant.micro_batch * layout["data"]),
        "device": "cpu", "backend": "gloo", "preload": [],
        "gradient_steps": [1, 2, 10], "capture": None, "save_weights_dir": None,
    }  # fmt: skip
