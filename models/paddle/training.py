"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

from __future__ import annotations

import contextlib
import hashlib
import math
from typing import TYPE_CHECKING, Any

import paddle
import paddle.distributed as dist
from device import describe, memory, open_device
from evidence import Evidence
from levelfield.worker import OwnWork, SpotCheck, coordinates, learning_rate, train_steps
from parallelize import build
from parameters import local_arrays, save
from precision import LossScale, auto_cast
from spot_check import SampledUpdate, sampled_passes
from tensor_parallel import seed_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from levelfield.worker import Batch, Recorder
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    open_device(job)
    place = coordinates(job)
    recorder.framework("paddle", paddle.__version__, *describe(job))
    train_steps(job, recorder, Trainer(job, place, recorder))  # building it reports the weights
    if job.world_size > 1:
        dist.barrier()  # no rank leaves while another still needs it


class Trainer:
    """One rank's model and optimizer. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job: Job, place: Coordinates, recorder: Recorder) -> None:
        self.job, self.place = job, place
        setup = build(job, place, recorder.weights)
        self.runner, self.optimizer, self.clip = setup.runner, setup.optimizer, setup.clip
        self.adamw, self.parts, self.loss, self.group = setup.adamw, setup.parts, setup.loss, setup.group
        self.evidence, self.spot_check = Evidence(job, setup), SpotCheck(job)
        scaling = job.training.loss_scale if job.training.precision == "fp16" else None
        self.loss_scale = LossScale(scaling, distributed=job.world_size > 1)
        self.has_dropout = bool(job.model.hidden_dropout or job.model.attention_dropout)
        layout = job.layout
        has_replicas = layout.data > 1 and layout.pipeline == 1 and layout.sharding_stage == 0
        self.exchange_clock = OwnWork(has_replicas and job.device == "cpu")  # the host runs ahead of any other device

    def launch(self, batch: Batch) -> None:
        """Run forward, backward, clipping and the optimizer's step."""
        if self.has_dropout:
            self.seed(batch.step)
        self.scale = self.loss_scale.value()
        self.clip.forget_norm()
        self.evidence.prepare(batch.step)
        self.optimizer.set_lr(learning_rate(self.job.training.schedule, batch.step))
        inputs, targets = paddle.to_tensor(batch.inputs), paddle.to_tensor(batch.targets)
        run_step = self.pipelined if self.job.layout.pipeline > 1 else self.accumulated
        with auto_cast(self.job.training.precision), self.sampling(batch.step):
            self.total = run_step(inputs, targets).reshape([]).astype("float64")
        if self.job.world_size > 1:
            dist.all_reduce(self.total)
            self.exchange_clock.exchanged()

    @contextlib.contextmanager
    def sampling(self, step: int) -> Iterator[None]:
        """Sample the step, which the context is around, if it is to be."""
        if not self.spot_check.wants(step):
            yield
            return
        update = SampledUpdate(self.spot_check, self.clip, self.adamw, self.parts)
        with sampled_passes(self.runner, self.spot_check):
            yield
        update.finish()

    def pipelined(self, inputs: paddle.Tensor, targets: paddle.Tensor) -> paddle.Tensor:
        """Run the whole step by fleet's schedule, which leaves the loss of this rank's data on every stage."""
        data = [inputs.flatten(0, 1), targets.flatten(0, 1)]
        return self.runner.train_batch(data, self.optimizer, scaler=self.loss_scale.scaler)

    def accumulated(self, inputs: paddle.Tensor, targets: paddle.Tensor) -> paddle.Tensor:
        """Run the whole step, micro-batch by micro-batch. Return the loss of this rank's data."""
        count = self.job.accumulation
        total = paddle.zeros([])
        for micro in range(count):
            with self.communication(last=micro == count - 1):
                loss = self.loss(self.runner(inputs[micro]), targets[micro]) / count
                if micro == count - 1:
                    self.exchange_clock.reaches_exchange()
                self.loss_scale.backward(loss)
            self.evidence.remove_hooks()
            total += loss.detach()
        self.loss_scale.step(self.optimizer)
        self.optimizer.clear_grad()
        return total

    def communication(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return the context of a backward pass. Data-parallel gradients are summed once a step, in
        the last micro-batch's."""
        if last or not isinstance(self.runner, paddle.DataParallel):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self.runner.no_sync()
        return context

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Wait for the step's end. Return what to record of it."""
        norm = None if self.clip.norm is None else self.clip.norm.item()
        # Of logits that are not numbers Paddle's cross-entropy is ln(vocabulary size); their gradients show it.
        loss = self.total.item() / self.job.world_size if math.isfinite(norm or 0) else math.nan
        counts_tokens = self.place.tensor == 0 and self.place.pipeline == 0
        return {
            "loss": loss,
            "grad_norm": norm,
            "tokens": batch.tokens if counts_tokens else 0,
            "learning_rate": learning_rate(self.job.training.schedule, batch.step),
            "tokens_checksum": batch.checksum,
            "memory": memory(self.job),
            "loss_scale": self.scale,
            "skipped": norm is None,
            "before_exchange_seconds": self.exchange_clock.seconds(),
        }

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm) of the launched step."""
        return self.evidence.squares or ()

    def expert_tokens(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return nothing: no model here has experts."""
        return ()

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds."""
        self.gather()
        return local_arrays(self.parts)

    def gather(self) -> None:
        """Make the parameters whole, of which each rank has slices only in sharding stage 3."""
        if self.job.layout.sharding_stage == 3:
            self.runner.get_all_parameters()

    def save(self, folder: str) -> None:
        self.gather()
        save(self.parts, folder, self.group, is_writer=self.place.data == 0 and self.place.tensor == 0)

    def seed(self, step: int) -> None:
        """Start the random numbers of this step: equal on the ranks of a tensor-parallel group, but for its heads."""
        place = self.place
        common = f"dropout {self.job.training.seed} {step} {place.data} {place.pipeline}"
        if self.group is not None:
            seed_private(seed_number(f"{common} {place.tensor}"))
        paddle.seed(seed_number(common))  # last: starting the private numbers starts the common ones too


def seed_number(text: str) -> int:
    """Return a seed below 2**31 that follows from the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
