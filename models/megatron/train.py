"""One rank of a training: run by path, one process for each device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.worker import run
from limits import check

if TYPE_CHECKING:
    from levelfield.worker import Recorder
    from levelfield.worker.job import Job

# what both share (the device, its process group and memory) lies there; its names come after this folder's
sys.path.append(str(Path(__file__).resolve().parents[1] / "torch"))


def main(job: Job, recorder: Recorder) -> None:
    check(job)
    if job.device == "cuda":
        from own_cudnn import load_own_cudnn

        load_own_cudnn()
    # imported here, so that a missing package is an event with a class of its own and preloads come first
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
