"""One rank of a training: run by path, one process for each device.

To read: training.py (a step, from batch to figures), model/decoder.py (what is trained), model/attention.py and
model/head_loss.py, parallelism/parallelize.py (how ranks divide it; then that layout's own module), step/optimizer.py.
peak.py, collectives.py and host_rates.py are started by themselves: they measure what a machine reaches. device.py,
exchange.py, routing.py and chosen.py also serve the trainings of other folders.
"""

from __future__ import annotations

from levelfield.worker import Recorder, run
from levelfield.worker.job import Job


def main(job: Job, recorder: Recorder) -> None:
    # imported here, so that a missing package is an event with a class of its own and preloads come first
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
