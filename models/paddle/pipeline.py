"""Pipeline parallelism: fleet's 1F1B schedule (Narayanan et al., 2021) over the decoder's pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paddle.distributed.fleet.meta_parallel import PipelineLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddle.distributed.fleet.base.topology import CommunicateTopology
    from paddle.distributed.fleet.meta_parallel import LayerDesc
    from parallelize import Loss


def pipeline_layer(
    descriptions: Sequence[LayerDesc], blocks: int, topology: CommunicateTopology, loss: Loss
) -> PipelineLayer:
    """Build this rank's stage. The first has the embeddings beside its blocks, the last the final norm and the head."""
    stages = topology.get_dim("pipe")
    return PipelineLayer(layers=descriptions, topology=topology, loss_fn=loss, seg_method=stage_starts(blocks, stages))


def stage_starts(blocks: int, stages: int) -> list[int]:
    """Return where each stage starts among the pieces; earlier stages take the remainder of the blocks."""
    size, extra = divmod(blocks, stages)
    pieces_before = 2  # embedding and positions come before the first block
    starts = [pieces_before + stage * size + min(stage, extra) for stage in range(1, stages)]
    return [0, *starts, pieces_before + blocks + 2]
