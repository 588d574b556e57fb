"""One rank of a training: run by path, one process for each device."""

from levelfield.worker import run
from refusals import check


def main(job, recorder):
    check(job)  # before this rank joins the others: they would wait for one that refuses later
    # imported here, so that a missing package is an event with a class of its own
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
