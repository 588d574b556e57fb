"""One rank of a preflight: its node, its device, and the collectives of the very process group that a run would have.

    collectives.py [--short] [--pairs]

It starts as a rank of a training does, by the same launcher with the same variables, and records facts only.
"""

from __future__ import annotations

import argparse

from levelfield.worker import Recorder, run
from levelfield.worker.job import Job
from levelfield.worker.preflight import check_node


def main(job: Job, recorder: Recorder) -> None:
    options = parse_arguments()
    check_node(job, recorder, options.short)
    # imported here: loading torch takes the processors, which the node's checks need
    from group_rates import measure

    measure(job, recorder, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--short", action="store_true", help="fewer sizes, and less time for each")
    parser.add_argument("--pairs", action="store_true", help="messages between every two nodes, or devices of one node")
    return parser.parse_args()


if __name__ == "__main__":
    run(main)
