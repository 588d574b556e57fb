"""Interleaved stages (Narayanan et al., 2021, section 2.2) by torch's ScheduleInterleaved1F1B.

Each rank has several model chunks, so a micro-batch goes round the ranks once for each, and the pipeline fills and
drains in as many times less time. torch calls each chunk a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker import Unsupported, part
from levelfield.worker.job import Job
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _batch_p2p, _wait_batch_p2p

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed import P2POp, Work
    from torch.distributed.pipelining.schedules import _Action
    from torch.distributed.pipelining.stage import _PipelineStageBase


def check_interleaving(job: Job) -> None:
    """Check an interleaved pipeline. Raises Unsupported for what cannot be interleaved here."""
    ranks, chunks, zero = job.layout.pipeline, job.tuning.virtual_pipeline, job.layout.sharding_stage
    refused = {
        f"a pipeline of {ranks}, expected 2 or more": ranks == 1,
        f"{job.model.layers} layers, expected at least {ranks} x {chunks}": job.model.layers < ranks * chunks,
        f"{job.accumulation} micro-batches, expected a multiple of pipeline {ranks}": job.accumulation % ranks > 0,
        f"ZeRO {zero}, expected at most 1, as the schedule gathers whole chunks": zero > 1,
        "experts, which is not written": part(job.model, "experts") is not None,
    }
    reasons = [reason for reason, holds in refused.items() if holds]
    if reasons:
        raise Unsupported(f"virtual pipeline {chunks} with {'; with '.join(reasons)}")


def interleaved_schedule(
    stages: list[_PipelineStageBase], micro_batches: int, **options: Any
) -> ScheduleInterleaved1F1B:
    schedule = ScheduleInterleaved1F1B(stages, micro_batches, **options)
    gather_once(schedule.pipeline_order_with_comms[stages[0].group_rank])
    return schedule


def gather_once(actions: list[_Action]) -> None:
    """Keep only the first UNSHARD of each chunk and its last RESHARD among a rank's actions.

    torch keeps three chunks gathered. Of four it would gather one again for nearly every micro-batch.
    """
    first_unshard: dict[int, int]
    last_reshard: dict[int, int]
    first_unshard, last_reshard = {}, {}
    for position, action in enumerate(actions):
        if action.computation_type.name == "UNSHARD":
            first_unshard.setdefault(action.stage_index, position)
        if action.computation_type.name == "RESHARD":
            last_reshard[action.stage_index] = position
    kept_positions = {*first_unshard.values(), *last_reshard.values()}
    actions[:] = [
        action
        for position, action in enumerate(actions)
        if position in kept_positions or action.computation_type.name not in ("UNSHARD", "RESHARD")
    ]


class ChunkStage(PipelineStage):
    """A stage whose messages take memory while they are on their way or in use.

    torch's receives each message of a step into memory of its own, and the schedule holds all that it sent until the
    step ends: for several chunks that is many times what is in flight.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outputs_sent: dict[int, list[Work]]
        self.gradient_sent: list[Work]
        self.outputs_sent, self.gradient_sent = {}, []

    def _prepare_forward_infra(self, *arguments: Any, **options: Any) -> Any:
        prepared = super()._prepare_forward_infra(*arguments, **options)
        for messages in self.args_recv_info.values():
            release(messages)
        return prepared

    def _prepare_backward_infra(self, *arguments: Any, **options: Any) -> Any:
        prepared = super()._prepare_backward_infra(*arguments, **options)
        for messages in self.grad_recv_info.values():
            release(messages)
        return prepared

    def get_fwd_recv_ops(self, micro: int) -> list[P2POp]:
        allocate(self.args_recv_info[micro])
        return super().get_fwd_recv_ops(micro)

    def get_bwd_recv_ops(self, micro: int) -> list[P2POp]:
        allocate(self.grad_recv_info[micro])
        return super().get_bwd_recv_ops(micro)

    def get_fwd_send_ops(self, micro: int) -> list[P2POp]:
        """Send them here, so that the schedule has nothing to send and to hold."""
        self.outputs_sent[micro] = _batch_p2p(super().get_fwd_send_ops(micro))
        return []

    def get_bwd_send_ops(self, micro: int) -> list[P2POp]:
        """Send them here, except for the last one, for which the schedule waits at the step's end."""
        _wait_batch_p2p(self.gradient_sent)
        operations, is_last = super().get_bwd_send_ops(micro), micro == len(self.args_recv_info) - 1
        self.gradient_sent = [] if is_last else _batch_p2p(operations)
        return operations if is_last else []

    def forward_one_chunk(self, micro: int, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        output = super().forward_one_chunk(micro, *arguments, **options)
        release(self.args_recv_info[micro])
        return output

    def backward_one_chunk(self, micro: int, *arguments: Any, **options: Any) -> None:  # type: ignore[override]
        _wait_batch_p2p(self.outputs_sent.pop(micro, []))  # it has arrived, as its gradient has come
        super().backward_one_chunk(micro, *arguments, **options)
        release(self.grad_recv_info[micro])


def allocate(messages: Iterable[Any]) -> None:
    for message in messages:
        shape, dtype, device = message.form
        message.buffer = torch.empty(shape, dtype=dtype, device=device)


def release(messages: Iterable[Any]) -> None:
    """Free the memory of messages. A batch's tokens, which no other stage sends, have none."""
    for message in messages:
        buffer = getattr(message, "buffer", None)
        if buffer is not None:
            message.form, message.buffer = (buffer.shape, buffer.dtype, buffer.device), None
