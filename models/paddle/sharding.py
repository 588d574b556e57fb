"""Sharding stages 2 and 3 (Rajbhandari et al., 2020) by Paddle's group_sharded_parallel. Not yet run on the chip.

Stage 1 is fleet's own optimizer, in every layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.worker import Unsupported
from paddle.distributed.sharding import group_sharded_parallel

if TYPE_CHECKING:
    from levelfield.worker.job import Job, Layout
    from paddle import nn
    from paddle.distributed.fleet.base.topology import HybridCommunicateGroup
    from paddle.optimizer import Optimizer

LEVELS = {2: "os_g", 3: "p_g_os"}


def check_sharding(job: Job) -> None:
    """Raise Unsupported for a stage above 1 where Paddle does not have it."""
    stage = job.layout.sharding_stage
    if stage < 2:
        return
    if job.device == "cpu":
        raise Unsupported(f"sharding stage {stage}: Paddle has it on accelerators only; stage 1 works on the cpu")
    if job.layout.pipeline > 1:
        raise Unsupported(f"sharding stage {stage} in a pipeline: Paddle's pipelines shard by stage 1")


def shard_gradients(
    model: nn.Layer, optimizer: Optimizer, layout: Layout, grid: HybridCommunicateGroup
) -> tuple[nn.Layer, Optimizer]:
    """Return (model, optimizer) of which each gradient, and in stage 3 each parameter, lies on one sharding rank."""
    has_replicas = layout.sharding_degree < layout.data
    model, optimizer, _ = group_sharded_parallel(
        model,
        optimizer,
        LEVELS[layout.sharding_stage],
        group=grid.get_sharding_parallel_group(),
        dp_group=grid.get_data_parallel_group() if has_replicas else None,
    )
    return model, optimizer
