"""Pipeline parallelism: the 1F1B schedule (Narayanan et al., 2021) of torch.distributed.pipelining.

Under it FSDP keeps whole gradients until the schedule's end and reduces them once, whatever the ZeRO stage.
"""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Pipeline:
    """One rank's stage, with shapes known beforehand, so that no step is spent to find them."""

    def __init__(self, job, module, stage, dtype, device, mesh):
        self.stage, self.mesh = stage, mesh
        rows, length = job.tuning.micro_batch, job.training.sequence_length
        length //= job.layout.context
        local = length // job.layout.tensor if job.layout.sequence_parallel else length
        hidden = torch.empty(rows, local, job.model.hidden_size, dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
        loss = torch.empty(1, dtype=torch.float32, device="meta", requires_grad=True)
        part = PipelineStage(
            module,
            mesh.get_local_rank(),
            mesh.size(),
            device,
            input_args=tokens if stage.first else hidden,
            output_args=loss if stage.last else hidden,
            group=mesh.get_group(),
        )
        # the last stage's module returns its micro-batch's loss itself: `target` only makes the schedule ask for it
        self.schedule = Schedule1F1B(part, job.accumulation, loss_fn=lambda loss, _: loss, scale_grads=False)

    def step(self, inputs, targets, scale):
        """Forward and backward over all micro-batches; [accumulation, micro-batch, sequence] each.

        Returns the sum of the losses, each times scale, on the last stage, and zero on the others.
        """
        inputs, targets = inputs.flatten(0, 1), targets.flatten(0, 1)
        if not self.stage.last:
            self.schedule.step(*([inputs] if self.stage.first else []), return_outputs=False)
            return torch.zeros(1, device=inputs.device)
        losses = []
        self.schedule.step(target=targets, losses=losses, return_outputs=False, targets=targets, scale=scale)
        return torch.stack(losses).detach().sum(0)
