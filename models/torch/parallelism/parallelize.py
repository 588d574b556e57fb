"""The model as this rank runs it: its stage, sharded, recomputed, compiled, filled and replicated, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import (
    Initializer,
    Unsupported,
    check_context_parallel,
    check_layout,
    check_pipeline,
    check_tensor_parallel,
    layer_window,
    part,
)
from levelfield.worker.job import Coordinates, Job
from model.attention import check_attention, choose_attention
from model.attention_kernel import joined_kernel
from model.decoder import Decoder, compute_dtype, stage_of
from model.parameters import fill
from parallelism.data_parallel import replicate_data_parallel, shard_data_parallel
from parallelism.model_chunks import ModelChunks
from step.recompute import check_recompute, compile_blocks, compile_whole, compiled_part, recompute_blocks

if TYPE_CHECKING:
    from parallelism.context_parallel import Attend, SequenceShare
    from parallelism.expert_parallel import ExpertMesh
    from parallelism.mesh import Grid
    from torch import nn

LAYOUT = ("data", "tensor", "sequence", "pipeline", "interleaved", "context", "expert", "zero1", "zero2", "zero3")


def check(job: Job) -> None:
    """Check the job. Raises Unsupported where the implementation cannot do what the job asks for.

    Every rank checks before it joins the others: one that ends while another joins may leave that one waiting.
    """
    check_layout(job, *LAYOUT)
    check_recompute(job.tuning)
    check_pipeline(job)
    if job.tuning.virtual_pipeline > 1:
        from parallelism.interleaving import check_interleaving

        check_interleaving(job)
    check_tensor_parallel(job)
    check_context_parallel(job)
    check_attention(job.tuning.attention)
    if job.tuning.graph:
        from step.graph import check_graph

        check_graph(job)
    if job.training.precision == "fp8":
        from step.fp8 import check_fp8

        check_fp8(job)
    if part(job.model, "experts") is not None:
        from parallelism.expert_parallel import check_experts

        check_experts(job)
    if part(job.model, "joint_query_key_norm") and job.layout.tensor > 1:
        raise Unsupported(f"joint query and key norms with tensor parallel {job.layout.tensor}: not written")
    if part(job.model, "latent_attention") is not None:
        from model.latent import check_latent_attention

        check_latent_attention(job)


def build(
    job: Job,
    grid: Grid,
    coordinates: Coordinates,
    initializer: Initializer,
    device: torch.device,
    experts: ExpertMesh | None = None,
    share: SequenceShare | None = None,
) -> tuple[Any, Any]:
    """Return (model, runner): the model with its canonical parameter names, and what to call in its place. Both are
    ModelChunks where stages are interleaved.

    experts: the ExpertMesh, or None without expert parallelism. share: the SequenceShare, or None.
    """
    arguments = grid, coordinates, initializer, device, experts, share
    pairs = [build_chunk(job, number, *arguments) for number in range(job.tuning.virtual_pipeline)]
    return pairs[0] if len(pairs) == 1 else tuple(map(ModelChunks, zip(*pairs, strict=True)))  # type: ignore[return-value]


def build_chunk(
    job: Job,
    number: int,
    grid: Grid,
    coordinates: Coordinates,
    initializer: Initializer,
    device: torch.device,
    experts: ExpertMesh | None,
    share: SequenceShare | None,
) -> tuple[Decoder, nn.Module]:
    """Return (model, runner) of chunk `number` of this rank, as `build` does."""
    with torch.device("meta"):
        model = Decoder(**decoder_arguments(job, coordinates, share, number))
    if job.training.precision == "fp8":
        from step.fp8 import use_fp8

        use_fp8(model, job)
    if grid["tensor"] is not None:
        from parallelism.tensor_parallel import apply_tensor_parallel

        apply_tensor_parallel(model, grid["tensor"], job.layout.sequence_parallel)
    if part(job.model, "experts") is not None:
        from parallelism.expert_parallel import distribute_experts

        distribute_experts(model, experts, grid["tensor"])
    recompute_blocks(model, job.tuning)
    if compiled_part(job) == "blocks":
        compile_blocks(model)
    is_sharded = shard_data_parallel(model, grid, job.layout.sharding_stage, experts)
    model.to_empty(device=device)
    fill(model, initializer)
    model.prepare(device)
    if compiled_part(job) == "whole":
        compile_whole(model)
    is_replicated = job.layout.data * job.layout.context > 1 and not is_sharded
    return model, replicate_data_parallel(model, grid, divided_parameters(model, experts)) if is_replicated else model


def divided_parameters(model: nn.Module, experts: ExpertMesh | None) -> list[nn.Parameter]:
    """Return the parameters that expert parallelism divides, so that data parallelism leaves them out."""
    if experts is None:
        return []
    from parallelism.expert_parallel import expert_parameters

    return expert_parameters(model)


def decoder_arguments(
    job: Job, coordinates: Coordinates, share: SequenceShare | None = None, chunk: int = 0
) -> dict[str, Any]:
    """Return the arguments of the Decoder that this rank holds.

    chunk: the parts of an interleaved model go round the ranks of the pipeline, so chunk c of rank r of p is part
    c x p + r.
    """
    ranks = job.layout.pipeline
    parts, part_of_model = ranks * job.tuning.virtual_pipeline, chunk * ranks + coordinates.pipeline
    stream = coordinates.tensor if private_randomness(job) else None

    def attend(layer: int) -> Attend:
        window = layer_window(job.model, layer)
        whole = choose_attention(job.tuning.attention, job.model.attention_dropout, stream, window)
        return whole if share is None else attention_of_share(job, whole, share)

    return {
        "model": job.model,
        "sequence_length": job.training.sequence_length,
        "dtype": compute_dtype(job.training.precision),
        "stage": stage_of(job.model.layers, parts, part_of_model),
        "attend": attend,
        "share": share,
    }


def attention_of_share(job: Job, attend: Attend, share: SequenceShare) -> Attend:
    """Return the attention of a rank's share of each sequence; `attend` needs a mask for it."""
    kernel = joined_kernel(job, torch.device(job.device))
    if kernel is None:
        from parallelism.context_parallel import shared_attention

        return shared_attention(attend, share)
    from parallelism.joined_attention import joined_attention

    return joined_attention(share, kernel)


def private_randomness(job: Job) -> bool:
    """Return whether attention draws from random numbers of its own.

    Under tensor parallelism its heads are other heads on each rank, while the hidden state's dropout is the same.
    Under selective recomputation its kernel runs once and the rest of the block twice.
    """
    return job.layout.tensor > 1 or job.tuning.recompute == "selective"
