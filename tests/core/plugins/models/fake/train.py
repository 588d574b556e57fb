"""A training that only pretends: real batches, initial weights and events, and a loss that falls by itself.

FAKE_FAULT breaks it on purpose, on the last rank at step 6: `nan`, `oom` (says so), `eat` (takes memory until the
kernel ends it), `unsupported`, `truncate` (empties the corpus), `die` or `stop` (it is suspended for FAKE_SECONDS);
`clock`: its clock is half as fast. FAKE_STEP_SECONDS: how long a step lasts at least.

FAKE_CLOCK gives the times of the heartbeat's file another clock: seconds that are added in turn, as in `60,-60`.

FAKE_PACE=0.1: step k ends k times 0.1 s after the begin, by a clock that shows just that, so that equal runs are equal.

FAKE_CARDS=GPU-a,GPU-b names the cards in the order in which the framework numbers them.

FAKE_FP32_ERROR=0.01 makes the losses of trainings in fp32 wrong by 1 %.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

from levelfield.worker import Batches, Initializer, Unsupported, coordinates, events, heartbeat, learning_rate, run
from levelfield.worker.device_identity import identity_digest

if TYPE_CHECKING:
    from levelfield.worker import Batch, Recorder
    from levelfield.worker.job import Job

FAULT_STEP = 6
STEP_SECONDS = float(os.environ.get("FAKE_STEP_SECONDS", "0.005"))


def main(job: Job, recorder: Recorder) -> None:
    place = coordinates(job)
    recorder.framework(name="fake", version="1.2.3", device=job.device, details=card_details(job))
    initializer = Initializer(job)
    recorder.weights(
        (name, spec.shape, None, initializer.array(name, spec.shape, std=spec.std, fill=spec.fill))
        for name, spec in initializer.parameters(job.model).items()
    )
    if os.environ.get("FAKE_FAULT") == "clock" and job.rank == job.world_size - 1:
        set_clock(lambda: time.monotonic_ns() // 2)
    pace = Pace(float(os.environ["FAKE_PACE"])) if "FAKE_PACE" in os.environ else None
    recorder.begin()
    for batch in Batches(job, place.data):
        pace.end(batch.step) if pace else time.sleep(STEP_SECONDS)
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
            memory={"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": 2**28},
        )
    if job.explain_step is not None:
        import_module("levelfield.worker.step_profile").profile_steps(job, recorder, Steps())


class Steps:
    """What a further step does."""

    def launch(self, batch: Batch) -> None:
        time.sleep(STEP_SECONDS)

    def finish(self, batch: Batch) -> None:
        pass


class Pace:
    """A clock that stands at the end of a step, and begins with the training."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begin_ns, self.now_ns = seconds, time.monotonic_ns(), time.monotonic_ns()
        set_clock(lambda: self.now_ns)

    def end(self, step: int) -> None:
        self.now_ns = self.begin_ns + round(step * self.seconds * 1e9)
        time.sleep(max(0, self.now_ns - time.monotonic_ns()) / 1e9)


def set_clock(monotonic_ns: Callable[[], int]) -> None:
    """Have the events take their times from this clock."""
    vars(events)["time"] = SimpleNamespace(monotonic_ns=monotonic_ns)


def card_details(job: Job) -> dict[str, list[str]]:
    """Return the identity of the card that this rank gets, of those that the vendor's variable leaves visible."""
    cards, visible = os.environ.get("FAKE_CARDS"), os.environ.get("ACME_VISIBLE_DEVICES", "")
    if cards is None:
        return {}
    card = cards.split(",")[int(visible.split(",")[job.local_rank])]
    return {"device_identities": [identity_digest("device", card)]}


def error(job: Job) -> float:
    return float(os.environ.get("FAKE_FP32_ERROR", 0)) if job.training.precision == "fp32" else 0.0


def meet(job: Job, step: int) -> None:
    """Wait until every rank is at this step, as the collectives of a real training do."""
    folder = Path(job.events_dir)
    (folder / f"rank{job.rank}.step").write_text(str(step))
    while any(reached(folder / f"rank{rank}.step") < step for rank in range(job.world_size)):
        time.sleep(0.001)


def reached(path: Path) -> int:
    """Return the step in the file; 0 while it is missing or empty."""
    try:
        return int(path.read_text() or 0)
    except OSError:
        return 0


def break_on_purpose(job: Job, step: int) -> float | None:
    """Return the loss of a broken step, or None for a step that goes on as if nothing was."""
    fault = os.environ.get("FAKE_FAULT")
    if fault is None or step != FAULT_STEP or job.rank != job.world_size - 1:
        return None
    return FAULTS[fault](job)


def empty_the_corpus(job: Job) -> None:
    Path(f"{job.corpus.prefix}.bin").write_bytes(b"")


def refuse(job: Job) -> NoReturn:
    raise Unsupported("fp8 needs another chip")


def take_memory(job: Job) -> NoReturn:
    raise MemoryError("cannot allocate 7 GiB")


def suspend(job: Job) -> None:
    """Stop this process, as a debugger or a batch system does, and have it continued after FAKE_SECONDS."""
    seconds = os.environ["FAKE_SECONDS"]
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


FAULTS: dict[str, Callable[[Job], float | None]] = {
    "nan": lambda job: float("nan"),
    "oom": take_memory,
    "eat": lambda job: sum(len(block) for block in [bytes([1]) * 2**20 for _ in range(2**14)]),
    "unsupported": refuse,
    "truncate": empty_the_corpus,
    "die": lambda job: os.kill(os.getpid(), signal.SIGKILL),
    "stop": suspend,
    "clock": lambda job: None,  # from the first step on
}


def shift_clock() -> None:
    """Give each heartbeat a time that is off, as a file server with another clock does, or a clock that was set."""
    touch, shifts = heartbeat._touch, itertools.cycle(map(float, os.environ["FAKE_CLOCK"].split(",")))

    def shifted(path: str, count: int) -> None:
        touch(path, count)
        now = time.time() + next(shifts)
        os.utime(path, (now, now))

    heartbeat._touch = shifted


if __name__ == "__main__":
    if "FAKE_CLOCK" in os.environ:
        shift_clock()
    run(main)
