"""One rank of a training: run by path, one process for each device."""

from __future__ import annotations

import sys
from pathlib import Path

from accelerator import prepare
from levelfield.worker import Recorder, run
from levelfield.worker.job import Job

# the model is that of the torch implementation
sys.path.append(str(Path(__file__).resolve().parents[1] / "torch"))


def main(job: Job, recorder: Recorder) -> None:
    prepare(job)
    # imported here, so that a missing package is an event with a class of its own and preloads come first
    from zero_training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
