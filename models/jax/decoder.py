"""What both families share: embeddings, a stack of blocks, a final norm, the head and its loss.

Every function computes this rank's part; weights are those of parameters.Kind, by name.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attention import attention, rotary_tables
from dropout import ATTENTION, EMBEDDING, MLP, SCORES, drop, rank_numbers, use_keys
from grid import TENSOR, vary
from jax import lax
from jax import numpy as jnp
from layers import TensorParallel, add_bias, linear, mlp, norm
from recompute import with_recomputation
from samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import jax
    from levelfield.worker.job import Job
    from sharding import Sharding

    Weights = Mapping[str, jax.Array]
    Sampled = dict[str, Any]  # arrays by name, of samples.py

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
# On a processor XLA runs the operations of a loop one after another, and those of layers in a row beside each other.
LAYERS_AT_ONCE = 8


class Decoder:
    """A decoder-only transformer as functions of its weights."""

    def __init__(self, job: Job, sharding: Sharding) -> None:
        self.model, self.job, self.sharding = job.model, job, sharding
        self.dtype, self.parallel = DTYPES[job.training.precision], TensorParallel(job.layout)

    def loss(
        self, weights: Weights, inputs: jax.Array, targets: jax.Array, keys: jax.Array | None, draws: Sampled | None
    ) -> tuple[jax.Array, Sampled]:
        """Return (the mean loss of this rank's rows, float32; what is sampled at `draws`, see samples.py).

        inputs, targets: [batch, sequence]. keys: of dropout.row_keys.
        """
        ends = self.sharding.end_weights(weights)
        x, _embedded, _outputs, sampled = self.hidden(weights, ends, inputs, keys, draws)
        return self.head_loss(self.parallel.enter(x), self.head(ends), targets), sampled

    def activations(self, weights: Weights, inputs: jax.Array, keys: jax.Array | None) -> dict[str, jax.Array]:
        """Return the tensors of levelfield's Capture, of one process."""
        ends = self.sharding.end_weights(weights)
        x, embedded, outputs, _sampled = self.hidden(weights, ends, inputs, keys, None)
        blocks = {f"layers.{layer}": outputs[layer] for layer in range(self.model.layers)}
        return {"embedding": embedded, **blocks, "final_norm": x, "logits": linear(x, self.head(ends))}

    def hidden(
        self, weights: Weights, ends: Weights, inputs: jax.Array, keys: jax.Array | None, draws: Sampled | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, Sampled]:
        """Return (the hidden state after the final norm, the embedding, every block's output, what is sampled).

        The first two are [batch, sequence, hidden], the third [layers, batch, sequence, hidden]. Under sequence
        parallelism the sequence is this rank's part. Nothing is sampled without `draws`.
        """
        embedded = self.embed(ends, inputs, keys)
        layers = {name[7:]: x for name, x in weights.items() if name.startswith("layers.")}
        rotary = self.rotary(inputs.shape[1])

        def run(x: jax.Array, row: tuple[jax.Array, Weights]) -> tuple[jax.Array, tuple[jax.Array, Sampled]]:
            layer, layer_weights = row
            x, sampled = block(x, layer_weights, layer)
            return x, (x, sampled)

        plain = partial(self.block, rotary, keys, draws)
        block = with_recomputation(self.job, plain)
        # Without the loop XLA would find that a recomputed value is known already.
        at_once = LAYERS_AT_ONCE if self.job.device == "cpu" and block is plain else 1
        rows = (jnp.arange(self.model.layers), layers)
        x, (outputs, blocks) = lax.scan(run, embedded, rows, unroll=at_once)
        samples = None if draws is None else Samples(draws)
        x = norm(self.model, x, ends, "final_norm", samples)
        return x, embedded, outputs, {} if samples is None else {"blocks": blocks, "ends": samples.arrays}

    def block(
        self,
        rotary: tuple[jax.Array, jax.Array] | None,
        keys: jax.Array | None,
        draws: Sampled | None,
        x: jax.Array,
        weights: Weights,
        layer: jax.Array,
    ) -> tuple[jax.Array, Sampled]:
        """Return (x + attention(norm(x)), then x + mlp(norm(x)); what is sampled)."""
        weights = self.sharding.layer_weights(weights)
        scores = use_keys(keys, layer, SCORES) if self.model.attention_dropout else None
        samples = None if draws is None else Samples(draws)
        y = self.parallel.enter(norm(self.model, x, weights, "attention_norm", samples))
        y = self.parallel.leave(attention(self.model, y, weights, rotary, scores, samples))
        x = x + self.dropout(self.add_bias(y, weights, "attention.output"), keys, layer, ATTENTION)
        y = self.parallel.enter(norm(self.model, x, weights, "mlp_norm", samples))
        y = self.parallel.leave(mlp(self.model, y, weights, samples))
        x = x + self.dropout(self.add_bias(y, weights, "mlp.down"), keys, layer, MLP)
        return x, {} if samples is None else samples.arrays

    def add_bias(self, y: jax.Array, weights: Weights, name: str) -> jax.Array:
        """Add the bias of a layer whose inputs are split over ranks: once, after their sum."""
        return add_bias(y, weights[f"{name}.bias"]) if f"{name}.bias" in weights else y

    def dropout(self, x: jax.Array, keys: jax.Array | None, layer: jax.Array | int, use: int) -> jax.Array:
        if not self.model.hidden_dropout:
            return x
        positions = rank_numbers(x.shape[1], self.parallel.sequence_parallel)
        return drop(x, use_keys(keys, layer, use), self.model.hidden_dropout, positions)

    def rotary(self, length: int) -> tuple[jax.Array, jax.Array] | None:
        model = self.model
        if model.positions != "rope" or model.rope_base is None:
            return None
        return rotary_tables(model.hidden_size // model.heads, length, model.rope_base, self.dtype)

    def embed(self, ends: Weights, inputs: jax.Array, keys: jax.Array | None) -> jax.Array:
        """Return the embeddings [batch, sequence, hidden] of tokens [batch, sequence].

        Each rank has rows of the table, [vocabulary / ranks, hidden]; its gradient is summed in float32.
        """
        table = ends["embedding.weight"].astype(jnp.float32)
        index = inputs - lax.axis_index(TENSOR) * table.shape[0]
        is_local = (index >= 0) & (index < table.shape[0])
        x = jnp.where(is_local[..., None], table[jnp.where(is_local, index, 0)], 0)
        x = self.parallel.leave(x)
        if self.model.positions == "learned":
            x = x + self.parallel.part(ends["position.weight"].astype(jnp.float32)[: inputs.shape[1]], 0)
        return self.dropout(x.astype(self.dtype), keys, 0, EMBEDDING)

    def head(self, ends: Weights) -> jax.Array:
        return ends["embedding.weight"] if self.model.tied_embeddings else ends["head.weight"]

    def head_loss(self, x: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        """Return the mean cross-entropy of the logits x W^T, whose columns are split over ranks (Shoeybi et al., 2019).

        x: [batch, sequence, hidden]. weight: [vocabulary / ranks, hidden]. targets: [batch, sequence].
        """
        logits = linear(x, weight).astype(jnp.float32)  # [batch, sequence, vocabulary / ranks]
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), TENSOR)  # [batch, sequence]
        index = targets - lax.axis_index(TENSOR) * weight.shape[0]
        is_local = (index >= 0) & (index < weight.shape[0])
        picked = jnp.take_along_axis(logits, jnp.where(is_local, index, 0)[..., None], -1)[..., 0]
        picked = lax.psum(jnp.where(is_local, picked, 0), TENSOR)  # [batch, sequence]: the targets' logits
        sums = lax.psum(jnp.exp(logits - vary(largest, (TENSOR,))[..., None]).sum(-1), TENSOR)
        return (jnp.log(sums) + largest - picked).mean()
