"""One rank of a training: run by path, one process for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levelfield.worker import run
from limits import check
from processor import choose_products
from rendezvous import await_master, forget_proxies

if TYPE_CHECKING:
    from levelfield.worker import Recorder
    from levelfield.worker.job import Job


def main(job: Job, recorder: Recorder) -> None:
    prepare(job)
    # imported here: OneFlow joins the other ranks when it is imported, and a missing package is an event of its own
    from training import train

    train(job, recorder)


def prepare(job: Job) -> None:
    """Do what must be done before OneFlow is imported."""
    check(job)
    choose_products()
    forget_proxies()
    await_master(job)


if __name__ == "__main__":
    run(main)
