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


def exchange_clock(job: Job, device: torch.device, first_exchanging_stage: int) -> OwnWork:
    """Return the clock of this rank's work before the exchange of gradients, for this layout.

    It measures nothing where ranks exchange before their last forward pass ends, or where the device has no such clock.
    first_exchanging_stage: the first ZeRO stage in which they do.
    """
    layout = job.layout
    is_measured = (
        layout.data > 1
        and layout.pipeline == 1
        and layout.context == layout.expert == 1
        and layout.sharding_stage < first_exchanging_stage
    )
    clock_classes = {"cpu": OwnWork, "cuda": DeviceWork}
    return clock_classes.get(device.type, OwnWork)(is_measured and device.type in clock_classes)
