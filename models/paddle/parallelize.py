"""The model as this rank runs it: its pieces, split, filled and wrapped by fleet for the layout."""

from types import SimpleNamespace

import paddle
from decoder import Decoder, describe_pieces
from layers import Layers
from levelfield.worker import Initializer, Unsupported
from optimizer import GlobalNorm, adamw
from paddle.distributed import fleet
from parameters import fill, held_parts
from pipeline import check_pipeline, pipeline_layer
from tensor_parallel import SplitLayers, check_sizes


def build(job, place):
    """What the training runs: runner, optimizer, clip, parts, loss and the tensor-parallel group of this rank.

    Raises Unsupported where the implementation cannot do what the job asks for.
    """
    check(job)
    grid = start_fleet(job) if job.world_size > 1 else None
    group = grid.get_model_parallel_group() if job.layout.tensor > 1 else None
    layers = SplitLayers(group) if group else Layers()
    loss = mean_loss(layers)
    model = build_model(job, layers, loss)
    parameters = Initializer(job)
    parts = held_parts(model, parameters.parameters(job.model), job.layout, place.tensor)
    fill(parts, parameters)
    clip = GlobalNorm(job.training.gradient_clip, replicas(parts, job.layout))
    optimizer = adamw(parts, job.training, clip)
    runner = model
    if grid is not None:
        runner, optimizer = fleet.distributed_model(model), fleet.distributed_optimizer(optimizer)
    return SimpleNamespace(runner=runner, optimizer=optimizer, clip=clip, parts=parts, loss=loss, group=group)


def check(job):
    """Raises Unsupported for what Paddle or this implementation does not offer."""
    if job.device == "cpu" and job.training.precision != "fp32":
        # auto_cast is ignored on the cpu without a word
        raise Unsupported(f"precision {job.training.precision}: Paddle multiplies matrices on the cpu in float32 only")
    if job.tuning.compile:
        raise Unsupported("compile: this implementation runs Paddle's dynamic graph")
    if job.tuning.attention == "flash_attn" and job.device == "cpu":
        raise Unsupported("attention flash_attn: Paddle has it on accelerators only")
    if job.layout.sharding_stage > 1:
        raise Unsupported(f"sharding stage {job.layout.sharding_stage}: Paddle has it on accelerators only")
    if job.layout.sequence_parallel:
        raise Unsupported("sequence parallelism: this implementation splits heads and vocabulary only")
    if job.tuning.recompute == "selective":
        raise Unsupported("recompute 'selective'; this implementation has none and full")
    check_pipeline(job)
    check_sizes(job.model, job.layout.tensor)


def build_model(job, layers, loss):
    recomputed = job.tuning.recompute == "full"
    pieces = describe_pieces(job.model, job.training.sequence_length, layers, recomputed)
    if job.layout.pipeline > 1:
        return pipeline_layer(pieces, job.model.layers, fleet.fleet.get_hybrid_parallel_topology(), loss)
    return Decoder(pieces)


def mean_loss(layers):
    """The mean cross-entropy over a micro-batch's tokens."""
    return lambda logits, targets: layers.cross_entropy(logits, targets).mean()


def replicas(parts, layout):
    """On how many ranks each parameter is updated, by Paddle's name of it."""
    data = layout.data // layout.sharding_degree
    counts = {part.parameter.name: data * part.ends for part in parts}
    for part in parts:
        counts[part.parameter.name] *= 1 if part.axis is not None else layout.tensor
    return counts


def start_fleet(job):
    """Fleet's groups for the layout; the communicators of every later collective."""
    if job.backend == "gloo":
        from gloo import complete_gloo

        complete_gloo()
    paddle.distributed.init_parallel_env()
    fleet.init(is_collective=True, strategy=strategy(job), log_level="WARNING")
    return fleet.get_hybrid_communicate_group()


def strategy(job):
    layout = job.layout
    found = fleet.DistributedStrategy()
    found.hybrid_configs = {
        "dp_degree": layout.data // layout.sharding_degree,
        "sharding_degree": layout.sharding_degree,
        "mp_degree": layout.tensor,
        "pp_degree": layout.pipeline,
        "order": ["pp", "dp", "sharding", "sep", "mp"],  # the platform's ranks: pipeline outermost, tensor innermost
        "mp_configs": {"need_broadcast_data": False},  # every rank reads its own batches
    }
    found.pipeline_configs = {
        "accumulate_steps": job.accumulation,
        "micro_batch_size": job.tuning.micro_batch,
        # sending a part from each tensor-parallel rank needs a partial send, which gloo has not
        "enable_partial_send_recv": job.backend != "gloo",
    }
    return found
