"""What DeepSpeed has to know before it is imported, and that it may build nothing while it runs."""

from __future__ import annotations

import os

from levelfield.worker.job import Job


def prepare(job: Job) -> None:
    """Choose DeepSpeed's accelerator by job.device. Before any other import of deepspeed."""
    os.environ["DS_ACCELERATOR"] = job.device
    import deepspeed

    # On a processor it would compile a shared-memory all-reduce when a group is opened: minutes, and a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
