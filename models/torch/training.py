"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from device import describe, memory, open_device, process_group
from exchange import exchange_clock
from levelfield.worker import Batch, Capture, Initializer, Recorder, SpotCheck, coordinates, learning_rate, train_steps
from levelfield.worker.job import Coordinates, Job
from model import kernels, onednn
from model.attention_kernel import attention_kernel
from model.casts import StepCasts
from model.parameters import local_arrays, save
from model.tallies import Tallies
from parallelism.data_parallel import free_first_buckets, gradients_in_buckets, micro_batch_context
from parallelism.mesh import Grid
from parallelism.parallelize import build, check, divided_parameters
from step.activations import capture_activations, capture_gradients
from step.optimizer import LocalAdamW, LossScale, clip_divisor
from step.recompute import compile_seconds, compiled_part, repeats
from step.spot_check import MicroBatchGradients, SampledUpdate, sampled_forward
from step.transfers import FiguresOnTheirWay, on_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from levelfield.worker.events import LocalArray
    from parallelism.context_parallel import SequenceShare
    from parallelism.expert_parallel import ExpertMesh
    from parallelism.pipeline import Pipeline
    from step.graph import StepGraph


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    onednn.choose(getattr(job, "products", None))
    device = open_device(job)
    name, details = describe(device)
    details = {**details, "repeats": repeats(job), "attention_kernel": attention_kernel(job, device)}
    details = {**details, "compiled": compiled_part(job), "kernels": kernels.choose(job, device)}
    if job.training.precision == "fp8":
        from step.fp8 import fp8_library

        details["fp8_library"], _library = fp8_library(job.device)
    recorder.framework("torch", torch.__version__, name, details)
    check(job)
    with process_group(job, device):
        trainer = Trainer(job, coordinates(job), device)
        recorder.weights(trainer.weights())
        train_steps(job, recorder, trainer)


