"""When a rank's own work ends and an exchange begins, by the device's own clock."""

from __future__ import annotations

import torch
from levelfield.worker import OwnWork
from levelfield.worker.job import Job


class DeviceWork(OwnWork):
    """OwnWork on a CUDA device: times are events in its stream, which the host does not wait for."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, since: torch.cuda.Event, until: torch.cuda.Event) -> float:
        return since.elapsed_time(until) / 1000  # type: ignore[no-any-return]  # both have passed: the step has ended


def own_work(job: Job, device: torch.device, first_exchanging_stage: int) -> OwnWork:
    """Return the clock for this layout.

    It measures nothing where ranks exchange before their last forward pass ends, or where the device has no such clock.
    first_exchanging_stage: the first ZeRO stage in which they do.
    """
    layout = job.layout
    local = (
        layout.data > 1
        and layout.pipeline == 1
        and layout.context == layout.expert == 1
        and layout.sharding_stage < first_exchanging_stage
    )
    kinds = {"cpu": OwnWork, "cuda": DeviceWork}
    return kinds.get(device.type, OwnWork)(local and device.type in kinds)
