"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

import hashlib
import math

import torch
import torch.distributed as dist
from data_parallel import micro_batch_context
from device import describe, memory, open_device, process_group
from levelfield.worker import Batches, Initializer, coordinates, learning_rate
from mesh import Grid
from optimizer import LocalAdamW, LossScale, clip_divisor
from parallelize import build
from parameters import as_arrays, save
from pipeline import Pipeline


def train(job, recorder):
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    device, place = open_device(job), coordinates(job)
    name, details = describe(device)
    recorder.framework("torch", torch.__version__, name, details)
    with process_group(job, device):
        trainer = Trainer(job, place, device)
        recorder.weights(as_arrays(trainer.model))
        batches = iter(Batches(job, place.data))
        batch = next(batches)
        recorder.begin()
        while batch is not None:
            trainer.launch(batch)
            upcoming = next(batches, None)  # read while the device works
            recorder.step(batch.step, **trainer.finish(batch))
            batch = upcoming
        if job.save_weights_dir:
            save(trainer.model, job.save_weights_dir, writes=place.data == 0 and place.tensor == 0)


class Trainer:
    """One rank's model, optimizer and loss scale. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job, place, device):
        self.job, self.place, self.device = job, place, device
        grid = Grid(job)
        self.model, self.runner = build(job, grid, place, Initializer(job), device)
        self.pipeline = None
        if job.layout.pipeline > 1:
            stage = self.model.stage
            self.pipeline = Pipeline(job, self.runner, stage, self.model.dtype, device, grid["pipeline"])
        ends = grid.ends_group(place) if job.layout.pipeline > 1 and job.model.tied_embeddings else None
        self.optimizer = LocalAdamW(self.model, job.training, job.layout.data * job.layout.tensor, ends)
        self.loss_scale = LossScale(job.training.loss_scale if job.training.precision == "fp16" else None)
        self.random = bool(job.model.hidden_dropout or job.model.attention_dropout)

    def launch(self, batch):
        """Forward, backward, clipping and the optimizer's step, without waiting for the device."""
        if self.random:
            torch.manual_seed(step_seed(self.job, self.place, batch.step))
        inputs, targets = (torch.from_numpy(array).to(self.device) for array in (batch.inputs, batch.targets))
        loss = self.gradients(inputs, targets)
        self.optimizer.take_gradients()
        self.figures = self.reduce(loss)
        scale = self.loss_scale.value
        norm = self.figures[1].sqrt() / scale
        skip = None if self.loss_scale.interval is None else (~norm.isfinite()).float()
        rate = learning_rate(self.job.training.schedule, batch.step)
        self.optimizer.step(rate, clip_divisor(norm, self.job.training.gradient_clip, scale), skip)
        self.optimizer.drop_gradients()

    def gradients(self, inputs, targets):
        """Forward and backward over all micro-batches. Returns the loss, times the loss scale, of this data rank."""
        count, stage = self.job.accumulation, self.job.layout.sharding_stage
        scale = self.loss_scale.value / count
        if self.pipeline is not None:
            return self.pipeline.step(inputs, targets, scale)
        total = torch.zeros(1, device=self.device)
        for micro in range(count):
            with micro_batch_context(self.runner, stage, last=micro == count - 1):
                loss = self.runner(inputs[micro], targets[micro], scale)
                loss.backward()
            total += loss.detach()
        return total

    def reduce(self, loss):
        """[loss times scale, squared gradient norm times scale squared], over the global batch: one collective."""
        shares = self.job.layout.data * self.job.layout.tensor  # ranks that hold a last stage's loss
        figures = torch.stack((loss[0].double() / shares, self.optimizer.squared_norm()))
        if self.job.world_size > 1:
            dist.all_reduce(figures)
        return figures

    def finish(self, batch):
        """Wait for the step's end; what to record of it."""
        scale = self.loss_scale.value
        loss, square = self.figures.tolist()
        norm = math.sqrt(square) / scale if square >= 0 else square
        finite = math.isfinite(norm)
        self.loss_scale.update(finite)
        scaled = self.loss_scale.interval is not None
        owner = self.place.tensor == 0 and self.place.pipeline == 0
        return {
            "loss": loss / scale,
            "grad_norm": norm if finite or not scaled else None,
            "tokens": batch.tokens if owner else 0,
            "learning_rate": learning_rate(self.job.training.schedule, batch.step),
            "tokens_checksum": batch.checksum,
            "memory": memory(self.device),
            "loss_scale": scale if scaled else None,
            "skipped": scaled and not finite,
        }


def step_seed(job, place, step):
    """The seed of this rank's random numbers in `step`: equal on the ranks of a tensor-parallel group, unless each
    has its own part of the sequence."""
    stream = place.tensor if job.layout.sequence_parallel else 0
    text = f"dropout {job.training.seed} {step} {place.data} {place.pipeline} {stream}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
