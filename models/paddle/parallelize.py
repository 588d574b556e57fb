"""The model as this rank runs it: its pieces, split, filled and wrapped by fleet for the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import paddle
from decoder import Decoder, describe_pieces
from layers import Layers
from levelfield.worker import (
    Initializer,
    Unsupported,
    check_layout,
    check_no_graph,
    check_parts,
    check_pipeline,
    check_recomputed_layers,
    check_tensor_parallel,
)
from optimizer import SLICE, GlobalNorm, adamw
from paddle.distributed import fleet
from parameters import fill, local_arrays, local_parameters
from pipeline import pipeline_layer
from sharding import check_sharding, shard_gradients
from tensor_parallel import SplitLayers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job, Layout
    from paddle import nn
    from paddle.distributed.collective import Group
    from paddle.distributed.fleet.base.topology import CommunicateTopology, HybridCommunicateGroup
    from paddle.optimizer import AdamW, Optimizer
    from parameters import LocalParameter

    Loss = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]


class TrainingSetup(NamedTuple):
    """What a training runs.

    adamw: has the moments, within `optimizer` or as it. group: this rank's tensor-parallel group, or None.
    """

    runner: nn.Layer
    optimizer: Optimizer
    adamw: AdamW
    clip: GlobalNorm
    parts: list[LocalParameter]
    loss: Loss
    group: Group | None


def build(job: Job, place: Coordinates, report: Callable[[Iterable[LocalArray]], None]) -> TrainingSetup:
    """Build what the training of this rank runs.

    report: called with the initial weights, read back before sharding takes the parameters apart.
    Raises Unsupported where the implementation cannot do what the job asks for.
    """
    check(job)
    grid = start_fleet(job) if job.world_size > 1 else None
    group = grid.get_model_parallel_group() if grid is not None and job.layout.tensor > 1 else None
    layers = SplitLayers(group) if group else Layers()
    loss = mean_loss(layers)
    model = build_model(job, layers, loss)
    initializer = Initializer(job)
    parts = local_parameters(model, initializer.parameters(job.model), job.layout, place.tensor)
    fill(parts, initializer)
    report(local_arrays(parts))
    clip = GlobalNorm(job.training.gradient_clip, replicas(parts, job.layout))
    local_adamw = adamw(parts, job.training, clip)
    runner, optimizer = distribute(job, grid, model, local_adamw)
    return TrainingSetup(
        runner=runner, optimizer=optimizer, adamw=local_adamw, clip=clip, parts=parts, loss=loss, group=group
    )


def distribute(
    job: Job, grid: HybridCommunicateGroup | None, model: nn.Layer, optimizer: Optimizer
) -> tuple[nn.Layer, Optimizer]:
    """Return (runner, optimizer) that exchange gradients and states as the layout says."""
    if grid is None:
        return model, optimizer
    if job.layout.sharding_stage > 1:
        return shard_gradients(model, optimizer, job.layout, grid)
    return fleet.distributed_model(model), fleet.distributed_optimizer(optimizer)


def check(job: Job) -> None:
    """Raise Unsupported for what Paddle or this implementation does not offer."""
    if job.device == "cpu" and job.training.precision != "fp32":
        # auto_cast is ignored on the cpu without a word
        raise Unsupported(f"precision {job.training.precision}: Paddle multiplies matrices on the cpu in float32 only")
    if job.tuning.compile:
        raise Unsupported("compile: this implementation runs Paddle's dynamic graph")
    check_no_graph(job)
    if job.tuning.attention == "flash_attn" and job.device == "cpu":
        raise Unsupported("attention flash_attn: Paddle has it on accelerators only")
    check_sharding(job)
    check_layout(job, "data", "tensor", "pipeline", "zero1", "zero2", "zero3")
    check_parts(job)
    if job.tuning.recompute == "selective":
        raise Unsupported("recompute 'selective'; this implementation has none and full")
    check_recomputed_layers(job)
    check_pipeline(job)
    check_tensor_parallel(job)


def build_model(job: Job, layers: Layers, loss: Loss) -> nn.Layer:
    is_recomputed = job.tuning.recompute == "full"
    pieces = describe_pieces(job.model, job.training.sequence_length, layers, is_recomputed)
    if job.layout.pipeline > 1:
        return pipeline_layer(pieces, job.model.layers, topology(), loss)
    return Decoder(pieces)


def mean_loss(layers: Layers) -> Loss:
    """Return the function of the mean cross-entropy over a micro-batch's tokens."""
    return lambda logits, targets: layers.cross_entropy(logits, targets).mean()


def replicas(parts: Sequence[LocalParameter], layout: Layout) -> dict[str, int]:
    """Return on how many ranks each parameter, or each slice of one in stage 3, is updated, by Paddle's name of it."""
    counts: dict[str, int] = {}
    for part in parts:
        name, copies = part.parameter.name, part.stage_count * (layout.tensor if part.axis is None else 1)
        counts[SLICE + name] = copies * (layout.data // layout.sharding_degree)
        # stage 3 keeps small parameters whole on every rank
        counts[name] = copies * layout.data if layout.sharding_stage == 3 else counts[SLICE + name]
    return counts


def start_fleet(job: Job) -> HybridCommunicateGroup:
    """Return fleet's groups for the layout: the communicators of every later collective."""
    if job.backend == "gloo":
        import gloo

        gloo.complete_fleet()
    paddle.distributed.init_parallel_env()
    fleet.init(is_collective=True, strategy=strategy(job), log_level="WARNING")
    if job.backend == "gloo" and job.layout.pipeline > 1:
        gloo.Neighbours(topology())
    return fleet.get_hybrid_communicate_group()


def topology() -> CommunicateTopology:
    return fleet.fleet.get_hybrid_parallel_topology()


def strategy(job: Job) -> fleet.DistributedStrategy:
    layout = job.layout
    settings: Any = fleet.DistributedStrategy()
    settings.hybrid_configs = {
        "dp_degree": layout.data // layout.sharding_degree,
        "sharding_degree": layout.sharding_degree,
        "mp_degree": layout.tensor,
        "pp_degree": layout.pipeline,
        "order": ["pp", "dp", "sharding", "sep", "mp"],  # the platform's ranks: pipeline outermost, tensor innermost
        "mp_configs": {"need_broadcast_data": False},  # every rank reads its own batches
    }
    settings.pipeline_configs = {
        "accumulate_steps": job.accumulation,
        "micro_batch_size": job.tuning.micro_batch,
        # sending a part from each tensor-parallel rank needs a partial send, which gloo has not
        "enable_partial_send_recv": job.backend != "gloo",
    }
    return settings
