"""One rank of a training: run by path, one process for each device."""

from levelfield.worker import run


def main(job, recorder):
    # imported here, so that a missing package is an event with a class of its own and preloads come first
    from training import train

    train(job, recorder)


if __name__ == "__main__":
    run(main)
