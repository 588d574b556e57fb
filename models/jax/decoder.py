"""What both families share: embeddings, a stack of blocks, a final norm, the head and its loss.

Every function computes this rank's part; weights are those of parameters.Kind, by name.
"""

from functools import partial

from attention import attention, rotary_tables
from dropout import ATTENTION, EMBEDDING, MLP, SCORES, drop, own_numbers, use_keys
from grid import TENSOR, vary
from jax import lax
from jax import numpy as jnp
from layers import TensorParallel, biased, linear, mlp, norm
from recompute import recomputed

DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}
# On a processor XLA runs the operations of a loop one after another, and those of layers in a row beside each other.
LAYERS_AT_ONCE = 8


class Decoder:
    """A decoder-only transformer as functions of its weights. sharding: sharding.Sharding."""

    def __init__(self, job, sharding):
        self.model, self.job, self.sharding = job.model, job, sharding
        self.dtype, self.parallel = DTYPES[job.training.precision], TensorParallel(job.layout)

    def loss(self, weights, inputs, targets, keys):
        """The mean loss of this rank's rows, float32; inputs, targets: [batch, sequence]; keys: of dropout.row_keys."""
        ends = self.sharding.end_weights(weights)
        x = self.hidden(weights, ends, inputs, keys)[0]
        return self.head_loss(self.parallel.enter(x), self.head(ends), targets)

    def activations(self, weights, inputs, keys):
        """The tensors of levelfield's Capture, of one process."""
        ends = self.sharding.end_weights(weights)
        x, embedded, outputs = self.hidden(weights, ends, inputs, keys)
        blocks = {f"layers.{layer}": outputs[layer] for layer in range(self.model.layers)}
        return {"embedding": embedded, **blocks, "final_norm": x, "logits": linear(x, self.head(ends))}

    def hidden(self, weights, ends, inputs, keys):
        """(the hidden state after the final norm, the embedding, every block's output)."""
        embedded = self.embed(ends, inputs, keys)
        layers = {name[7:]: x for name, x in weights.items() if name.startswith("layers.")}
        rotary = self.rotary(inputs.shape[1])

        def run(x, row):
            layer, of_layer = row
            x = block(x, of_layer, layer)
            return x, x

        kept = partial(self.block, rotary, keys)
        block = recomputed(self.job, kept)
        # Without the loop XLA would find that a recomputed value is known already.
        at_once = LAYERS_AT_ONCE if self.job.device == "cpu" and block is kept else 1
        x, outputs = lax.scan(run, embedded, (jnp.arange(self.model.layers), layers), unroll=at_once)
        return norm(self.model, x, ends, "final_norm"), embedded, outputs

    def block(self, rotary, keys, x, weights, layer):
        """x + attention(norm(x)), then x + mlp(norm(x))."""
        weights = self.sharding.layer_weights(weights)
        scores = use_keys(keys, layer, SCORES) if self.model.attention_dropout else None
        y = self.parallel.enter(norm(self.model, x, weights, "attention_norm"))
        y = self.parallel.leave(attention(self.model, y, weights, rotary, scores))
        x = x + self.dropped(self.biased(y, weights, "attention.output"), keys, layer, ATTENTION)
        y = self.parallel.enter(norm(self.model, x, weights, "mlp_norm"))
        y = self.parallel.leave(mlp(self.model, y, weights))
        return x + self.dropped(self.biased(y, weights, "mlp.down"), keys, layer, MLP)

    def biased(self, y, weights, name):
        """y with the bias of a layer whose inputs are split over ranks: it is added once, after their sum."""
        return biased(y, weights[f"{name}.bias"]) if f"{name}.bias" in weights else y

    def dropped(self, x, keys, layer, use):
        if not self.model.hidden_dropout:
            return x
        positions = own_numbers(x.shape[1], self.parallel.sequence_parallel)
        return drop(x, use_keys(keys, layer, use), self.model.hidden_dropout, positions)

    def rotary(self, length):
        model = self.model
        if model.positions != "rope":
            return None
        return rotary_tables(model.hidden_size // model.heads, length, model.rope_base, self.dtype)

    def embed(self, ends, inputs, keys):
        """[batch, sequence, hidden]. Each rank has rows of the table; its gradient is summed in float32."""
        table = ends["embedding.weight"].astype(jnp.float32)
        index = inputs - lax.axis_index(TENSOR) * table.shape[0]
        here = (index >= 0) & (index < table.shape[0])
        x = jnp.where(here[..., None], table[jnp.where(here, index, 0)], 0)
        x = self.parallel.leave(x)
        if self.model.positions == "learned":
            x = x + self.parallel.part(ends["position.weight"].astype(jnp.float32)[: inputs.shape[1]], 0)
        return self.dropped(x.astype(self.dtype), keys, 0, EMBEDDING)

    def head(self, ends):
        return ends["embedding.weight"] if self.model.tied_embeddings else ends["head.weight"]

    def head_loss(self, x, weight, targets):
        """The mean cross-entropy of the logits x W^T, whose columns are split over ranks (Shoeybi et al., 2019)."""
        logits = linear(x, weight).astype(jnp.float32)
        largest = lax.pmax(lax.stop_gradient(logits.max(-1)), TENSOR)
        index = targets - lax.axis_index(TENSOR) * weight.shape[0]
        here = (index >= 0) & (index < weight.shape[0])
        picked = jnp.take_along_axis(logits, jnp.where(here, index, 0)[..., None], -1)[..., 0]
        picked = lax.psum(jnp.where(here, picked, 0), TENSOR)
        sums = lax.psum(jnp.exp(logits - vary(largest, (TENSOR,))[..., None]).sum(-1), TENSOR)
        return (jnp.log(sums) + largest - picked).mean()
