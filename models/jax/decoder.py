"""A decoder-only transformer: embeddings, a stack of blocks, a final norm, the head and its loss.

Every function computes this rank's part; weights are those of parameters.Kind, by name.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attention import attention, rotary_tables
from dropout import ATTENTION, EMBEDDING, MLP, PROBABILITIES, drop, keys_for_use, local_numbers
from grid import TENSOR, vary
from jax import lax
from jax import numpy as jnp
from layers import TensorParallel, add_bias, linear, mlp, norm
from recompute import add_recomputation
from samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import jax
    from levelfield.worker.job import Job
    from sharding import Sharding

    Weights = Mapping[str, jax.Array]
    Draws = dict[str, jax.Array]  # where to sample, as numbers in [0, 1): see samples.py
    SampledArrays = dict[str, Any]  # what was sampled there, by name

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
# On a processor XLA runs the operations of a loop one after another, and those of layers in a row beside each other.
LAYERS_AT_ONCE = 8


class Decoder:
    """A decoder-only transformer as functions of its weights."""

    def __init__(self, job: Job, sharding: Sharding) -> None:
        self.model, self.job, self.sharding = job.model, job, sharding
        self.dtype, self.parallel = DTYPES[job.training.precision], TensorParallel(job.layout)

    def loss(
        self,
        weights: Weights,
        inputs: jax.Array,
        targets: jax.Array,
        dropout_keys: jax.Array | None,
        draws: Draws | None,
    ) -> tuple[jax.Array, SampledArrays]:
        """Return (the mean loss of this rank's rows, float32; what is sampled at `draws`, see samples.py).

        inputs, targets: [batch, sequence]. dropout_keys: of dropout.row_keys; None without dropout.
        """
        outer_weights = self.sharding.outer_weights(weights)
        x, _embedded, _outputs, sampled = self.hidden(weights, outer_weights, inputs, dropout_keys, draws)
        return self.head_loss(self.parallel.enter_split_layer(x), self.head(outer_weights), targets), sampled

    def activations(self, weights: Weights, inputs: jax.Array, dropout_keys: jax.Array | None) -> dict[str, jax.Array]:
        """Return the tensors of levelfield's Capture, of one process."""
        outer_weights = self.sharding.outer_weights(weights)
        x, embedded, outputs, _sampled = self.hidden(weights, outer_weights, inputs, dropout_keys, None)
        block_outputs = {f"layers.{layer}": outputs[layer] for layer in range(self.model.layers)}
        return {"embedding": embedded, **block_outputs, "final_norm": x, "logits": linear(x, self.head(outer_weights))}

    def hidden(
        self,
        weights: Weights,
        outer_weights: Weights,
        inputs: jax.Array,
        dropout_keys: jax.Array | None,
        draws: Draws | None,
    ) -> tuple[jax.Array, jax.Array, jax.Array, SampledArrays]:
        """Return (the hidden state after the final norm, the embedding, every block's output, what is sampled).

        weights: of the whole step. outer_weights: those outside of the layers, gathered.
        The first two are [batch, sequence, hidden], the third [layers, batch, sequence, hidden]. Under sequence
        parallelism the sequence is this rank's part. Nothing is sampled without `draws`.
        """
        embedded = self.embed(outer_weights, inputs, dropout_keys)
        layers = {name[7:]: x for name, x in weights.items() if name.startswith("layers.")}
        rotary = self.rotary(inputs.shape[1])

        def run_block(
            x: jax.Array, row: tuple[jax.Array, Weights]
        ) -> tuple[jax.Array, tuple[jax.Array, SampledArrays]]:
            layer, layer_weights = row
            x, sampled = block(x, layer_weights, layer)
            return x, (x, sampled)

        plain_block = partial(self.block, rotary, dropout_keys, draws)
        block = add_recomputation(self.job, plain_block)
        # Without the loop XLA would find that a recomputed value is known already.
        unroll = LAYERS_AT_ONCE if self.job.device == "cpu" and block is plain_block else 1
        rows = (jnp.arange(self.model.layers), layers)
        x, (outputs, block_samples) = lax.scan(run_block, embedded, rows, unroll=unroll)
        samples = None if draws is None else Samples(draws)
        x = norm(self.model, x, outer_weights, "final_norm", samples)
        return x, embedded, outputs, {} if samples is None else {"blocks": block_samples, "outer": samples.arrays}

    def block(
        self,
        rotary: tuple[jax.Array, jax.Array] | None,
        dropout_keys: jax.Array | None,
        draws: Draws | None,
        x: jax.Array,
        weights: Weights,
        layer: jax.Array,
    ) -> tuple[jax.Array, SampledArrays]:
        """Return (x + attention(norm(x)), then x + mlp(norm(x)); what is sampled)."""
        weights = self.sharding.layer_weights(weights)
        probability_keys = keys_for_use(dropout_keys, layer, PROBABILITIES) if self.model.attention_dropout else None
        samples = None if draws is None else Samples(draws)
        y = self.parallel.enter_split_layer(norm(self.model, x, weights, "attention_norm", samples))
        y = self.parallel.leave_split_layer(attention(self.model, y, weights, rotary, probability_keys, samples))
        x = x + self.dropout(self.add_bias(y, weights, "attention.output"), dropout_keys, layer, ATTENTION)
        y = self.parallel.enter_split_layer(norm(self.model, x, weights, "mlp_norm", samples))
        y = self.parallel.leave_split_layer(mlp(self.model, y, weights, samples))
        x = x + self.dropout(self.add_bias(y, weights, "mlp.down"), dropout_keys, layer, MLP)
        return x, {} if samples is None else samples.arrays

    def add_bias(self, y: jax.Array, weights: Weights, name: str) -> jax.Array:
        """Add the bias of a layer whose inputs are split over ranks: once, after their sum."""
        return add_bias(y, weights[f"{name}.bias"]) if f"{name}.bias" in weights else y

    def dropout(self, x: jax.Array, dropout_keys: jax.Array | None, layer: jax.Array | int, use: int) -> jax.Array:
        if not self.model.hidden_dropout:
            return x
        positions = local_numbers(x.shape[1], self.parallel.sequence_parallel)
        return drop(x, keys_for_use(dropout_keys, layer, use), self.model.hidden_dropout, positions)

    def rotary(self, length: int) -> tuple[jax.Array, jax.Array] | None:
        model = self.model
        if model.positions != "rope" or model.rope_base is None:
            return None
        return rotary_tables(model.hidden_size // model.heads, length, model.rope_base, self.dtype)

    def embed(self, outer_weights: Weights, inputs: jax.Array, dropout_keys: jax.Array | None) -> jax.Array:
        """Return the embeddings [batch, sequence, hidden] of tokens [batch, sequence].

        Each rank has rows of the table, [vocabulary / ranks, hidden]; its gradient is summed in float32.
        """
        table = outer_weights["embedding.weight"].astype(jnp.float32)
        index = inputs - lax.axis_index(TENSOR) * table.shape[0]
        is_local = (index >= 0) & (index < table.shape[0])
        x = jnp.where(is_local[..., None], table[jnp.where(is_local, index, 0)], 0)
        x = self.parallel.leave_split_layer(x)
        if self.model.positions == "learned":
            x = x + self.parallel.sequence_part(
                outer_weights["position.weight"].astype(jnp.float32)[: inputs.shape[1]], 0
            )
        return self.dropout(x.astype(self.dtype), dropout_keys, 0, EMBEDDING)

    def head(self, outer_weights: Weights) -> jax.Array:
        return outer_weights["embedding.weight"] if self.model.tied_embeddings else outer_weights["head.weight"]

    def head_loss(self, x: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of the logits x W^T, whose columns are split over ranks (Shoeybi et al., 2019).

        x: [batch, sequence, hidden]. weight: [vocabulary / ranks, hidden]. targets: [batch, sequence].
        """
        logits = linear(x, weight).astype(jnp.float32)  # [batch, sequence, vocabulary / ranks]
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), TENSOR)  # [batch, sequence]: of each token's logits
        index = targets - lax.axis_index(TENSOR) * weight.shape[0]
        is_local = (index >= 0) & (index < weight.shape[0])
        target_logits = jnp.take_along_axis(logits, jnp.where(is_local, index, 0)[..., None], -1)[..., 0]
        target_logits = lax.psum(jnp.where(is_local, target_logits, 0), TENSOR)  # [batch, sequence]
        exponential_sums = lax.psum(jnp.exp(logits - vary(largest, (TENSOR,))[..., None]).sum(-1), TENSOR)
        return (jnp.log(exponential_sums) + largest - target_logits).mean()
