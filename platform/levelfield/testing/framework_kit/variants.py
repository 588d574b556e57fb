"""The layouts that the small models are trained in, and which of them a manifest offers for a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from levelfield.errors import NotHere
from levelfield.plan.arrangement import refuse_unsupported
from levelfield.predict.layout_rules import broken
from levelfield.specs.architecture import Model
from levelfield.specs.case import Precision, Work
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.tuning import Tuning
from levelfield.testing.framework_kit.small_jobs import LONG_STEPS, SINGLE, Variant, job_of


def zero(stage: int, data: int = 2, degree: int = 2, **more: int) -> dict[str, int]:
    """Return the keys of a layout whose weights, gradients or optimizer states are sharded."""
    return {"data": data, "sharding_stage": stage, "sharding_degree": degree, **more}


SEQUENCE = {"tensor": 2, "sequence_parallel": True}

# One process, then each kind of parallelism alone, then two kinds together.
TRIED: tuple[Variant, ...] = (
    SINGLE,
    Variant("accumulation 1", micro_batch=8),
    Variant("recompute selective", recompute="selective"),
    Variant("recompute full", recompute="full"),
    Variant("compile", compile=True),
    Variant("DP2", {"data": 2}),
    Variant("ZeRO 1, DP2", zero(1)),
    Variant("ZeRO 2, DP2", zero(2)),
    Variant("ZeRO 3, DP2", zero(3)),
    Variant("ZeRO 1 over 2 of DP4", zero(1, 4)),
    Variant("ZeRO 2 over 2 of DP4", zero(2, 4), micro_batch=1),
    Variant("ZeRO 3 over 2 of DP4", zero(3, 4), micro_batch=1),
    Variant("TP2", {"tensor": 2}),
    Variant("TP2 sequence parallel", SEQUENCE),
    Variant("CP2", {"context": 2}),
    Variant("PP2", {"pipeline": 2}),
    Variant("PP4", {"pipeline": 4}),
    Variant("PP2 interleaved", {"pipeline": 2}, virtual_pipeline=2),
    Variant("EP2", {"data": 2, "expert": 2}),
    Variant("DP2 x TP2", {"data": 2, "tensor": 2}),
    Variant("DP2 x PP2", {"data": 2, "pipeline": 2}),
    Variant("TP2 x PP2", {"tensor": 2, "pipeline": 2}),
    Variant("ZeRO 1, DP2 x TP2", zero(1, tensor=2)),
    Variant("ZeRO 3, DP2 x TP2", zero(3, tensor=2)),
    Variant("ZeRO 1, DP2 x PP2", zero(1, pipeline=2)),
    Variant("ZeRO 2, DP2 x PP2", zero(2, pipeline=2)),
    Variant("ZeRO 3, DP2 x PP2", zero(3, pipeline=2)),
    Variant("TP2 sequence parallel x PP2, recompute full", {**SEQUENCE, "pipeline": 2}, recompute="full"),
)
# In 16 bits: each kind of parallelism once. Other mixes add no arithmetic of their own.
OF_SIXTEEN_BITS = (SINGLE.name, "DP2", "ZeRO 1, DP2", "ZeRO 2, DP2", "ZeRO 3, DP2", "TP2", "TP2 sequence parallel",
                   "CP2", "PP2", "EP2", "DP2 x TP2", "DP2 x PP2", "TP2 x PP2")  # fmt: skip
SCALE = {"initial": 256.0, "growth_interval": 1000}


def has_parts(implementation: ImplementationFile, model: dict[str, Any]) -> bool:
    """Return whether the framework has every part of the model."""
    return set(Model.model_validate(model).parts) <= set(implementation.architecture)


def small_job(model: dict[str, Any], variant: Variant, precision: Precision, **changes: Any) -> dict[str, Any]:
    """Return the job of a variant in a precision; fp16 has a loss scale."""
    scale = {"loss_scale": SCALE} if precision == "fp16" else {}
    return job_of(model, variant, precision=precision, **{**scale, **changes})


def offered(
    implementation: ImplementationFile,
    kind: str,
    model: dict[str, Any],
    precision: Precision,
    variants: Iterable[Variant] = TRIED,
) -> Iterator[Variant]:
    """Return those of `variants` that the manifest offers for a model on a device kind and that are possible for it."""
    for variant in variants:
        if precision != "fp32" and variant.name not in OF_SIXTEEN_BITS:
            continue
        if variant.layout.get("expert", 1) > 1 and not model.get("experts"):
            continue
        job = small_job(model, variant, precision)
        if not refusal(implementation, kind, job):
            yield variant


def refusal(implementation: ImplementationFile, kind: str, job: dict[str, Any]) -> str | None:
    """Return why the manifest or the model's sizes exclude this job; None where they do not."""
    work, tuning = work_of(job), tuning_of(job)
    layout = tuning.layout
    uneven = "uneven" in implementation.offered_parallelism(kind)
    if rules := broken(work, layout, tuning.micro_batch, 1, layout.world_size, tuning.virtual_pipeline, uneven):
        return rules[0]
    try:
        refuse_unsupported(implementation, work, tuning, kind)
    except NotHere as error:
        return str(error)
    return None


def tuning_of(job: dict[str, Any]) -> Tuning:
    return Tuning.model_validate({**job["tuning"], "layout": job["layout"]})


def work_of(job: dict[str, Any]) -> Work:
    """Return the job's work, as a case at this size would have it."""
    steps = job["training"]["steps"]
    content = {
        **{key: job[key] for key in ("model", "training", "data")},
        "window": {"first_step": min(11, steps), "last_step": steps},
        "acceptance": {"final_loss_below_fraction": 1.0, "tail_steps": 1},
        "limits": {"heartbeat_seconds": 60, "step_seconds": 60, "start_seconds": LONG_STEPS * 10},
    }
    return Work.model_validate(content)
