"""A training that only pretends: real batches, initial weights and events, and a loss that falls by itself.

FAKE_FAULT breaks it on purpose, on the last rank at step 6: `nan`, `oom` (says so), `eat` (takes memory until the
kernel ends it), `unsupported` or `die`. FAKE_FP32_ERROR=0.01 makes the losses of trainings in fp32 wrong by 1 %.
"""

import os
import time
from pathlib import Path

from levelfield.worker import Batches, Initializer, Unsupported, coordinates, learning_rate, run

FAULT_STEP = 6
STEP_SECONDS = 0.005


def main(job, recorder):
    place = coordinates(job)
    recorder.framework(name="fake", version="1.2.3", device=job.device)
    initializer = Initializer(job)
    recorder.weights(
        (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
        for name, spec in initializer.parameters(job.model).items()
    )
    recorder.begin()
    for batch in Batches(job, place.data):
        time.sleep(STEP_SECONDS)
        meet(job, batch.step)
        loss = break_on_purpose(job, batch.step) or 4.0 * 0.9**batch.step * (1 + error(job))
        if batch.step in job.gradient_steps:
            names = list(initializer.parameters(job.model))
            recorder.gradients(batch.step, ((name, 1 / len(names) / job.world_size) for name in names))
        recorder.step(
            batch.step,
            loss=loss,
            grad_norm=1.0,
            tokens=batch.tokens,
            learning_rate=learning_rate(job.training.schedule, batch.step),
            tokens_checksum=batch.checksum,
            memory={"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": 10**6},
        )


def error(job):
    return float(os.environ.get("FAKE_FP32_ERROR", 0)) if job.training.precision == "fp32" else 0.0


def meet(job, step):
    """Wait until every rank is at this step, as the collectives of a real training do."""
    folder = Path(job.events_dir)
    (folder / f"rank{job.rank}.step").write_text(str(step))
    while any(reached(folder / f"rank{rank}.step") < step for rank in range(job.world_size)):
        time.sleep(0.001)


def reached(path):
    """Return the step in the file; 0 while it is missing or empty."""
    try:
        return int(path.read_text() or 0)
    except OSError:
        return 0


def break_on_purpose(job, step):
    fault = os.environ.get("FAKE_FAULT")
    if fault is None or step != FAULT_STEP or job.rank != job.world_size - 1:
        return None
    if fault == "oom":
        raise MemoryError("cannot allocate 7 GiB")
    if fault == "eat":
        return sum(len(block) for block in [bytes([1]) * 2**20 for _ in range(2**14)])
    if fault == "unsupported":
        raise Unsupported("fp8 needs another chip")
    if fault == "die":
        os.kill(os.getpid(), 9)
    return float("nan")


if __name__ == "__main__":
    run(main)
