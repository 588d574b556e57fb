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
from samples import DRAWS, scale_draws

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
    ParameterState = tuple[jax.Array, jax.Array, jax.Array]  # the parameter, and both moments
    State = Mapping[str, ParameterState]
    BatchArrays = tuple[jax.Array, jax.Array]  # (inputs, targets), each [micro-batches, rows, sequence]

BATCH_SPEC = PartitionSpec(None, DATA, None)  # of a step's batch: [micro-batches, rows, sequence]
REPLICATED, PER_RANK = PartitionSpec(), PartitionSpec(AXES)


class Program:
    """The functions of one step on local values. kinds: by name."""

    def __init__(self, job: Job, mesh: Mesh, kinds: Mapping[str, Kind], sharding: Sharding, decoder: Decoder) -> None:
        self.job, self.mesh, self.kinds, self.sharding, self.decoder = job, mesh, kinds, sharding, decoder
        self.has_dropout = bool(job.model.hidden_dropout or job.model.attention_dropout)

    # ---- local

    def step(
        self, state: State, batch: BatchArrays, step_inputs: Arrays
    ) -> tuple[dict[str, ParameterState], jax.Array, jax.Array, dict[str, Any]]:
        """Return (state, [loss, squared norm], this rank's shares of squared norms, its samples) after one step.

        step_inputs: see `training.Trainer.step_inputs`.
        """
        training = self.job.training
        parameters = {name: values[0] for name, values in state.items()}
        loss, gradients, sampled = self.gradients(parameters, batch, step_inputs)
        if sampled:
            columns = step_inputs["columns"]
            sampled["gradients"] = {name: self.sampled_values(name, x, columns) for name, x in gradients.items()}
        square_shares = self.square_shares(gradients)
        square = lax.psum(square_shares.sum(), AXES)
        gradients = clip_gradients(gradients, jnp.sqrt(square), training.gradient_clip)
        new_state = {
            name: adamw(
                training.optimizer, (*values, self.kinds[name].decays), gradients[name],
                step_inputs["rate"], step_inputs["mean_correction"], step_inputs["square_correction"],
            )
            for name, values in state.items()
        }  # fmt: skip
        sampled = jax.tree.map(lambda x: vary(x, AXES)[None], sampled)
        return new_state, jnp.stack((loss, square)), square_shares[None], sampled

    def gradients(
        self, parameters: Arrays, batch: BatchArrays, step_inputs: Arrays
    ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, Any]]:
        """Return (loss, gradients of this rank's parameters, the first micro-batch's samples), of the global batch's
        mean loss."""
        weights = self.sharding.step_weights(parameters)
        count = self.job.accumulation
        draws = {name: step_inputs[name] for name in DRAWS} if self.job.spot_check else None

        def run_micro_batch(
            row: tuple[jax.Array, jax.Array, jax.Array],
        ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, Any]]:
            number, inputs, targets = row
            dropout_keys = self.dropout_keys(step_inputs["step"], number, inputs)
            results = jax.value_and_grad(self.decoder.loss, has_aux=True)(weights, inputs, targets, dropout_keys, draws)
            (loss, sampled), gradients = results
            first_samples = jax.tree.map(lambda x: jnp.where(number == 0, x, jnp.zeros_like(x)), sampled)
            return loss, self.sharding.micro_gradients(gradients), first_samples

        loss, gradients, sampled = sum_over_rows(run_micro_batch, (jnp.arange(count), *batch))
        share = 1 / (count * self.job.layout.data)
        loss, gradients = jax.tree.map(lambda x: x * share, (loss, gradients))
        return lax.psum(loss, DATA), self.sharding.step_gradients(gradients), sampled

    def sampled_values(self, name: str, values: jax.Array, columns: jax.Array) -> jax.Array:
        """Return the values of each layer of this rank's part of an array `name`, [layers or 1, samples.ROWS], at the
        draws `columns`."""
        flat = values.reshape(self.kinds[name].layers or 1, -1)
        return flat[:, scale_draws(columns, flat.shape[1])]

    def dropout_keys(self, step: jax.Array, micro: jax.Array | int, inputs: jax.Array) -> jax.Array | None:
        if not self.has_dropout:
            return None
        layout = self.job.layout
        shards = layout.sharding_degree if layout.sharding_stage else 1
        return row_keys(self.job.training.seed, step, micro, inputs.shape[0], shards, layout.data)

    def square_shares(self, gradients: Arrays) -> jax.Array:
        """Return this rank's share of each parameter's squared gradient norm, float32, in the order of
        `canonical_names`."""
        square_shares = []
        for name, kind in self.kinds.items():  # JAX sorts the names of a mapping
            sums = square_sums(gradients[name], kind.layers)
            square_shares.append(vary(sums, AXES) / self.replica_count(kind))
        return jnp.concatenate(square_shares)

    def replica_count(self, kind: Kind) -> int:
        """Return how many ranks hold the same part of `kind`."""
        shape = self.mesh.shape
        parts = shape[TENSOR] if kind.tensor_axis is not None else 1
        parts *= shape[SHARD] if kind.shard_axis is not None else 1
        return self.job.world_size // parts

    def canonical_names(self) -> list[str]:
        return [name for kind in self.kinds.values() for name in kind.canonical_names()]

    def capture_locally(
        self, state: State, batch: BatchArrays, step_inputs: Arrays
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Return (activations of the first micro-batch, gradients); of one process."""
        parameters = {name: values[0] for name, values in state.items()}
        weights, inputs = self.sharding.step_weights(parameters), batch[0][0]
        activations = self.decoder.activations(weights, inputs, self.dropout_keys(step_inputs["step"], 0, inputs))
        return activations, self.gradients(parameters, batch, step_inputs)[1]

    # ---- on the mesh

    def compile_step(self, state: State, batch: BatchArrays, step_inputs: Arrays) -> jax.stages.Compiled:
        """Return `step`, compiled for these arguments. It takes over the memory of its state."""
        state_specs = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local_step = jax.shard_map(
            self.step,
            mesh=self.mesh,
            in_specs=(state_specs, BATCH_SPEC, REPLICATED),
            out_specs=(state_specs, REPLICATED, PER_RANK, PER_RANK),
        )
        return jax.jit(local_step, donate_argnums=0).lower(state, batch, step_inputs).compile()

    def capture(self, state: State, batch: BatchArrays, step_inputs: Arrays) -> Any:
        """Return what `capture_locally` does, run on the mesh."""
        state_specs = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local_step = jax.shard_map(
            self.capture_locally,
            mesh=self.mesh,
            in_specs=(state_specs, BATCH_SPEC, REPLICATED),
            out_specs=REPLICATED,
            check_vma=False,
        )
        return jax.jit(local_step)(state, batch, step_inputs)

    def batch(self, arrays: tuple[NDArray[np.generic], NDArray[np.generic]]) -> BatchArrays:
        """Return the step's global batch, of which each data rank brings its rows: [micro-batches, rows, sequence]."""
        sharding = NamedSharding(self.mesh, BATCH_SPEC)
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
