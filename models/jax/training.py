"""The training of one rank, from job to last step. Facts only are recorded; every rate is the platform's to compute."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from decoder import DTYPES, Decoder
from device import configure, describe, memory, process_group
from grid import make_mesh
from jax.sharding import NamedSharding, PartitionSpec
from levelfield.worker import Capture, Initializer, SpotCheck, coordinates, learning_rate, train_steps
from optimizer import bias_corrections
from parameters import fill, list_kinds, local_arrays, save
from program import Program
from samples import UNSAMPLED_DRAWS, draw, record_samples
from sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from levelfield.worker import Batch, Recorder
    from levelfield.worker.events import LocalArray
    from levelfield.worker.job import Coordinates, Job
    from numpy.typing import NDArray
    from program import BatchArrays


def train(job: Job, recorder: Recorder) -> None:
    """Train as `job` says. Raises Unsupported, CorpusError, NonFinite and what the framework raises."""
    configure(job)
    with process_group(job):
        recorder.framework("jax", jax.__version__, *describe(job))
        trainer = Trainer(job, coordinates(job))
        recorder.weights(trainer.weights())
        train_steps(job, recorder, trainer)


class Trainer:
    """One rank's model and optimizer. A step is `launch`, then `finish`, which waits for the device."""

    def __init__(self, job: Job, place: Coordinates) -> None:
        self.job, self.place, self.capture, self.spot_check = job, place, Capture(job), SpotCheck(job)
        self.mesh, initializer = make_mesh(job), Initializer(job)
        self.unsampled_draws = self.on_mesh(UNSAMPLED_DRAWS)
        self.kinds = list_kinds(job, initializer)
        sharding = Sharding(self.kinds, job.layout.sharding_stage, DTYPES[job.training.precision])
        self.program = Program(job, self.mesh, self.kinds, sharding, Decoder(job, sharding))
        values = fill(self.kinds, self.mesh, initializer)
        self.state = {name: (x, zeros_like(x), zeros_like(x)) for name, x in values.items()}
        shape = (job.accumulation, job.tuning.micro_batch, job.training.sequence_length)
        zero_batch = self.program.batch((np.zeros(shape), np.zeros(shape)))
        begin = time.monotonic()
        self.step = self.program.compile_step(self.state, zero_batch, self.step_inputs(1))
        self.compile_seconds = time.monotonic() - begin
        self.launched_figures: deque[jax.Array] = deque()  # for `finish`, in the order of the steps
        self.runs_ahead = job.device != "cpu"

    def values(self) -> dict[str, jax.Array]:
        return {name: arrays[0] for name, arrays in self.state.items()}

    def weights(self) -> Iterable[LocalArray]:
        """Return (name, whole shape, slices, float32 values) of what this rank holds."""
        return local_arrays(self.kinds, self.values())

    def save(self, folder: str) -> None:
        save(self.kinds, self.values(), self.mesh, folder, is_writer=self.job.rank == 0)

    def launch(self, batch: Batch) -> None:
        """Start the step: one program, which the host does not wait for."""
        arrays = self.program.batch((batch.inputs, batch.targets))
        draws = draw(self.spot_check) if self.spot_check.wants(batch.step) else None
        step_inputs = self.step_inputs(batch.step)
        if self.capture.wants(batch.step):
            self.capture_step(arrays, step_inputs)
        if draws is None:
            self.state, figures, self.shares, _sampled = self.step(self.state, arrays, step_inputs)
        else:
            figures = self.sampled_step(arrays, step_inputs, draws)
        self.launched_figures.append(figures)

    def sampled_step(
        self, arrays: BatchArrays, step_inputs: dict[str, jax.Array], draws: dict[str, NDArray[np.float32]]
    ) -> jax.Array:
        """Run the step with samples at `draws`, and give them to SpotCheck. Return the figures."""
        step_inputs = {**step_inputs, **self.on_mesh(draws)}
        before = self.sampled_values(step_inputs)
        self.state, figures, self.shares, sampled = self.step(self.state, arrays, step_inputs)
        sampled = jax.tree.map(lambda x: local(x)[0], sampled)
        record_samples(self.spot_check, sampled["blocks"], sampled["outer"], draws, self.job.training.sequence_length)
        self.sample_update(before, sampled["gradients"], self.sampled_values(step_inputs))
        return figures

    def sampled_values(self, step_inputs: dict[str, jax.Array]) -> dict[str, list[NDArray[np.generic]]]:
        """Return the values at the draws for columns of this rank's part of each array: [value, mean, square], each
        [layers or 1, samples.ROWS]."""
        columns = step_inputs["columns"].addressable_data(0)
        parts = {name: [x.addressable_data(0) for x in arrays] for name, arrays in self.state.items()}
        return {
            name: [np.asarray(self.program.sampled_values(name, x, columns)) for x in xs] for name, xs in parts.items()
        }

    def sample_update(
        self,
        before: dict[str, list[NDArray[np.generic]]],
        gradients: dict[str, NDArray[np.generic]],
        after: dict[str, list[NDArray[np.generic]]],
    ) -> None:
        for name, kind in self.kinds.items():
            value, *moments = before[name]
            for layer, canonical in enumerate(kind.canonical_names()):
                rows = [x[layer] for x in (value, gradients[name], *moments)]
                self.spot_check.update(canonical, len(kind.shape), rows, [x[layer] for x in after[name]])

    def step_inputs(self, step: int) -> dict[str, jax.Array]:
        """Return what changes from step to step, the scalars and the draws of samples, as arrays: a number in the
        program would compile it anew."""
        mean_correction, square_correction = bias_corrections(self.job.training.optimizer, step)
        rate = learning_rate(self.job.training.schedule, step)
        step_inputs = {
            "step": np.int32(step),
            "rate": np.float32(rate),
            "mean_correction": np.float32(mean_correction),
            "square_correction": np.float32(square_correction),
        }
        return {**self.on_mesh(step_inputs), **self.unsampled_draws}

    def on_mesh(self, values: dict[str, Any]) -> dict[str, jax.Array]:
        """Return arrays that are equal on all ranks."""
        sharding = NamedSharding(self.mesh, PartitionSpec())
        return {
            name: jax.make_array_from_callback(np.shape(x), sharding, lambda _, x=x: x) for name, x in values.items()
        }

    def capture_step(self, arrays: BatchArrays, step_inputs: dict[str, jax.Array]) -> None:
        activations, gradients = self.program.capture(self.state, arrays, step_inputs)
        for name, tensor in activations.items():
            self.capture.keep(name, np.asarray(tensor, dtype=np.float32))
        for name, _shape, _slices, values in local_arrays(self.kinds, gradients):
            self.capture.keep(f"gradient.{name}", values)

    def gradient_squares(self) -> Iterable[tuple[str, float]]:
        """Return (name, this rank's share of its squared gradient norm) of the launched step, for which this waits."""
        return zip(self.program.canonical_names(), local(self.shares)[0].tolist(), strict=True)

    def expert_tokens(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Return nothing: no model here has experts."""
        return ()

    def finish(self, batch: Batch) -> dict[str, Any]:
        """Wait for the step's end. Return what to record of it."""
        loss, square = local(self.launched_figures.popleft()).tolist()
        counts_tokens = self.place.tensor == 0
        return {
            "loss": loss,
            "grad_norm": math.sqrt(square) if square >= 0 else square,
            "tokens": batch.tokens if counts_tokens else 0,
            "learning_rate": learning_rate(self.job.training.schedule, batch.step),
            "tokens_checksum": batch.checksum,
            "memory": memory(),
            "loss_scale": None,
            "skipped": False,
            "compile_seconds": self.compile_seconds,
        }


def local(array: jax.Array) -> NDArray[np.generic]:
    """Return this rank's part of the array."""
    return np.asarray(array.addressable_data(0))


def zeros_like(x: jax.Array) -> jax.Array:
    """Return float32 zeros that lie over the ranks as x does."""

    def make_slice(index: tuple[slice, ...]) -> NDArray[np.float32]:
        sizes = [len(range(*bounds.indices(size))) for size, bounds in zip(x.shape, index, strict=True)]
        return np.zeros(sizes, np.float32)

    return jax.make_array_from_callback(x.shape, x.sharding, make_slice)
