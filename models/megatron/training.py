"""The training of one rank, from job to last step, by Megatron's schedules. Facts only are recorded."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from cpu import stand_in_for_cuda
from device import describe, memory, open_device
from exchange import exchange_clock
from levelfield.worker import Capture, Initializer, SpotCheck, coordinates, learning_rate, part, train_steps
from megatron.core import __version__ as megatron_version
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from mixture import list_routers
from model import build
from observe import observe
from parallelize import make_optimizer, parallel_groups, replicate, set_rates
from sending import keep_sent_memory
from sequence import Sequence
from spot_check import SampledForward, SampledUpdate
from step.transfers import on_device
from weights import Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from levelfield.worker import Batch, Recorder
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job
    from torch import nn

    MicroBatches = Iterator[tuple[torch.Tensor, torch.Tensor]]

# Megatron's selective recomputation is that of attention's core; the full one runs each layer whole.
REPEAT_NAMES = {"selective": "selective-attention"}


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    device = open_device(job)
    name, details = describe(device)
    repeats = REPEAT_NAMES.get(job.tuning.recompute, job.tuning.recompute)
    recorder.framework("megatron", megatron_version, name, {**details, **software(device), "repeats": repeats})
    stand_in_for_cuda(device)
    keep_sent_memory()
    with parallel_groups(job, device):
        trainer = Trainer(job, coordinates(job), device)
        recorder.weights(trainer.weights())
        train_steps(job, recorder, trainer)


class Trainer:
    """One rank's model, optimizer and schedule. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job: Job, place: Coordinates, device: torch.device) -> None:
        self.job, self.place, self.device, self.capture = job, place, device, Capture(job)
        # other ranks have other dropout; Megatron gives each tensor-parallel rank its own inside attention
        dropout_rank = (place.pipeline * job.layout.data + place.data) * job.layout.context + place.context
        model_parallel_cuda_manual_seed(job.training.seed + 4096 * dropout_rank)
        self.chunks = build(job, place, device)
        self.ddp_chunks = replicate(job, self.chunks)
        self.optimizer = make_optimizer(job, self.ddp_chunks)
        initializer = Initializer(job)
        self.local_weights = Weights(job, place, self.chunks, self.optimizer, initializer.parameters(job.model))
        self.local_weights.fill(initializer)
        self.spot_check = SpotCheck(job)
        self.sampled_update: SampledUpdate | None = None
        self.run_schedule = get_forward_backward_func()
        self.exchange_clock, self.micro_batches_left = exchange_clock(job, device, first_exchanging_stage=2), 0
        self.has_experts, self.routers = part(job.model, "experts") is not None, list_routers(self.chunks)
        self.sequence = Sequence(job.training.sequence_length, job.layout.context, place.context, device)
        self.positions = self.sequence.places.expand(job.tuning.micro_batch, -1)

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds."""
        return self.local_weights.local_arrays()

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm) of the launched step."""
        return self.local_weights.squares(self.loss_scale)

    def expert_tokens(self) -> Iterable[tuple[int, list[int]]]:
        """Return (layer, tokens by expert) of this rank's tokens in the launched step."""
        return [(router.layer_number - 1, router.tokens.tolist()) for router in self.routers]

    def save(self, folder: str) -> None:
        self.local_weights.save(folder)

    @property
    def loss_scale(self) -> float:
        if self.job.training.precision != "fp16":
            return 1.0  # Megatron's own is a tensor of the device, for which the host would wait
        return float(self.optimizer.get_loss_scale())

    def launch(self, batch: Batch) -> None:
        """Run forward and backward over all micro-batches: loss and gradients of the global batch, not yet clipped."""
        is_captured = self.capture.wants(batch.step)
        if is_captured:
            observe(self.chunks[0], self.capture.keep)
        for chunk in self.ddp_chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        for router in self.routers:
            router.reset()
        self.micro_batches_left = self.job.accumulation
        batch_tensors = on_device((batch.inputs, batch.targets), self.device)
        is_sampled = self.spot_check.wants(batch.step)
        with self.sampling() if is_sampled else contextlib.nullcontext():
            losses = self.run_schedule(
                forward_step_func=self.forward,
                # each chunk goes through all of the micro-batches
                data_iterator=[zip(*batch_tensors, strict=True) for _ in self.ddp_chunks],
                model=self.ddp_chunks,
                num_microbatches=self.job.accumulation,
                seq_length=self.job.training.sequence_length,
                micro_batch_size=self.job.tuning.micro_batch,
            )
        if is_sampled:
            self.sampled_update = SampledUpdate(self.local_weights, self.spot_check, self.loss_scale)
        self.loss = self.reduce(losses, self.job.layout.tensor)
        self.auxiliary_loss = self.reduce([router.loss for router in self.routers], 1) if self.has_experts else None
        for name, gradient in self.local_weights.gradients(self.loss_scale) if is_captured else ():
            self.capture.keep(f"gradient.{name}", gradient)

    def sampling(self) -> contextlib.AbstractContextManager[None]:
        """Sample the step's first micro-batch while the context lasts."""
        return SampledForward(self.job, self.place, self.chunks, self.local_weights, self.spot_check).install_hooks()

    def forward(self, micro_batches: MicroBatches, model: nn.Module) -> tuple[torch.Tensor, Any]:
        """Run the next micro-batch for Megatron's schedule. Return a model chunk's output, and the function that makes
        a loss of the last chunk's: the losses of its tokens, [micro-batch, part of the sequence]."""
        inputs, targets = (self.sequence.part(tokens) for tokens in next(micro_batches))
        return model(inputs, self.positions, None, labels=targets), self.mean_loss

    def mean_loss(self, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (loss, what to keep of it) of a micro-batch. The last one's backward pass begins the exchange."""
        loss = mean_loss(losses, self.job.layout.context)
        self.micro_batches_left -= 1
        if self.micro_batches_left == 0:
            self.exchange_clock.reaches_exchange()
        return loss

    def reduce(self, losses: Iterable[torch.Tensor | float], replicas: int) -> torch.Tensor:
        """Return the mean loss of the global batch, on every rank.

        losses: of this rank, each the sum over micro-batches or of one of them. replicas: how many tensor-parallel
        ranks have the same.
        """
        divisor = self.job.accumulation * self.job.layout.data * replicas
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss / divisor
        if self.job.world_size > 1:
            dist.all_reduce(total)
        return total

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Clip and step, or skip the step where fp16 overflowed. Return what to record of it."""
        rate, scale = learning_rate(self.job.training.schedule, batch.step), self.loss_scale
        before_exchange_seconds = self.exchange_clock.seconds()
        set_rates(self.optimizer, rate, self.job.training.optimizer.weight_decay)
        is_updated, norm, _ = self.optimizer.step()
        if self.sampled_update is not None:
            self.sampled_update.finish()
            self.sampled_update = None
        self.exchange_clock.exchanged()
        counts_tokens = self.place.tensor == self.place.pipeline == self.place.context == 0
        return {
            "loss": self.loss.item(),
            "grad_norm": norm,
            "tokens": batch.tokens if counts_tokens else 0,
            "learning_rate": rate,
            "tokens_checksum": batch.checksum,
            "memory": memory(self.device),
            "loss_scale": scale if self.job.training.precision == "fp16" else None,
            "skipped": not is_updated,
            "before_exchange_seconds": before_exchange_seconds,
            "auxiliary_loss": None if self.auxiliary_loss is None else self.auxiliary_loss.item(),
        }


def mean_loss(losses: torch.Tensor, ranks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (loss, what to keep of it) of a micro-batch. Megatron divides the first in place: the second is a copy.

    ranks: that share the sequences, each with so much of the mean.
    """
    loss = losses.mean() / ranks
    return loss, loss.detach().clone()


def software(device: torch.device) -> dict[str, str | None]:
    """Return what else took part: the layers' maker, by Megatron's name, and transformer-engine's version or None."""
    version = None
    if importlib.util.find_spec("transformer_engine") is not None:
        version = importlib.import_module("transformer_engine").__version__
    layers = "transformer_engine" if device.type == "cuda" else "local"
    return {"torch": torch.__version__, "layers": layers, "transformer_engine": version}
