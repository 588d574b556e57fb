"""The step as one program for all ranks, compiled before the first step begins."""

import jax
from dropout import row_keys
from grid import AXES, DATA, SHARD, TENSOR, vary
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from optimizer import adamw, clipped, square_sums

ROWS = PartitionSpec(None, DATA, None)  # of a step's batch: [micro-batches, rows, sequence]
EQUAL, EACH_RANK = PartitionSpec(), PartitionSpec(AXES)


class Program:
    """The functions of one step on local values. decoder: decoder.Decoder; kinds: parameters.Kind by name."""

    def __init__(self, job, mesh, kinds, sharding, decoder):
        self.job, self.mesh, self.kinds, self.sharding, self.decoder = job, mesh, kinds, sharding, decoder
        self.random = bool(job.model.hidden_dropout or job.model.attention_dropout)

    # ---- local

    def step(self, state, batch, numbers):
        """(state, [loss, squared norm], this rank's shares of squared norms) after one step.

        state: {parameter: (value, moment, moment)}; batch: (inputs, targets); numbers: see `numbers_of`.
        """
        training = self.job.training
        loss, gradients = self.gradients({name: held[0] for name, held in state.items()}, batch, numbers["step"])
        shares = self.shares(gradients)
        square = lax.psum(shares.sum(), AXES)
        gradients = clipped(gradients, jnp.sqrt(square), training.gradient_clip)
        new = {
            name: adamw(
                training.optimizer, (*held, self.kinds[name].decays), gradients[name],
                numbers["rate"], numbers["first"], numbers["second"],
            )
            for name, held in state.items()
        }  # fmt: skip
        return new, jnp.stack((loss, square)), shares[None]

    def gradients(self, held, batch, step):
        """(loss, gradients of what this rank holds), of the global batch's mean loss."""
        weights = self.sharding.step_weights(held)
        count = self.job.accumulation

        def micro(row):
            number, inputs, targets = row
            keys = self.keys(step, number, inputs)
            loss, found = jax.value_and_grad(self.decoder.loss)(weights, inputs, targets, keys)
            return loss, self.sharding.micro_gradients(found)

        summed = summed_over(micro, (jnp.arange(count), *batch))
        share = 1 / (count * self.job.layout.data)
        loss, found = jax.tree.map(lambda x: x * share, summed)
        return lax.psum(loss, DATA), self.sharding.step_gradients(found)

    def keys(self, step, micro, inputs):
        if not self.random:
            return None
        layout = self.job.layout
        shards = layout.sharding_degree if layout.sharding_stage else 1
        return row_keys(self.job.training.seed, step, micro, inputs.shape[0], shards, layout.data)

    def shares(self, gradients):
        """This rank's share of each parameter's squared gradient norm, float32, in the order of `names`."""
        found = []
        for name, kind in self.kinds.items():  # JAX sorts the names of a mapping
            sums = square_sums(gradients[name], kind.layers)
            found.append(vary(sums, AXES) / self.replicas(kind))
        return jnp.concatenate(found)

    def replicas(self, kind):
        """How many ranks hold the same part of `kind`."""
        shape = self.mesh.shape
        parts = (shape[TENSOR] if kind.split is not None else 1) * (shape[SHARD] if kind.sharded is not None else 1)
        return self.job.world_size // parts

    def names(self):
        return [name for kind in self.kinds.values() for name in kind.names()]

    def activations(self, state, batch, numbers):
        weights = self.sharding.step_weights({name: held[0] for name, held in state.items()})
        inputs = batch[0][0]
        return self.decoder.activations(weights, inputs, self.keys(numbers["step"], 0, inputs))

    def captured(self, state, batch, numbers):
        """(activations of the first micro-batch, gradients); of one process."""
        held = {name: each[0] for name, each in state.items()}
        return self.activations(state, batch, numbers), self.gradients(held, batch, numbers["step"])[1]

    # ---- on the mesh

    def compiled(self, state, batch, numbers):
        """`step`, compiled for these arguments; it takes the memory of the state that it is given."""
        of_state = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local = jax.shard_map(
            self.step, mesh=self.mesh, in_specs=(of_state, ROWS, EQUAL), out_specs=(of_state, EQUAL, EACH_RANK)
        )
        return jax.jit(local, donate_argnums=0).lower(state, batch, numbers).compile()

    def capture(self, state, batch, numbers):
        of_state = {name: (kind.spec,) * 3 for name, kind in self.kinds.items()}
        local = jax.shard_map(
            self.captured, mesh=self.mesh, in_specs=(of_state, ROWS, EQUAL), out_specs=EQUAL, check_vma=False
        )
        return jax.jit(local)(state, batch, numbers)

    def batch(self, arrays):
        """The step's global batch, of which each data rank brings its rows: [micro-batches, rows, sequence]."""
        sharding = NamedSharding(self.mesh, ROWS)
        count, rows, length = arrays[0].shape
        whole = (count, rows * self.job.layout.data, length)
        return tuple(jax.make_array_from_process_local_data(sharding, x.astype("int32"), whole) for x in arrays)


def summed_over(function, rows):
    """The sum of what `function` returns for each row of the arrays `rows`. It is compiled once."""
    first = jax.tree.map(lambda x: x[0], rows)
    if rows[0].shape[0] == 1:
        return function(first)
    zeros = jax.tree.map(zeros_of, jax.eval_shape(function, first))
    return lax.scan(lambda total, row: (jax.tree.map(jnp.add, total, function(row)), None), zeros, rows)[0]


def zeros_of(shape):
    """Zeros that vary over the axes over which a value of this jax.ShapeDtypeStruct does."""
    return vary(jnp.zeros(shape.shape, shape.dtype), tuple(shape.manual_axis_type.varying))
