"""A simulated training: real batches, initial weights and events, and a computed loss that falls. Of a mixture of
experts it records a routing that follows from the tokens alone.

DRILL_FAULT breaks it on purpose, on the last rank at step 3: `killed`, `nan` or `waits`, which takes ten minutes. Ranks
of several nodes first meet at the rendezvous.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
from levelfield.worker import Batches, Initializer, Recorder, coordinates, learning_rate, run
from levelfield.worker.architecture import is_mixture, part
from levelfield.worker.batches import Batch
from levelfield.worker.job import Job
from levelfield.worker.loop import counted_steps

FAULT_STEP = 3
STEP_SECONDS = 0.01
MEETING_SECONDS = 30.0


def main(job: Job, recorder: Recorder) -> None:
    recorder.framework(name="drill", version="1.0.0", device=job.device)
    initializer = Initializer(job)
    recorder.weights(
        (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
        for name, spec in initializer.parameters(job.model).items()
    )
    if token := os.environ.get("DRILL_TOKEN"):  # its digest in the rank's log shows that a secret arrived
        print(f"token {hashlib.sha256(token.encode()).hexdigest()}", flush=True)
    rendezvous(job)
    recorder.begin()
    counted = counted_steps(job.model, job.training.steps, job.gradient_steps)
    for batch in Batches(job, coordinates(job).data):
        time.sleep(STEP_SECONDS)
        meet(job, batch.step)
        if batch.step in counted:
            recorder.experts(batch.step, expert_tokens(job, batch))
        recorder.step(
            batch.step,
            loss=loss(job, batch.step),
            grad_norm=1.0,
            tokens=batch.tokens,
            learning_rate=learning_rate(job.training.schedule, batch.step),
            tokens_checksum=batch.checksum,
            memory={"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": 2**28},
            auxiliary_loss=auxiliary_loss(job, batch.step),
        )


def expert_tokens(job: Job, batch: Batch) -> list[tuple[int, list[int]]]:
    """Return how many tokens chose each expert of each layer: token t takes experts t + layer, t + layer + 1, ..."""
    experts = part(job.model, "experts")
    layers = [layer for layer in range(job.model.layers) if is_mixture(job.model, layer)]
    counts = []
    for layer in layers:
        choices = batch.inputs[..., None] + layer + np.arange(experts.chosen)
        counts.append((layer, np.bincount((choices % experts.count).ravel(), minlength=experts.count).tolist()))
    return counts


def auxiliary_loss(job: Job, step: int) -> float | None:
    """Return what the routers add to the loss; None without a coefficient."""
    experts = part(job.model, "experts")
    coefficient = experts.router.auxiliary_loss + experts.router.z_loss if experts else 0.0
    return float(coefficient * (1 + 0.5**step)) if coefficient else None


def rendezvous(job: Job) -> None:
    """Meet the ranks of the other nodes where the variables of the launcher say: rank 0 listens there."""
    rank = int(os.environ.get("LOCAL_WORLD_SIZE", job.world_size))
    if rank == job.world_size:
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if job.rank == 0:
        with socket.create_server(("", port)) as server:
            server.settimeout(MEETING_SECONDS)
            met = [server.accept()[0] for _ in range(job.world_size - rank)]
            for connection in met:
                connection.close()
    elif job.rank >= rank:
        deadline = time.monotonic() + MEETING_SECONDS
        while True:  # rank 0 may start later; then wait until it has met every rank
            try:
                with socket.create_connection((address, port), MEETING_SECONDS) as connection:
                    connection.recv(1)
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def meet(job: Job, step: int) -> None:
    """Wait until every rank of this node is at this step, as the collectives of a real training do."""
    folder, local = Path(job.events_dir), int(os.environ.get("LOCAL_WORLD_SIZE", job.world_size))
    (folder / f"rank{job.rank}.step").write_text(str(step))
    first = job.rank // local * local
    while any(reached(folder / f"rank{rank}.step") < step for rank in range(first, first + local)):
        time.sleep(0.001)


def reached(path: Path) -> int:
    """Return the step in the file; 0 while it is missing or empty."""
    try:
        return int(path.read_text() or 0)
    except OSError:
        return 0


def loss(job: Job, step: int) -> float:
    """Return the loss of a step. At the step of the fault, kill this process, wait, or return NaN."""
    fault = os.environ.get("DRILL_FAULT") if step == FAULT_STEP and job.rank == job.world_size - 1 else None
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "waits":
        time.sleep(600)
    return float("nan") if fault == "nan" else float(4.0 * 0.9**step)


if __name__ == "__main__":
    run(main)
