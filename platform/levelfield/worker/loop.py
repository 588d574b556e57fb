"""The loop around a step, the same in every framework: what is recorded, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterable, Protocol

from .batches import Batch, Batches
from .events import Recorder
from .job import coordinates


class Trainer(Protocol):
    """What a framework brings; its initial weights are reported before the loop."""

    def launch(self, batch: Batch) -> None:
        """The step's work, without waiting for the device where that is possible."""

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Of the launched step: see Recorder.gradients."""

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Wait for the step's end; the facts of Recorder.step."""

    def save(self, folder: str) -> None:
        """Write the weights by canonical name."""


def train_steps(job: SimpleNamespace, recorder: Recorder, trainer: Trainer) -> None:
    """Have `trainer` take every step. A step that the loss scale skipped has no gradients worth a record.

    After the step that `Capture` keeps, its updated weights go to the folder `updated` beside its tensors.
    """
    batches = iter(Batches(job, coordinates(job).data))
    batch = next(batches, None)
    recorder.begin()
    while batch is not None:
        trainer.launch(batch)
        upcoming = next(batches, None)  # read while the device works
        squares = trainer.gradient_squares() if batch.step in job.gradient_steps else None
        facts = trainer.finish(batch)
        if squares is not None and not facts["skipped"]:
            recorder.gradients(batch.step, squares)
        recorder.step(batch.step, **facts)
        if job.capture is not None and batch.step == job.capture.step:
            trainer.save(made(Path(job.capture.folder) / "updated"))
        batch = upcoming
    if job.save_weights_dir:
        trainer.save(job.save_weights_dir)


def made(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
