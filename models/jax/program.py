"""The step as one program for all ranks, compiled before the first step begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from dropout import row_keys
from grid import AXES, DATA, SHARD, TENSOR, vary
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from optimizer import adamw, clip_gradients, square_sums
from samples import DRAWS, scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from decoder import Decoder
    from jax.sharding import Mesh
    from levelfield.worker.job import Job
    from numpy.typing import NDArray
    from parameters import Kind
    from sharding import Sharding

    Arrays = Mapping[str, jax.Array]
    Moments = tuple[jax.Array, jax.Array, jax.Array]  # the parameter, and both moments
    State = Mapping[str, Moments]
    Rows = tuple[jax.Array, jax.Array]  # (inputs, targets), each [micro-batches, rows, sequence]

ROWS = PartitionSpec(None, DATA, None)  # of a step's batch: [micro-batches, rows, sequence]
EQUAL, EACH_RANK = PartitionSpec(), PartitionSpec(AXES)


class Program:
    """The functions of one step on local values. kinds: by name."""

    def __init__(self, job: Job, mesh: Mesh, kinds: Mapping[str, Kind], sharding: Sharding, decoder: Decoder) -> None:
        self.job, self.mesh, self.kinds, self.sharding, self.decoder = job, mesh, kinds, sharding, decoder
        self.random = bool(job.model.hidden_dropout or job.model.attention_dropout)

    # ---- local

    def step(
        self, state: State, batch: Rows, numbers: Arrays
    ) -> tuple[dict[str, Moments], jax.Array, jax.Array, dict[str, Any]]:
        """Return (state, [loss, squared norm], this rank's shares of squared norms, its samples) after one step.

        numbers: see `training.Trainer.numbers`.
        """
        training = self.job.training
        parameters = {name: values[0] for name, values in state.items()}
        loss, gradients, sampled = self.gradients(parameters, batch, numbers)
        if sampled:
            places = numbers["columns"]
            sampled["gradients"] = {name: self.picked(name, gradient, places) for name, gradient in gradients.items()}
        shares = self.shares(gradients)
        square = lax.psum(shares.sum(), AXES)
        gradients = clip_gradients(gradients, jnp.sqrt(square), training.gradient_clip)
        new = {
            name: adamw(
                training.optimizer, (*values, self.kinds[name].decays), gradients[name],
                numbers["rate"], numbers["first"], numbers["second"],
            )
            for name, values in state.items()
        }  # fmt: skip
        return new, jnp.stack((loss, square)), shares[None], jax.tree.map(lambda x: vary(x, AXES)[None], sampled)

    def gradients(
        self, parameters: Arrays, batch: Rows, numbers: Arrays
    ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, Any]]:
        """Return (loss, gradients of this rank's parameters, the first micro-batch's samples), of the global batch's
        mean loss."""
        weights = self.sharding.step_weights(parameters)
        count = self.job.accumulation
        draws = {name: numbers[name] for name in DRAWS} if self.job.spot_check else None

        def run_micro_batch(
            row: tuple[jax.Array, jax.Array, jax.Array],
        ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, Any]]:
            number, inputs, targets = row
            keys = self.keys(numbers["step"], number, inputs)
            results = jax.value_and_grad(self.decoder.loss, has_aux=True)(weights, inputs, targets, keys, draws)
            (loss, sampled), gradients = results
            first = jax.tree.map(lambda x: jnp.where(number == 0, x, jnp.zeros_like(x)), sampled)
            return loss, self.sharding.micro_gradients(gradients), first

        loss, gradients, sampled = sum_over_rows(run_micro_batch, (jnp.arange(count), *batch))
        share = 1 / (count * self.job.layout.data)
        loss, gradients = jax.tree.map(lambda x: x * share, (loss, gradients))
        return lax.psum(loss, DATA), self.sharding.step_gradients(gradients), sampled

    def picked(self, name: str, values: jax.Array, places: jax.Array) -> jax.Array:
        """Return some numbers of each layer's part of an array `name`, [layers or 1, ROWS]."""
        flat = values.reshape(self.kinds[name].layers or 1, -1)
        return flat[:, scaled(places, flat.shape[1])]

    def keys(self, step: jax.Array, micro: jax.Array | int, inputs: jax.Array) -> jax.Array | None:
        if not self.random:
            return None
        layout = self.job.layout
        shards = layout.sharding_degree if layout.sharding_stage else 1
        return row_keys(self.job.training.seed, step, micro, inputs.shape[0], shards, layout.data)

    def shares(self, gradients: Arrays) -> jax.Array:
        """Return this rank's share of each parameter's squared gradient norm, float32, in the order of `names`."""
        shares = []
        for name, kind in self.kinds.items():  # JAX sorts the names of a mapping
            sums = square_sums(gradients[name], kind.layers)
            shares.append(vary(sums, AXES) / self.replicas(kind))
        return jnp.concatenate(shares)

    def replicas(self, kind: Kind) -> int:
        """Return how many ranks hold the same part of `kind`."""
        shape = self.mesh.shape
        parts = (shape[TENSOR] if kind.split is not None else 1) * (shape[SHARD] if kind.sharded is not None else 1)
        return self.job.world_size // parts

    def names(self) -> list[str]:
        return [name for kind in self.kinds.values() for name in kind.names()]

    def captured(self, state: State, batch: Rows, numbers: Arrays) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Return (activations of the first micro-batch, gradients); of one process."""
        parameters = {name: values[0] for name, values in state.items()}
        weights, inputs = self.sharding.step_weights(parameters), batch[0][0]
        activations = self.decoder.activations(weights, inputs, self.keys(numbers["step"], 0, inputs))
        return activations, self.gradients(parameters, batch, numbers)[1]

    # ---- on the mesh

    def compile_step(self, state: State, batch: Rows, numbers: Arrays) -> jax.stages.Compiled:
        """Return `step`, compiled for these arguments. It takes over the memory of its state."""
        state_specs = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local = jax.shard_map(
            self.step,
            mesh=self.mesh,
            in_specs=(state_specs, ROWS, EQUAL),
            out_specs=(state_specs, EQUAL, EACH_RANK, EACH_RANK),
        )
        return jax.jit(local, donate_argnums=0).lower(state, batch, numbers).compile()

    def capture(self, state: State, batch: Rows, numbers: Arrays) -> Any:
        """Return what `captured` does, run on the mesh."""
        state_specs = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local = jax.shard_map(
            self.captured, mesh=self.mesh, in_specs=(state_specs, ROWS, EQUAL), out_specs=EQUAL, check_vma=False
        )
        return jax.jit(local)(state, batch, numbers)

    def batch(self, arrays: tuple[NDArray[np.generic], NDArray[np.generic]]) -> Rows:
        """Return the step's global batch, of which each data rank brings its rows: [micro-batches, rows, sequence]."""
        sharding = NamedSharding(self.mesh, ROWS)
        count, rows, length = arrays[0].shape
        whole = (count, rows * self.job.layout.data, length)
        inputs, targets = (jax.make_array_from_process_local_data(sharding, x.astype("int32"), whole) for x in arrays)
        return inputs, targets


def sum_over_rows(function: Callable[[Any], Any], rows: tuple[jax.Array, ...]) -> Any:
    """Return the sum of what `function` returns for each row of the arrays `rows`. It is compiled once."""
    first = jax.tree.map(lambda x: x[0], rows)
    if rows[0].shape[0] == 1:
        return function(first)
    zeros = jax.tree.map(varying_zeros, jax.eval_shape(function, first))
    return lax.scan(lambda total, row: (jax.tree.map(jnp.add, total, function(row)), None), zeros, rows)[0]


def varying_zeros(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """Return zeros that vary over the axes over which a value of this shape does: over none if JAX does not check."""
    axes = () if shape.manual_axis_type is None else tuple(shape.manual_axis_type.varying)
    return vary(jnp.zeros(shape.shape, shape.dtype), axes)
