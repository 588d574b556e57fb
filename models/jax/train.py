"""One rank of a training: run by path, one process for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.worker import run
from limits import check
from process_environment import prepare

if TYPE_CHECKING:
    from levelfield.worker import Recorder
    from levelfield.worker.job import Job


def main(job: Job, recorder: Recorder) -> None:
    check(job)
    prepare(job)
    # imported here: JAX reads its environment when it starts, and a missing package is an event of its own
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
