"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

import math

import oneflow as flow
from device import describe, memory
from head_loss import mean_loss
from levelfield.worker import Capture, Initializer, coordinates, learning_rate, train_steps
from meeting import leave
from optimizer import LocalAdamW
from parallelize import build
from parameters import as_arrays, fill, held_parts, save
from precision import LossScale, exact
from randomness import number


def train(job, recorder):
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    recorder.framework("oneflow", flow.__version__, *describe(job))
    trainer = Trainer(job, coordinates(job))
    recorder.weights(trainer.weights())
    train_steps(job, recorder, trainer)
    leave(job, flow.comm.barrier, lambda number: trainer.total([number])[0])


class Trainer:
    """One rank's model and optimizer. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job, place):
        self.job, self.place, self.capture = job, place, Capture(job)
        self.model, self.stages = build(job)
        self.parts = held_parts(self.model, job, place)
        fill(self.parts, Initializer(job))
        self.optimizer = LocalAdamW(self.parts, job.training)
        self.everyone = flow.placement(job.device, list(range(job.world_size)))
        self.random = bool(job.model.hidden_dropout or job.model.attention_dropout)
        self.loss_scale = LossScale(job.training.loss_scale if job.training.precision == "fp16" else None)

    def weights(self):
        """(name, whole shape, slices, float32 values) of what this rank holds."""
        return as_arrays(self.parts)

    def save(self, folder):
        save(self.model, folder, writes=self.job.rank == 0)

    def launch(self, batch):
        """Forward, backward, clipping and the optimizer's step; none where fp16's gradients are not finite."""
        keep = self.keeper() if self.capture.wants(batch.step) else None
        loss = self.gradients(batch, keep or ignore)
        self.optimizer.take_gradients()
        for name, gradient in self.optimizer.gradients() if keep else ():
            keep(f"gradient.{name}", gradient / self.loss_scale.value)
        self.squares = self.optimizer.squares()
        self.loss, square = self.reduce(loss)
        self.norm = (math.sqrt(square) if square >= 0 else square) / self.loss_scale.value
        self.rate = learning_rate(self.job.training.schedule, batch.step)
        self.update()

    def update(self):
        """The optimizer's step with clipped gradients; none where they are not finite under a loss scale."""
        if self.loss_scale.interval is not None and not math.isfinite(self.norm):
            self.optimizer.drop_gradients()
            return
        divisor = max(1.0, self.norm / self.job.training.gradient_clip)
        self.optimizer.step(self.rate, divisor * self.loss_scale.value)

    def gradients(self, batch, keep):
        """Forward and backward over all micro-batches; returns the mean loss, times the loss scale, as far as this rank
        has it.

        In a pipeline all forward passes go before the first backward pass, so that its stages work at the same time
        (GPipe; Huang et al., 2019).
        """
        pipelined = len(self.stages) > 1
        head, total = self.model.head_weight(), 0.0
        for micro in range(self.job.accumulation):
            seed = self.seed(batch.step, micro) if self.random else None
            loss = self.forward(head, batch.inputs[micro], batch.targets[micro], keep if not micro else ignore, seed)
            if not pipelined:
                loss.backward()
            total = total + (loss if pipelined else loss.detach())
        if pipelined:
            total.backward()
        return total

    def forward(self, head, inputs, targets, keep, seed):
        """The share of one micro-batch in the scaled mean loss, on the last stage; arrays [micro-batch, sequence]."""
        first, last = self.stages[0], self.stages[-1]
        hidden = self.model(first.batch(inputs), keep, seed)
        logits = self.model.logits(hidden, head)
        keep("logits", logits)
        share = self.job.accumulation / self.loss_scale.value
        return last.everywhere(mean_loss(logits, last.batch(targets))) / share

    def reduce(self, loss):
        """(mean loss times scale, squared gradient norm times scale squared) of the global batch: one collective."""
        last = self.stages[-1]
        share = loss.to_local().numpy() / (last.data * last.tensor) if last.here else 0.0
        return self.total([float(share), float(self.squares.sum().numpy())])

    def total(self, figures):
        """The sums of `figures`, a list of numbers, over all ranks."""
        local = flow.tensor(figures, dtype=flow.float64, device=self.job.device)
        summands = local.to_global(placement=self.everyone, sbp=flow.sbp.partial_sum)
        return summands.to_global(sbp=flow.sbp.broadcast).to_local().numpy().tolist()

    def keeper(self):
        return lambda name, tensor: self.capture.keep(name, exact(tensor.detach()).numpy())

    def seed(self, step, micro):
        """The seed of one micro-batch's random numbers: another one for each data-parallel rank."""
        return number(f"dropout {self.job.training.seed} {step} {micro} {self.place.data}") // 2

    def gradient_squares(self):
        """(name, this rank's share of its squared gradient norm) of the launched step."""
        squares = (self.squares / self.loss_scale.value**2).numpy().tolist()
        return zip((part.name for part in self.parts), squares, strict=True)

    def finish(self, batch):
        """What to record of the step."""
        owner = self.place.tensor == 0 and self.place.pipeline == 0
        scale, scaled, finite = self.loss_scale.value, self.loss_scale.interval is not None, math.isfinite(self.norm)
        self.loss_scale.update(finite)
        return {
            "loss": self.loss / scale,
            "grad_norm": self.norm if finite or not scaled else None,
            "tokens": batch.tokens if owner else 0,
            "learning_rate": self.rate,
            "tokens_checksum": batch.checksum,
            "memory": memory(),
            "loss_scale": scale if scaled else None,
            "skipped": scaled and not finite,
        }


def ignore(name, tensor):
    """What is kept of a tensor in most steps."""
