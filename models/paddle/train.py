"""One rank of a training: run by path, one process for each device."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from levelfield.worker import run
from processor import processor_environment

if TYPE_CHECKING:
    from levelfield.worker import Recorder
    from levelfield.worker.job import Job


def main(job: Job, recorder: Recorder) -> None:
    prepare(job)
    # imported here: Paddle reads these variables when it is imported, and a missing package is an event of its own
    from training import train

    train(job, recorder)


def prepare(job: Job) -> None:
    """Set what paddle.distributed.launch would, as the platform starts the ranks itself. Called before Paddle's
    import."""
    warnings.filterwarnings("ignore", "No ccache found")  # Paddle's, at every import; nothing is compiled here
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    # names of the ranks only: each rank is met at the master's address
    endpoints = [f"{host}:{port + rank}" for rank in range(job.world_size)]
    os.environ.update(
        {
            "PADDLE_TRAINER_ID": str(job.rank),
            "PADDLE_TRAINERS_NUM": str(job.world_size),
            "PADDLE_RANK_IN_NODE": str(job.local_rank),
            "PADDLE_LOCAL_RANK": str(job.local_rank),
            "PADDLE_MASTER": endpoints[0],
            "PADDLE_CURRENT_ENDPOINT": endpoints[job.rank],
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_DISTRI_BACKEND": job.backend,
            "FLAGS_selected_gpus": str(job.local_rank),
            **processor_environment(),
        }
    )


if __name__ == "__main__":
    run(main)
