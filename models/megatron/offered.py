"""What this implementation cannot do, said before a framework is imported."""

from levelfield.worker import Unsupported, check_tensor_parallel


def check(job):
    """Raises Unsupported with the first reason why the job cannot be done as it asks."""
    check_tensor_parallel(job)  # Megatron would pad the vocabulary, which is another model
    for reason in (*kernels(job), *stages(job), *interleaving(job), *sharding(job.layout)):
        raise Unsupported(reason)


def kernels(job):
    tuning = job.tuning
    if tuning.recompute not in ("none", "selective", "full"):
        yield f"recompute '{tuning.recompute}'; this implementation has none, selective and full"
    if tuning.compile:
        yield "compile: Megatron fuses its own operations"
    if tuning.attention == "flash_attn" and job.device != "cuda":
        yield f"attention flash_attn is transformer-engine's, for NVIDIA devices; this is '{job.device}'"
    if job.training.precision == "fp8" and job.device != "cuda":
        yield f"precision fp8 needs an NVIDIA device and transformer-engine; this is '{job.device}'"


def stages(job):
    layers, pipeline = job.model.layers, job.layout.pipeline
    if layers % pipeline:
        yield f"pipeline of {pipeline} stages: {layers} layers cannot be divided by it"


def interleaving(job):
    """Megatron's schedule takes the micro-batches in rounds of as many as there are stages."""
    stages, chunks = job.layout.pipeline, job.tuning.virtual_pipeline
    if chunks == 1:
        return
    if stages == 1:
        yield f"virtual pipeline {chunks} interleaves the stages of a pipeline; this has one"
    if job.model.layers % (stages * chunks):
        yield f"{job.model.layers} layers cannot be divided into {chunks} chunks for each of {stages} stages"
    if job.accumulation % stages:
        yield f"virtual pipeline {chunks}: {job.accumulation} micro-batches are no multiple of {stages} stages"


def sharding(layout):
    if layout.sequence_parallel and layout.tensor == 1:
        yield "sequence parallel needs tensor parallel"
    if layout.sharding_stage > 1:
        yield f"sharding stage {layout.sharding_stage}; Megatron's distributed optimizer is stage 1"
    if layout.sharding_stage and layout.sharding_degree != layout.data:
        yield f"sharding over {layout.sharding_degree} of {layout.data} data-parallel ranks; only over all of them"
