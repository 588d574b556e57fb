"""The parent of rehearsals that record one step more: parent.py, and for each rank the record and its launches."""

import ctypes
import importlib
from pathlib import Path

import parent
import rank

TRACE, CALLS = "rank{}.trace.json", "rank{}.calls"


def main():
    rank.prepared_job = followed_by_a_record(rank.prepared_job)
    parent.main()


def followed_by_a_record(prepared_job):
    """The job, after whose steps comes one that is recorded as `--explain-step` records it."""

    def call(spec):
        job = prepared_job(spec)
        loop = importlib.import_module("levelfield.worker.loop")  # before the training has its name
        own = loop.train_steps

        def train_steps(job, recorder, trainer):
            own(job, recorder, trainer)
            record(Path(spec["folder"]), job, recorder, trainer)

        loop.train_steps = train_steps
        return job

    return call


def record(folder, job, recorder, trainer):
    from levelfield.worker import coordinates
    from levelfield.worker.batches import Batches
    from levelfield.worker.step_profile import _step as run_step

    library = ctypes.CDLL(None)
    profile = importlib.import_module("step_profile").open_profile(job, trainer, folder)
    batches = Batches(job, coordinates(job).data)
    with profile.recording(0):  # the one with the types and sizes of arguments
        library.standin_calls(str(folder / CALLS.format(job.rank)).encode())
        run_step(batches, batches.batch(job.training.steps + 1), trainer, profile)
        library.standin_calls(None)
    recorder.books.wait_for_messages()
    for _, lines in profile.traces():
        (folder / TRACE.format(job.rank)).write_bytes(b"".join(lines))


if __name__ == "__main__":
    main()
