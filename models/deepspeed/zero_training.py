"""The training of one rank by DeepSpeed's engine. Facts only are recorded."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
import torch.distributed as dist
from configuration import check, clips_here
from device import describe, memory, open_device, process_group
from engine import open_engine
from exchange import exchange_clock
from levelfield.worker import Batch, Capture, Initializer, Recorder, SpotCheck, coordinates, learning_rate, train_steps
from levelfield.worker.job import Coordinates, Job
from model import kernels
from model.attention_kernel import attention_kernel
from partition import exact_norm, save, squared_norm, whole_gradients, whole_parameters
from step.activations import capture_activations, capture_gradients
from step.optimizer import clip_divisor
from step.recompute import repeats
from step.spot_check import sampled_forward
from step.transfers import on_device
from training import step_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    device = open_device(job)
    name, details = describe(device)
    details = {**details, "torch": torch.__version__, "repeats": repeated_work(job)}
    details["attention_kernel"] = attention_kernel(job, device)
    details["kernels"] = kernels.choose(job, device)
    recorder.framework("deepspeed", deepspeed.__version__, name, details)
    check(job)
    with process_group(job, device, alone=True):
        deepspeed.init_distributed(job.backend, auto_mpi_discovery=False)  # takes the group that there is
        trainer = ZeroTrainer(job, coordinates(job), device)
        recorder.weights(trainer.weights())
        train_steps(job, recorder, trainer)


def repeated_work(job: Job) -> str:
    """Return what the backward pass repeats.

    ZeRO 3 takes the outputs of each module up, so that no second pass ends early.
    """
    repeats_all = job.layout.sharding_stage == 3 and job.tuning.recompute == "full"
    return "full" if repeats_all else repeats(job)


class ZeroTrainer:
    """One rank's engine, for train_steps. The engine accumulates, scales the loss, skips steps, and mostly clips."""

    def __init__(self, job: Job, place: Coordinates, device: torch.device) -> None:
        self.job, self.place, self.device, self.capture = job, place, device, Capture(job)
        self.spot_check = SpotCheck(job)
        self.engine = open_engine(job, place, Initializer(job), device)
        self.model = self.engine.module
        self.stage, self.has_loss_scale = job.layout.sharding_stage, job.training.precision == "fp16"
        self.clips_here = clips_here(job)
        self.has_dropout = bool(job.model.hidden_dropout or job.model.attention_dropout)
        self.exchange_clock = exchange_clock(job, device, first_exchanging_stage=2)

    def weights(self) -> Iterator[tuple[str, tuple[int, ...], tuple[slice, ...], NDArray[np.float32]]]:
        """Yield (name, whole shape, slices, float32 values): every rank reports all, gathered where it has a part."""
        for name, whole in whole_parameters(self.model):
            yield name, whole.shape, tuple(slice(0, size) for size in whole.shape), whole

    def save(self, folder: str) -> None:
        save(self.model, folder, is_writer=self.job.rank == 0)

    def launch(self, batch: Batch) -> None:
        """Do all of the step: the engine waits for the gradient's norm itself."""
        if self.has_dropout:
            torch.manual_seed(step_seed(self.job, self.place, batch.step))
        self.scale = self.engine.optimizer.loss_scale if self.has_loss_scale else 1.0
        self.rate = learning_rate(self.job.training.schedule, batch.step)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.rate
        self.loss = self.gradients(batch)
        self.take_evidence(batch.step)
        if self.clips_here:
            self.clip()
        self.engine.step()
        self.exchange_clock.exchanged()

    def gradients(self, batch: Batch) -> torch.Tensor:
        """Run forward and backward over all micro-batches. Returns the global batch's mean loss."""
        inputs, targets = on_device((batch.inputs, batch.targets), self.device)
        is_captured, total = self.capture.wants(batch.step), torch.zeros(1, device=self.device)
        is_sampled = not self.job.tuning.compile and self.spot_check.wants(batch.step)
        # at ZeRO stage 3 the engine gives each module another tensor than the block has
        sampling: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if is_sampled:
            sampling = sampled_forward(self.model, self.spot_check, self.stage < 3)
        with sampling:
            for micro in self.spot_check.micro_batches(self.job.accumulation):
                if micro:
                    self.engine.step()  # between micro-batches it only counts
                capturing = (
                    capture_activations(self.model, self.capture)
                    if is_captured and not micro
                    else contextlib.nullcontext()
                )
                with capturing:
                    total += self.backward(inputs[micro], targets[micro], last=micro == self.job.accumulation - 1)
        if self.job.world_size > 1:
            dist.all_reduce(total)
        return total / self.job.layout.data

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor, last: bool) -> torch.Tensor:
        """Run one micro-batch forward and backward, and return its share of the mean loss.

        The model's loss wants its factors inside and a gradient of one (head_loss). Under ZeRO the engine multiplies
        by the loss scale outside, a power of two: dividing by it in between changes no digit. Without ZeRO it does
        not multiply, though its optimizer divides the gradients; then a division by one remains, as the engine
        divides by the accumulation what comes straight from the model.
        """
        loss = self.engine(inputs, targets, self.scale / self.job.accumulation)
        if last:
            self.exchange_clock.reaches_exchange()
        self.engine.backward(loss / (self.scale if self.stage else 1.0), scale_wrt_gas=False)
        return loss.detach() / self.scale  # type: ignore[no-any-return]

    def take_evidence(self, step: int) -> None:
        """Keep the whole gradients, where they are captured, and their norms, before the engine's step changes them."""
        if self.capture.wants(step):
            capture_gradients(self.capture, whole_gradients(self.model), self.scale)
        if step in self.job.gradient_steps:
            scale = self.scale**2
            self.squares = [(name, squared_norm(whole) / scale) for name, whole in whole_gradients(self.model)]

    def clip(self) -> None:
        """Clip the gradients, which the engine leaves to this training.

        Every rank has the whole gradients of the global batch.
        """
        gradients = [whole for _, whole in whole_gradients(self.model)]
        self.gradient_norm = exact_norm(gradients)
        torch._foreach_div_(gradients, clip_divisor(self.gradient_norm, self.job.training.gradient_clip, 1.0))

    def expert_tokens(self) -> tuple[()]:
        """Return nothing: `check` refuses a model with experts."""
        return ()

    def gradient_squares(self) -> list[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm): each rank has computed all of them."""
        return [(name, float(square) / self.job.world_size) for name, square in self.squares]

    def norm(self) -> float:
        """Return the gradient's norm before clipping, without the loss scale, which the engine's has without ZeRO."""
        if self.clips_here:
            return float(self.gradient_norm)
        return float(self.engine.get_global_grad_norm()) / (1.0 if self.stage else self.scale)

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Return what to record of the step."""
        skipped = not self.engine.was_step_applied()
        return {
            "loss": self.loss.item(),
            "grad_norm": None if skipped and self.has_loss_scale else self.norm(),
            "tokens": batch.tokens,
            "learning_rate": self.rate,
            "tokens_checksum": batch.checksum,
            "memory": memory(self.device),
            "loss_scale": self.scale if self.has_loss_scale else None,
            "skipped": skipped,
            "before_exchange_seconds": self.exchange_clock.seconds(),
        }