class Trainer:
    """One rank's model, optimizer and loss scale. A step is `launch`, then `finish`, which waits for its end."""

    def __init__(self, job: Job, place: Coordinates, device: torch.device) -> None:
        self.experts: ExpertMesh | None
        self.share: SequenceShare | None
        self.model: Any  # the Decoder, or ModelChunks in its place
        self.runner: Any
        kernels.choose(job, device)
        self.spot_check = SpotCheck(job)
        self.job, self.place, self.device, self.capture = job, place, device, Capture(job)
        grid = Grid(job)
        self.experts = self.share = None
        # a training rests on what it imports (tested.json): so what only some layouts use is imported by them
        if job.layout.expert > 1:
            from parallelism.expert_parallel import ExpertMesh

            self.experts = ExpertMesh(job)
        if job.layout.context > 1:
            from parallelism.context_parallel import open_share

            self.share = open_share(job, place)
        self.model, self.runner = build(job, grid, place, Initializer(job), device, self.experts, self.share)
        self.casts = StepCasts(self.model, divided_parameters(self.model, self.experts))
        self.renew_scales: Callable[[Any], None] | None = None
        if job.training.precision == "fp8":
            from step.fp8 import renewal_of_scales

            self.renew_scales = renewal_of_scales(job)
        self.tallies = Tallies(job, self.model, place, device)
        self.pipeline: Pipeline | None = None
        if job.layout.pipeline > 1:
            from parallelism.pipeline import Pipeline

            self.pipeline = Pipeline(job, self.model, self.runner, device, grid["pipeline"])  # type: ignore[arg-type]
        ends = grid.ends_group(place) if job.layout.pipeline > 1 and job.model.tied_embeddings else None
        self.stage_ranks = job.layout.data * job.layout.context * job.layout.tensor
        self.optimizer = LocalAdamW(self.model, job.training, self.stage_ranks, ends, capturable=job.tuning.graph)
        self.loss_scale = LossScale(job.training.loss_scale if job.training.precision == "fp16" else None)
        self.has_dropout = bool(job.model.hidden_dropout or job.model.attention_dropout)
        # FSDP2 gathers parameters from stage 1 on
        self.exchange_clock = exchange_clock(job, device, first_exchanging_stage=1)
        self.graph: StepGraph | None = None
        if job.tuning.graph:
            from step.graph import StepGraph

            self.graph = StepGraph()
        self.launched: deque[Any] = deque()  # what `finish` takes, first the step that was launched first
        # a loss scale follows from a step's end; elsewhere than on CUDA the host waits for all that is launched
        self.runs_ahead = device.type == "cuda" and self.loss_scale.growth_interval is None

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds."""
        return local_arrays(self.model)

    def save(self, folder: str) -> None:
        save(self.model, folder, is_writer=self.place.data == self.place.context == self.place.tensor == 0)

    def launch(self, batch: Batch) -> None:
        """Run forward, backward, clipping and the optimizer's step, without waiting for the device."""
        if self.has_dropout:
            torch.manual_seed(step_seed(self.job, self.place, batch.step))
        inputs, targets = on_device((batch.inputs, batch.targets), self.device)
        if self.share is not None:
            inputs, targets = self.share.of(inputs), self.share.of(targets)
        self.optimizer.set_learning_rate(learning_rate(self.job.training.schedule, batch.step))
        if self.graph is None:
            # a compiled model shows nothing between its ends
            sample = not self.job.tuning.compile and self.spot_check.wants(batch.step)
            wants_evidence = self.capture.wants(batch.step), sample
            figures, self.squares = self.compute(inputs, targets, *wants_evidence)
        else:
            figures, self.squares = self.graph.run(self.compute, inputs, targets)
        # memory now: it is counted as the host allocates, and the next step may be launched before this one ends
        self.launched.append((FiguresOnTheirWay(figures), memory(self.device), self.exchange_clock.reading()))

    def compute(
        self, inputs: torch.Tensor, targets: torch.Tensor, keep: bool = False, sample: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do the step's work on the device and return (what `reduce` returns, the squared gradient norms).

        keep: whether `Capture` wants its tensors. sample: whether `SpotCheck` wants its samples.
        """
        self.tallies.begin(self.loss_scale.value / self.job.accumulation)
        self.casts.make()
        if self.renew_scales is not None:
            self.renew_scales(self.model)
        # A rank has one device, so the thread that torch keeps for its backward passes would run beside nothing.
        sampling = sampled_forward(self.model, self.spot_check) if sample else contextlib.nullcontext()
        # with several ranks a gradient is also a sum over ranks
        micro_batches = (
            MicroBatchGradients(self.optimizer, self.spot_check) if sample and self.job.world_size == 1 else None
        )
        with torch.autograd.set_multithreading_enabled(False), sampling:
            loss = self.gradients(inputs, targets, keep)
        self.casts.drop()
        if self.experts is not None:
            self.experts.reduce_gradients(self.model)
        self.optimizer.take_gradients()
        if keep:
            capture_gradients(self.capture, self.optimizer.gradients(), self.loss_scale.value)
        squares = self.optimizer.squares()
        figures, scale = self.reduce(loss, squares), self.loss_scale.value
        update = SampledUpdate(self.optimizer, self.spot_check, scale, micro_batches) if sample else None
        self.update(figures)
        if micro_batches is not None:
            micro_batches.finish()
        if update is not None:
            update.finish()
        self.tallies.move_biases()
        return figures, squares

    def update(self, figures: torch.Tensor) -> None:
        """Make the optimizer's step with clipped gradients; none where they are not finite under a loss scale."""
        scale = self.loss_scale.value
        norm = figures[1].sqrt() / scale
        skip = None if self.loss_scale.growth_interval is None else (~norm.isfinite()).float()
        self.optimizer.step(clip_divisor(norm, self.job.training.gradient_clip, scale), skip)
        self.optimizer.drop_gradients(keep=gradients_in_buckets(self.runner))

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor, keep: bool) -> torch.Tensor:
        """Run forward and backward over all micro-batches; the first one's activations are captured if `keep`.

        Return the loss, times the loss scale, of this data rank.
        """
        count, stage = self.job.accumulation, self.job.layout.sharding_stage
        scale = self.loss_scale.value / count
        if self.pipeline is not None:
            return self.pipeline.step(inputs, targets, scale)
        total = torch.zeros(1, device=self.device)
        for micro in self.spot_check.micro_batches(count):
            capturing = (
                capture_activations(self.model, self.capture) if keep and not micro else contextlib.nullcontext()
            )
            with micro_batch_context(self.runner, stage, last=micro == count - 1), capturing:
                loss = self.runner(inputs[micro], targets[micro], scale)
                if micro == count - 1:
                    self.exchange_clock.reaches_exchange()
                loss.backward()
            total += loss.detach()
        return total

    def reduce(self, loss: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        """Return the sums over the global batch, by one collective.

        They are [loss times scale, squared gradient norm times scale squared, routers' losses].
        """
        shares = self.stage_ranks  # each holds the last stage's loss of its tokens, or the same as another
        figures = torch.stack((loss[0].double() / shares, squares.sum(), self.tallies.loss() / shares))
        if self.job.world_size > 1:
            dist.all_reduce(figures)
            self.exchange_clock.exchanged()
        return figures

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm) of the launched step, for which this waits."""
        return zip(self.optimizer.square_names, (self.squares / self.loss_scale.value**2).tolist(), strict=True)

    def expert_tokens(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return (layer, tokens of each expert) that this rank counts of the launched step, for which this waits."""
        return self.tallies.expert_tokens()

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Wait for the step's end and return what to record of it."""
        scale = self.loss_scale.value
        figures, memory_peaks, exchange_clock_seconds = self.launched.popleft()
        loss, square, auxiliary = figures.values()
        free_first_buckets(self.runner)
        norm = math.sqrt(square) / scale if square >= 0 else square
        is_finite = math.isfinite(norm)
        self.loss_scale.update(is_finite)
        has_loss_scale = self.loss_scale.growth_interval is not None
        counts_tokens = self.place.tensor == self.place.context == self.place.pipeline == 0
        return {
            "loss": loss / scale,
            "grad_norm": norm if is_finite or not has_loss_scale else None,
            "tokens": batch.tokens if counts_tokens else 0,
            "learning_rate": learning_rate(self.job.training.schedule, batch.step),
            "tokens_checksum": batch.checksum,
            "memory": memory_peaks,
            "loss_scale": scale if has_loss_scale else None,
            "skipped": has_loss_scale and not is_finite,
            "auxiliary_loss": auxiliary if self.tallies.has_experts else None,
            "before_exchange_seconds": exchange_clock_seconds(),
            "compile_seconds": compile_seconds(),
        }


def step_seed(job: Job, place: Coordinates, step: int) -> int:
    """Return the seed of this rank's random numbers in `step`.

    It is equal on the ranks of a tensor-parallel group, unless each has its own part of the sequence.
    """
    stream = place.tensor if job.layout.sequence_parallel else 0
    text = f"dropout {job.training.seed} {step} {place.data} {place.pipeline} {stream}"
    text += f" {place.context}" if job.layout.context > 1 else ""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
