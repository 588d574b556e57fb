"""The small models that every framework trains in its tests, and their jobs in one process and in parallel layouts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from levelfield.errors import NotHere
from levelfield.plan.arrangement import refuse_unsupported
from levelfield.predict.layout_rules import broken_rules
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision, Work
from levelfield.specs.implementation import ImplementationFile, Refusable, refused_choices
from levelfield.specs.tuning import Tuning

LONG_STEPS = 40  # the steps until the learning rate has decayed
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "family": "gpt", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "heads": 4, "kv_heads": 4,
        "vocab_size": 128, "positions": "learned", "rope_base": None, "norm": "layernorm", "norm_eps": 1e-5,
        "activation": "gelu_tanh", "bias": True, "tied_embeddings": True, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
    "llama": {
        "family": "llama", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 96, "heads": 4, "kv_heads": 2,
        "vocab_size": 128, "positions": "rope", "rope_base": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-5,
        "activation": "swiglu", "bias": False, "tied_embeddings": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
}  # fmt: skip
MODELS["qwen"] = {
    **MODELS["llama"],
    "family": "qwen", "norm_eps": 1e-6, "head_dim": 12, "qkv_bias": True, "query_key_norm": True,
    "rope_scaling": {"kind": "llama3", "factor": 4.0, "original_length": 16, "low_factor": 1.0,
                     "high_factor": 4.0, "beta_fast": None, "beta_slow": None, "magnitude": None},
}  # fmt: skip
MODELS["mixture"] = {
    **MODELS["llama"],
    "family": "mixture",
    "query_key_norm": True,
    "experts": {
        "count": 4, "chosen": 2, "ffn_hidden_size": 48, "shared": 1, "first_layer": 1, "every": 1,
        "router": {"scores": "softmax", "normalised": True, "scale": 1.0, "groups": None, "auxiliary_loss": 0.01,
                   "z_loss": 0.0, "bias_rate": 0.0},
        "capacity_factor": None,
    },
}  # fmt: skip
COMMON_MODELS = ("gpt", "llama")  # what every framework trains
_TWO_LAYER_MODELS = {name: {**MODELS[name], "layers": 2} for name in COMMON_MODELS}
_ROPE_SCALING = {"original_length": 16, "low_factor": None, "high_factor": None, "beta_fast": None, "beta_slow": None,
           "magnitude": None, "factor": 4.0}  # fmt: skip
_LATENT_ATTENTION = {"query_rank": 16, "key_value_rank": 12, "plain_size": 8, "rotary_size": 4, "value_size": 8}
_LLAMA_CHANGES: dict[str, dict[str, Any]] = {
    "geglu_tanh": {"activation": "geglu_tanh"},
    "tied_embeddings": {"tied_embeddings": True},
    "bias": {"bias": True},
    "head_dim": {"head_dim": 12},
    "qkv_bias": {"qkv_bias": True},
    "attention_bias": {"attention_bias": True},
    "unbiased_layernorm": {"norm": "layernorm", "norm_bias": False},
    "query_key_norm": {"query_key_norm": True},
    "joint_query_key_norm": {"joint_query_key_norm": True},
    "sliding_window": {"sliding_window": 8},
    "full_attention_layers": {"sliding_window": 8, "full_attention_interval": 2},
    "partial_rotary": {"rotary_dim": 4},
    "no_rope_layers": {"no_rope_interval": 2},
    "norm_after": {"norm_place": "after"},
    "parallel_residual": {"parallel_residual": "one_norm"},
    "embedding_scale": {"embedding_scale": 4.0},
    "residual_scale": {"residual_scale": 0.5},
    "logit_scale": {"logit_scale": 0.5},
    "attention_scale": {"attention_scale": 0.2},
    "rope_linear": {"rope_scaling": {**_ROPE_SCALING, "kind": "linear", "original_length": None}},
    "rope_llama3": {"rope_scaling": MODELS["qwen"]["rope_scaling"]},
    "rope_yarn": {"rope_scaling": {**_ROPE_SCALING, "kind": "yarn", "beta_fast": 4.0, "beta_slow": 1.0}},
    "latent_attention": {"kv_heads": 4, "latent_attention": _LATENT_ATTENTION},
}
# By part of a model that not every small model has: a model with it.
PART_MODELS: dict[str, dict[str, Any]] = {
    "gelu": {**_TWO_LAYER_MODELS["gpt"], "activation": "gelu"},
    **{part: {**_TWO_LAYER_MODELS["llama"], **changes} for part, changes in _LLAMA_CHANGES.items()},
}


@dataclass(frozen=True)
class Variant:
    """One way to run the work: the layout, and what else differs from one process with accumulation."""

    name: str
    layout: dict[str, Any] = field(default_factory=dict)
    micro_batch: int = 2
    recompute: str = "none"
    compile: bool = False
    graph: bool = False
    virtual_pipeline: int = 1
    recompute_layers: int | None = None

    @property
    def ranks(self) -> int:
        return math.prod(self.layout.get(key, 1) for key in ("data", "context", "tensor", "pipeline"))


LOSS_SCALE = {"initial": 256.0, "growth_interval": 1000}
SINGLE = Variant("1 process, accumulation 4")


def small_job(
    model: dict[str, Any], variant: Variant, steps: int = LONG_STEPS, precision: str = "fp32", **changes: Any
) -> dict[str, Any]:
    """Return the job of `variant` on `model`; fp16 has a loss scale. `changes` replace fields of training."""
    layout = {"data": 1, "tensor": 1, "pipeline": 1, "sequence_parallel": False, "sharding_stage": 0}
    layout = {**layout, "sharding_degree": 1, **variant.layout}
    training = {
        "steps": steps, "sequence_length": 32, "global_batch": 8, "precision": precision,
        "optimizer": {"name": "adamw", "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"style": "cosine", "peak_lr": 2e-3, "min_lr": 2e-4, "warmup_steps": 5, "decay_steps": LONG_STEPS},
        "loss_scale": LOSS_SCALE if precision == "fp16" else None, "gradient_clip": 1.0, "seed": 7, **changes,
    }  # fmt: skip
    return {
        "schema": "levelfield.job/1", "run_id": "layouts", "case": "layouts", "scale": "smoke",
        "model": copy.deepcopy(model), "training": training, "corpus": {"kind": "synthetic"}, "layout": layout,
        "data": {"seed": 7, "shuffle": True, "split": [1.0, 0.0, 0.0], "alphabet": 32, "branching": 4},
        "tuning": {"micro_batch": variant.micro_batch, "recompute": variant.recompute, "compile": variant.compile,
                   "graph": variant.graph, "attention": "sdpa", "threads": 1, "environment": {},
                   "virtual_pipeline": variant.virtual_pipeline, "recompute_layers": variant.recompute_layers},
        "accumulation": training["global_batch"] // (variant.micro_batch * layout["data"]),
        "device": "cpu", "backend": "gloo", "preload": [],
        "gradient_steps": [1, 2, 10], "capture": None, "save_weights_dir": None,
    }  # fmt: skip


def enlarge_weights(model: dict[str, Any]) -> dict[str, Any]:
    """Return the model with weights five times as large, so that activation functions are not nearly linear.

    With small weights they are, and a wrong constant in one of them changes no digit that is compared.
    """
    return {**model, "init_std": 0.1}


def enlarge_vocabulary(model: dict[str, Any]) -> dict[str, Any]:
    """Return one layer of the model with an embedding of a million elements.

    A float32 sum over so many, added one after another, is wrong in the fourth or fifth digit.
    """
    return {**model, "layers": 1, "vocab_size": 32768}


SEQUENCE_PARALLEL = {"tensor": 2, "sequence_parallel": True}
# In 16 bits each kind of parallelism runs once. Their combinations add no arithmetic of their own.
VARIANTS_IN_16_BITS = (SINGLE.name, "DP2", "ZeRO 1, DP2", "ZeRO 2, DP2", "ZeRO 3, DP2", "TP2", "TP2 sequence parallel",
                   "CP2", "PP2", "EP2", "DP2 x TP2", "DP2 x PP2", "TP2 x PP2")  # fmt: skip


def zero_layout(stage: int, data: int = 2, degree: int = 2, **other_degrees: int) -> dict[str, int]:
    """Return the keys of a layout whose weights, gradients or optimizer states are sharded."""
    return {"data": data, "sharding_stage": stage, "sharding_degree": degree, **other_degrees}


# One process, then each kind of parallelism alone, then two kinds together.
STANDARD_VARIANTS: tuple[Variant, ...] = (
    SINGLE,
    Variant("accumulation 1", micro_batch=8),
    Variant("recompute selective", recompute="selective"),
    Variant("recompute full", recompute="full"),
    Variant("recompute full of 1 layer", recompute="full", recompute_layers=1),
    Variant("compile", compile=True),
    Variant("graph", graph=True),
    Variant("DP2", {"data": 2}),
    Variant("ZeRO 1, DP2", zero_layout(1)),
    Variant("ZeRO 2, DP2", zero_layout(2)),
    Variant("ZeRO 3, DP2", zero_layout(3)),
    Variant("ZeRO 1 over 2 of DP4", zero_layout(1, 4)),
    Variant("ZeRO 2 over 2 of DP4", zero_layout(2, 4), micro_batch=1),
    Variant("ZeRO 3 over 2 of DP4", zero_layout(3, 4), micro_batch=1),
    Variant("TP2", {"tensor": 2}),
    Variant("TP2 sequence parallel", SEQUENCE_PARALLEL),
    Variant("CP2", {"context": 2}),
    Variant("PP2", {"pipeline": 2}),
    Variant("PP4", {"pipeline": 4}),
    Variant("PP2 interleaved", {"pipeline": 2}, virtual_pipeline=2),
    Variant("EP2", {"data": 2, "expert": 2}),
    Variant("DP2 x TP2", {"data": 2, "tensor": 2}),
    Variant("DP2 x PP2", {"data": 2, "pipeline": 2}),
    Variant("TP2 x PP2", {"tensor": 2, "pipeline": 2}),
    Variant("ZeRO 1, DP2 x TP2", zero_layout(1, tensor=2)),
    Variant("ZeRO 3, DP2 x TP2", zero_layout(3, tensor=2)),
    Variant("ZeRO 1, DP2 x PP2", zero_layout(1, pipeline=2)),
    Variant("ZeRO 2, DP2 x PP2", zero_layout(2, pipeline=2)),
    Variant("ZeRO 3, DP2 x PP2", zero_layout(3, pipeline=2)),
    Variant("TP2 sequence parallel x PP2, recompute full", {**SEQUENCE_PARALLEL, "pipeline": 2}, recompute="full"),
)


def has_parts(implementation: ImplementationFile, model: dict[str, Any]) -> bool:
    """Return whether the framework has every part of the model."""
    return set(Model.model_validate(model).parts) <= set(implementation.architecture)


def offered_variants(
    implementation: ImplementationFile,
    kind: str,
    model: dict[str, Any],
    precision: Precision,
    variants: Iterable[Variant] = STANDARD_VARIANTS,
) -> Iterator[Variant]:
    """Yield the variants that the manifest offers on this device kind and that are possible for the model."""
    for variant in variants:
        if precision != "fp32" and variant.name not in VARIANTS_IN_16_BITS:
            continue
        if variant.layout.get("expert", 1) > 1 and not model.get("experts"):
            continue
        job = small_job(model, variant, precision=precision)
        if not refusal_reason(implementation, kind, job):
            yield variant


def refusable_choices(job: dict[str, Any]) -> list[Refusable]:
    """Return the choices of this job that a manifest may refuse by name."""
    return refused_choices(get_args(Refusable), *_work_and_tuning(job), captures_tensors=job["capture"] is not None)


def _work_and_tuning(job: dict[str, Any]) -> tuple[Work, Tuning]:
    steps = job["training"]["steps"]
    content = {  # as a case at this size would have it
        **{key: job[key] for key in ("model", "training", "data")},
        "window": {"first_step": min(11, steps), "last_step": steps},
        "acceptance": {"final_loss_below_fraction": 1.0, "tail_steps": 1},
        "limits": {"heartbeat_seconds": 60, "step_seconds": 60, "start_seconds": LONG_STEPS * 10},
    }
    return Work.model_validate(content), Tuning.model_validate({**job["tuning"], "layout": job["layout"]})


def refusal_reason(implementation: ImplementationFile, kind: str, job: dict[str, Any]) -> str | None:
    """Return why the manifest or the model's sizes exclude this job; None where they do not."""
    work, tuning = _work_and_tuning(job)
    layout = tuning.layout
    uneven = "uneven" in implementation.offered_parallelism(kind)
    if reasons := broken_rules(work, layout, tuning.micro_batch, 1, layout.world_size, tuning.virtual_pipeline, uneven):
        return reasons[0]
    try:
        refuse_unsupported(implementation, work, tuning, kind, captures_tensors=job["capture"] is not None)
    except NotHere as error:
        return str(error)
    return None
