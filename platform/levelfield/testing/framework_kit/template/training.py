"""The training of one rank, from job to last step. Only facts are recorded; the platform computes every rate."""

import math
from pathlib import Path

import numpy as np  # REPLACE: by your framework
from decoder import Decoder
from levelfield.worker import (
    Capture,
    Initializer,
    coordinates,
    dropout_seed,
    learning_rate,
    process_memory,
    train_steps,
)
from optimizer import AdamW

NAME = Path(__file__).resolve().parent.name


def train(job, recorder):
    """Train as `job` says."""
    recorder.framework(NAME, np.__version__, job.device)  # REPLACE: your framework's version and the device's name
    # REPLACE: join the other ranks here, by MASTER_ADDR, MASTER_PORT, job.rank and job.world_size
    trainer = Trainer(job)
    recorder.weights(trainer.weights())
    train_steps(job, recorder, trainer)
    # REPLACE: leave the other ranks here. Only after a whole training: after an error they may never come.


class Trainer:
    """One rank's model and optimizer. train_steps calls `launch`, then `finish`, in each step."""

    def __init__(self, job):
        self.job, self.place, self.capture = job, coordinates(job), Capture(job)
        # Every parameter by its canonical name. A rank with a part of it passes `slices` for that part alone.
        initializer = Initializer(job)
        specs = initializer.parameters(job.model)
        weights = {name: initializer.array(name, spec.shape) for name, spec in specs.items()}
        self.model = Decoder(job.model, weights)
        self.optimizer = AdamW(self.model.parameters, job.training.optimizer)

    def weights(self):
        """Return (name, whole shape, slices, float32 values) of all that this rank holds."""
        for name, values in self.model.parameters.items():
            yield name, values.shape, None, values  # slices None: the rank holds the whole parameter

    def save(self, folder):
        """Write each whole parameter under its name. With several ranks only those that hold a first copy write."""
        for name, values in self.model.parameters.items():
            np.save(Path(folder) / f"{name}.npy", values)

    def launch(self, batch):
        """Start the step: forward, backward, clipping, update. Do not wait for the device, if it is one."""
        keep = self.capture.keep if self.capture.wants(batch.step) else ignore
        seed = dropout_seed(self.job, self.place, batch.step)
        self.model.random.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        for gradient in self.model.gradients.values():
            gradient.fill(0)
        count, self.loss = self.job.accumulation, 0.0  # the loss is the mean over the whole global batch
        for micro in range(count):
            keep_micro = keep if micro == 0 else ignore
            self.loss += self.model.loss_and_gradients(batch.inputs[micro], batch.targets[micro], 1 / count, keep_micro)
        # REPLACE: with data parallelism, average the loss and all gradients over the data ranks here
        for name, gradient in self.model.gradients.items():
            keep(f"gradient.{name}", gradient)  # before clipping, without a loss scale
        self.squares = {
            name: float(np.square(gradient, dtype=np.float64).sum()) for name, gradient in self.model.gradients.items()
        }
        self.norm = math.sqrt(sum(self.squares.values()))
        self.rate = learning_rate(self.job.training.schedule, batch.step)
        divisor = max(1.0, self.norm / self.job.training.gradient_clip)
        self.optimizer.step(self.model.gradients, self.rate, divisor)

    def gradient_squares(self):
        """Return (name, this rank's share of the parameter's squared gradient norm) of the launched step."""
        return self.squares.items()  # REPLACE: of n ranks with the same gradient each gives 1/n

    def finish(self, batch):
        """Wait for the step's end. Return the arguments of Recorder.step."""
        return {
            "loss": self.loss,
            "grad_norm": self.norm,
            "tokens": batch.tokens,  # REPLACE: of ranks with the same tokens one counts them, the others 0
            "learning_rate": self.rate,
            "tokens_checksum": batch.checksum,
            "memory": process_memory(),  # REPLACE: add your framework's own counters
            "skipped": False,  # True where a loss scale left the step out
        }


def ignore(name, tensor):
    """Keep nothing of a tensor, as in all steps but the captured one."""
