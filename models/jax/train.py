"""One rank of a training: run by path, one process for each device."""

from levelfield.worker import run
from offered import check
from surroundings import prepare


def main(job, recorder):
    check(job)
    prepare(job)
    # imported here: JAX reads its environment when it starts, and a missing package is an event of its own
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
