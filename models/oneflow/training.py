"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import oneflow as flow
from device import describe, memory
from head_loss import mean_loss
from levelfield.worker import Capture, Initializer, SpotCheck, coordinates, learning_rate, train_steps
from optimizer import LocalAdamW
from parallelize import build
from parameters import fill, local_arrays, local_parameters, save
from precision import LossScale, to_float32
from randomness import seed_number
from rendezvous import wait_for_all_ranks
from spot_check import SampledUpdate, sampled_passes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from levelfield.worker import Batch, Recorder
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job
    from numpy.typing import NDArray

    Keep = Callable[[str, flow.Tensor], None]


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    recorder.framework("oneflow", flow.__version__, *describe(job))
    trainer = Trainer(job, coordinates(job))
    recorder.weights(trainer.weights())
    train_steps(job, recorder, trainer)
    wait_for_all_ranks(job, flow.comm.barrier, lambda number: trainer.total([number])[0])


class Trainer:
    """One rank's model and optimizer. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job: Job, place: Coordinates) -> None:
        self.job, self.place, self.capture, self.spot_check = job, place, Capture(job), SpotCheck(job)
        self.model, self.stages = build(job)
        self.parts = local_parameters(self.model, job, place)
        fill(self.parts, Initializer(job))
        self.optimizer = LocalAdamW(self.parts, job.training)
        self.all_ranks = flow.placement(job.device, list(range(job.world_size)))
        self.has_dropout = bool(job.model.hidden_dropout or job.model.attention_dropout)
        self.loss_scale = LossScale(job.training.loss_scale if job.training.precision == "fp16" else None)

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds."""
        return local_arrays(self.parts)

    def save(self, folder: str) -> None:
        save(self.model, folder, is_writer=self.job.rank == 0)

    def launch(self, batch: Batch) -> None:
        """Run forward, backward, clipping and the optimizer's step; none where fp16's gradients are not finite."""
        keep = self.capture_function() if self.capture.wants(batch.step) else None
        is_sampled = self.spot_check.wants(batch.step)
        with sampled_passes(self.model, self.spot_check) if is_sampled else contextlib.nullcontext():
            loss = self.gradients(batch, keep or keep_nothing)
        self.optimizer.take_gradients()
        if keep is not None:
            for name, gradient in self.optimizer.gradients():
                keep(f"gradient.{name}", gradient / self.loss_scale.value)
        self.squares = self.optimizer.squares()
        self.loss, square = self.reduce(loss)
        self.norm = (math.sqrt(square) if square >= 0 else square) / self.loss_scale.value
        self.rate = learning_rate(self.job.training.schedule, batch.step)
        update = SampledUpdate(self.optimizer, self.spot_check, self.loss_scale.value) if is_sampled else None
        self.update()
        if update is not None:
            update.finish()

    def update(self) -> None:
        """Run the optimizer's step with clipped gradients; none where they are not finite under a loss scale."""
        if self.loss_scale.growth_interval is not None and not math.isfinite(self.norm):
            self.optimizer.drop_gradients()
            return
        divisor = max(1.0, self.norm / self.job.training.gradient_clip)
        self.optimizer.step(self.rate, divisor * self.loss_scale.value)

    def gradients(self, batch: Batch, keep: Keep) -> flow.Tensor:
        """Run forward and backward over all micro-batches. Return the mean loss, times the loss scale, as far as this
        rank has it.

        In a pipeline all forward passes go before the first backward pass, so that its stages work at the same time
        (GPipe; Huang et al., 2019).
        """
        is_pipelined = len(self.stages) > 1
        head = self.model.head_weight()
        total: Any = 0.0
        for micro in range(self.job.accumulation):
            seed = self.seed(batch.step, micro) if self.has_dropout else None
            keep_here = keep if micro == 0 else keep_nothing
            loss = self.forward(head, batch.inputs[micro], batch.targets[micro], keep_here, seed)
            if not is_pipelined:
                loss.backward()
            total = total + (loss if is_pipelined else loss.detach())
        if is_pipelined:
            total.backward()
        return total

    def forward(
        self, head: flow.Tensor, inputs: NDArray[np.int64], targets: NDArray[np.int64], keep: Keep, seed: int | None
    ) -> flow.Tensor:
        """Return the share of one micro-batch in the scaled mean loss, on the last stage.

        inputs, targets: [micro-batch, sequence].
        """
        first, last = self.stages[0], self.stages[-1]
        hidden = self.model(first.batch(inputs), keep, seed)  # [batch, sequence, hidden]
        logits = self.model.logits(hidden, head)  # [batch, sequence, vocabulary]
        keep("logits", logits)
        share = self.job.accumulation / self.loss_scale.value
        return last.replicated_sum(mean_loss(logits, last.batch(targets))) / share

    def reduce(self, loss: flow.Tensor) -> tuple[float, float]:
        """Return (mean loss times scale, squared gradient norm times scale squared) of the global batch."""
        last = self.stages[-1]
        share = loss.to_local().numpy() / (last.data * last.tensor) if last.is_local else 0.0
        mean, square = self.total([float(share), float(self.squares.sum().numpy())])
        return mean, square

    def total(self, figures: Sequence[float]) -> list[float]:
        """Return the sums of `figures` over all ranks."""
        local = flow.tensor(figures, dtype=flow.float64, device=self.job.device)
        summands = local.to_global(placement=self.all_ranks, sbp=flow.sbp.partial_sum)
        sums: list[float] = summands.to_global(sbp=flow.sbp.broadcast).to_local().numpy().tolist()
        return sums

    def capture_function(self) -> Keep:
        return lambda name, tensor: self.capture.keep(name, to_float32(tensor.detach()).numpy())

    def seed(self, step: int, micro: int) -> int:
        """Return the seed of one micro-batch's random numbers: another one for each data-parallel rank."""
        return seed_number(f"dropout {self.job.training.seed} {step} {micro} {self.place.data}") // 2

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm) of the launched step."""
        squares = (self.squares / self.loss_scale.value**2).numpy().tolist()
        return zip((part.name for part in self.parts), squares, strict=True)

    def expert_tokens(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return nothing: no model here has experts."""
        return ()

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Return what to record of the step."""
        counts_tokens = self.place.tensor == 0 and self.place.pipeline == 0
        scale, has_loss_scale = self.loss_scale.value, self.loss_scale.growth_interval is not None
        is_finite = math.isfinite(self.norm)
        self.loss_scale.update(is_finite)
        return {
            "loss": self.loss / scale,
            "grad_norm": self.norm if is_finite or not has_loss_scale else None,
            "tokens": batch.tokens if counts_tokens else 0,
            "learning_rate": self.rate,
            "tokens_checksum": batch.checksum,
            "memory": memory(),
            "loss_scale": scale if has_loss_scale else None,
            "skipped": has_loss_scale and not is_finite,
        }


def keep_nothing(name: str, tensor: flow.Tensor) -> None:
    """Keep nothing of a tensor, as in most steps."""
