"""What this implementation cannot do, told before a framework is imported."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from levelfield.worker import Unsupported, check_no_graph, check_tensor_parallel, part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from levelfield.worker.job import Job


def check(job: Job) -> None:
    """Raise Unsupported with the first reason why the job cannot be done as it asks."""
    check_no_graph(job)
    check_tensor_parallel(job)  # Megatron would pad the vocabulary, which is another model
    rules = (kernels, norms, stages, interleaving, sharding, context, mixture)
    for reason in itertools.chain.from_iterable(rule(job) for rule in rules):
        raise Unsupported(reason)


def kernels(job: Job) -> Iterator[str]:
    tuning = job.tuning
    if tuning.recompute not in ("none", "selective", "full"):
        yield f"recompute '{tuning.recompute}'; this implementation has none, selective and full"
    if tuning.recompute_layers is not None and (tuning.recompute != "full" or tuning.recompute_layers < 1):
        yield f"recompute '{tuning.recompute}' of {tuning.recompute_layers} layers; expected 1 or more, with full"
    if tuning.compile:
        yield "compile: Megatron fuses its own operations"
    if tuning.attention == "flash_attn" and job.device != "cuda":
        yield f"attention flash_attn is transformer-engine's, for NVIDIA devices; this is '{job.device}'"
    if job.training.precision == "fp8" and job.device != "cuda":
        yield f"precision fp8 needs an NVIDIA device and transformer-engine; this is '{job.device}'"


def norms(job: Job) -> Iterator[str]:
    if part(job.model, "query_key_norm") and job.model.norm != "rmsnorm":
        yield f"norms of queries and keys beside {job.model.norm}: Megatron's are of one kind, expected rmsnorm"


def stages(job: Job) -> Iterator[str]:
    layers, pipeline = job.model.layers, job.layout.pipeline
    if layers % pipeline:
        yield f"pipeline of {pipeline} stages: {layers} layers cannot be divided by it"


def interleaving(job: Job) -> Iterator[str]:
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


def sharding(job: Job) -> Iterator[str]:
    layout = job.layout
    if layout.sequence_parallel and layout.tensor == 1:
        yield "sequence parallel needs tensor parallel"
    if layout.sharding_stage > 1:
        yield f"sharding stage {layout.sharding_stage}; Megatron's distributed optimizer is stage 1"
    replicas = layout.data * layout.context
    if layout.sharding_stage and layout.sharding_degree != replicas:
        yield f"sharding over {layout.sharding_degree} of {replicas} data-parallel ranks; only over all of them"


def context(job: Job) -> Iterator[str]:
    ranks = job.layout.context
    if ranks == 1:
        return
    if job.training.sequence_length % (2 * ranks):
        yield f"context parallel over {ranks} ranks cannot divide a sequence of {job.training.sequence_length}"


def mixture(job: Job) -> Iterator[str]:
    """Megatron divides the tokens of a mixture over the tensor-parallel ranks. Its shared experts have no biases, and
    nor have the others where they are divided."""
    layout, experts = job.layout, part(job.model, "experts")
    if experts is None:
        if layout.expert > 1:
            yield f"expert parallel over {layout.expert} ranks: the model has no experts"
        return
    if experts.count % layout.expert:
        yield f"expert parallel over {layout.expert} ranks: {experts.count} experts cannot be divided by it"
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield "tensor parallel with experts needs sequence parallel in Megatron"
    if experts.ffn_hidden_size % layout.tensor:
        yield f"tensor parallel over {layout.tensor} ranks cannot divide experts of {experts.ffn_hidden_size}"
    if job.model.bias:
        yield "experts with biases; Megatron's shared experts have none"
