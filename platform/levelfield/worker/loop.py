"""The training loop of every framework: it defines what is recorded, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Protocol, Sequence

from .architecture import Model, is_mixture
from .batches import Batch, Batches
from .events import Recorder
from .job import Job, coordinates

if TYPE_CHECKING:
    from .events import LocalArray


MOST_COUNTERS = 512  # of one step's routing: layers x experts. More would fill the disk with the events of many ranks.


class Trainer(Protocol):
    """The part of training that a framework implements. It records its initial weights before the loop.

    It may have a SpotCheck as its attribute `spot_check`, and asks it in each `launch`. It may have an attribute
    `runs_ahead`: whether a step may be finished after the next one is launched, so that the
    device has work while the host records. `finish` must still return when its own step has ended.
    """

    def launch(self, batch: Batch) -> None:
        """Start the step's work, without waiting for the device where that is possible."""

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return the launched step's squared gradient norms for Recorder.gradients."""

    def expert_tokens(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return the launched step's routing for Recorder.experts. Only a model with experts needs it."""

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Wait for the step's end and return the arguments of Recorder.step."""

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds between two steps."""

    def save(self, folder: str) -> None:
        """Write the weights by canonical name."""


def train_steps(job: Job, recorder: Recorder, trainer: Trainer) -> None:
    """Train every step with `trainer` and record it, and then the final weights.

    A step that the loss scale skipped gets no gradients event. After the captured step, the updated weights are saved
    in the folder `updated` beside the captured tensors.
    """
    batches, records = iter(Batches(job, coordinates(job).data)), _Records(job, recorder, trainer)
    ahead, unfinished = getattr(trainer, "runs_ahead", False), None
    batch, spot_check = next(batches, None), getattr(trainer, "spot_check", None)
    recorder.begin()
    while batch is not None:
        if spot_check is not None:
            spot_check.begin(batch)
        trainer.launch(batch)
        if unfinished is not None:
            records.finish(unfinished)
        upcoming = next(batches, None)  # read while the device works
        unfinished = batch if ahead and upcoming is not None and records.can_wait(batch.step) else None
        if unfinished is None:
            records.finish(batch)
        batch = upcoming
    recorder.final_weights(trainer.weights())
    if spot_check is not None:
        spot_check.write()
    if job.save_weights_dir:
        trainer.save(job.save_weights_dir)


class _Records:
    """What is recorded of each step."""

    def __init__(self, job: Job, recorder: Recorder, trainer: Trainer) -> None:
        self.job, self.recorder, self.trainer = job, recorder, trainer
        self.counted = counted_steps(job.model, job.training.steps, job.gradient_steps)

    def can_wait(self, step: int) -> bool:
        """Whether the next step may be launched before this one is recorded: it overwrites what these steps show. The
        first step still makes its memory."""
        captured = self.job.capture is not None and step == self.job.capture.step
        return step > 1 and not (captured or step in self.job.gradient_steps or step in self.counted)

    def finish(self, batch: Batch) -> None:
        job, recorder, trainer = self.job, self.recorder, self.trainer
        squares = trainer.gradient_squares() if batch.step in job.gradient_steps else None
        chosen = trainer.expert_tokens() if batch.step in self.counted else None
        facts = trainer.finish(batch)
        if squares is not None and not facts["skipped"]:
            recorder.gradients(batch.step, squares)
        if chosen is not None:
            recorder.experts(batch.step, chosen)
        recorder.step(batch.step, **facts)
        if job.capture is not None and batch.step == job.capture.step:
            trainer.save(_create_folder(Path(job.capture.folder) / "updated"))


def counted_steps(model: Model, steps: int, gradient_steps: Sequence[int]) -> Sequence[int]:
    """Return the steps whose routing is recorded: all of a small mixture, else those that record gradients."""
    if model.experts is None:
        return ()
    counters = model.experts.count * sum(is_mixture(model, layer) for layer in range(model.layers))
    return range(1, steps + 1) if counters <= MOST_COUNTERS else tuple(gradient_steps)


def _create_folder(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
