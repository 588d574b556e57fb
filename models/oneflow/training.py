"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

import hashlib
import math

import oneflow as flow
from device import describe, memory
from head_loss import mean_loss
from levelfield.worker import Capture, Initializer, coordinates, learning_rate, train_steps
from meeting import leave
from optimizer import LocalAdamW
from parallelize import build
from parameters import as_arrays, fill, held_parts, save


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

    def weights(self):
        """(name, whole shape, slices, float32 values) of what this rank holds."""
        return as_arrays(self.parts)

    def save(self, folder):
        save(self.model, folder, writes=self.job.rank == 0)

    def launch(self, batch):
        """Forward, backward, clipping and the optimizer's step."""
        if self.random:
            self.seed(batch.step)
        keep = self.keeper() if self.capture.wants(batch.step) else None
        loss = self.gradients(batch, keep or ignore)
        self.optimizer.take_gradients()
        for name, gradient in self.optimizer.gradients() if keep else ():
            keep(f"gradient.{name}", gradient)
        self.squares = self.optimizer.squares()
        self.loss, square = self.reduce(loss)
        self.norm = math.sqrt(square) if square >= 0 else square
        self.rate = learning_rate(self.job.training.schedule, batch.step)
        self.optimizer.step(self.rate, max(1.0, self.norm / self.job.training.gradient_clip))

    def gradients(self, batch, keep):
        """Forward and backward over all micro-batches; returns the mean loss, as far as this rank has it.

        In a pipeline all forward passes go before the first backward pass, so that its stages work at the same time
        (GPipe; Huang et al., 2019).
        """
        pipelined = len(self.stages) > 1
        head, total = self.model.head_weight(), 0.0
        for micro in range(self.job.accumulation):
            loss = self.forward(head, batch.inputs[micro], batch.targets[micro], keep if not micro else ignore)
            if not pipelined:
                loss.backward()
            total = total + (loss if pipelined else loss.detach())
        if pipelined:
            total.backward()
        return total

    def forward(self, head, inputs, targets, keep):
        """The share of one micro-batch in the mean loss, on the last stage; arrays [micro-batch, sequence]."""
        first, last = self.stages[0], self.stages[-1]
        hidden = self.model(first.batch(inputs), keep)
        logits = self.model.logits(hidden, head)
        keep("logits", logits)
        return last.everywhere(mean_loss(logits, last.batch(targets))) / self.job.accumulation

    def reduce(self, loss):
        """(mean loss, squared gradient norm) of the global batch: one collective."""
        last = self.stages[-1]
        share = loss.to_local().numpy() / (last.data * last.tensor) if last.here else 0.0
        return self.total([float(share), float(self.squares.sum().numpy())])

    def total(self, figures):
        """The sums of `figures`, a list of numbers, over all ranks."""
        local = flow.tensor(figures, dtype=flow.float64, device=self.job.device)
        summands = local.to_global(placement=self.everyone, sbp=flow.sbp.partial_sum)
        return summands.to_global(sbp=flow.sbp.broadcast).to_local().numpy().tolist()

    def keeper(self):
        return lambda name, tensor: self.capture.keep(name, tensor.detach().numpy())

    def seed(self, step):
        """Start the random numbers of this step: equal on the ranks of a tensor-parallel group, but for its heads."""
        common = f"dropout {self.job.training.seed} {step} {self.place.data} {self.place.pipeline}"
        flow.manual_seed(number(common))
        for stage in self.stages if self.job.layout.tensor > 1 else ():
            stage.private.manual_seed(number(f"{common} {self.place.tensor}"))

    def gradient_squares(self):
        """(name, this rank's share of its squared gradient norm) of the launched step."""
        return zip((part.name for part in self.parts), self.squares.numpy().tolist(), strict=True)

    def finish(self, batch):
        """What to record of the step."""
        owner = self.place.tensor == 0 and self.place.pipeline == 0
        return {
            "loss": self.loss,
            "grad_norm": self.norm,
            "tokens": batch.tokens if owner else 0,
            "learning_rate": self.rate,
            "tokens_checksum": batch.checksum,
            "memory": memory(),
            "loss_scale": None,
            "skipped": False,
        }


def ignore(name, tensor):
    """What is kept of a tensor in most steps."""


def number(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
