"""Pipeline parallelism: the 1F1B schedules (Narayanan et al., 2021) of torch.distributed.pipelining.

A rank has one stage, or several model chunks where stages are interleaved (interleaving.py).
Under it FSDP keeps whole gradients until the schedule's end and reduces them once, whatever the ZeRO stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from levelfield.worker.job import Job
from parallelism.model_chunks import chunks_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

if TYPE_CHECKING:
    from model.decoder import Decoder
    from parallelism.model_chunks import ModelChunks
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import ScheduleInterleaved1F1B
    from torch.distributed.pipelining.stage import _PipelineStageBase


class Pipeline:
    """One rank's stage, with shapes known beforehand, so that no step is spent to find them.

    runner: what to call in place of the model. Both are ModelChunks where stages are interleaved.
    """

    def __init__(
        self,
        job: Job,
        model: Decoder | ModelChunks,
        runner: nn.Module | ModelChunks,
        device: torch.device,
        mesh: DeviceMesh,
    ) -> None:
        self.schedule: Schedule1F1B | ScheduleInterleaved1F1B
        chunks = chunks_of(model)
        self.first, self.last = chunks[0].stage.first, chunks[-1].stage.last
        rows, length = job.tuning.micro_batch, job.training.sequence_length
        length //= job.layout.context
        local = length // job.layout.tensor if job.layout.sequence_parallel else length
        shape = rows, local, job.model.hidden_size
        hidden = torch.empty(shape, dtype=model.dtype, device="meta", requires_grad=True)
        tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
        loss = torch.empty(1, dtype=torch.float32, device="meta", requires_grad=True)

        def stage(kind: type[PipelineStage], number: int) -> PipelineStage:
            """Return chunk `number` of this rank as what torch calls a stage."""
            return kind(
                chunks_of(runner)[number],
                number * mesh.size() + mesh.get_local_rank(),
                len(chunks) * mesh.size(),
                device,
                input_args=tokens if chunks[number].stage.first else hidden,
                output_args=loss if chunks[number].stage.last else hidden,
                group=mesh.get_group(),
            )

        # the last stage's module returns its micro-batch's loss itself: `target` only makes the schedule ask for it
        options: dict[str, Any] = {"loss_fn": lambda loss, _: loss, "scale_grads": False}
        if len(chunks) == 1:
            self.schedule = Schedule1F1B(stage(PipelineStage, 0), job.accumulation, **options)
        else:
            from parallelism.interleaving import ChunkStage, interleaved_schedule

            stages: list[_PipelineStageBase] = [stage(ChunkStage, number) for number in range(len(chunks))]
            self.schedule = interleaved_schedule(stages, job.accumulation, **options)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, scale: float) -> torch.Tensor:
        """Run forward and backward over all micro-batches; [accumulation, micro-batch, sequence] each.

        Return the sum of the losses, each times scale, on the rank of the last stage, and zero on the others.
        """
        inputs, targets = inputs.flatten(0, 1), targets.flatten(0, 1)
        if not self.last:
            self.schedule.step(*([inputs] if self.first else []), return_outputs=False)
            return torch.zeros(1, device=inputs.device)
        losses: list[torch.Tensor] = []
        self.schedule.step(target=targets, losses=losses, return_outputs=False, targets=targets, scale=scale)
        return torch.stack(losses).detach().sum(0)
