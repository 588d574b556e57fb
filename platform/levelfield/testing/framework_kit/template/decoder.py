"""A decoder-only transformer with its backward pass, for GPT and Llama. REPLACE it by your framework's own layers.

What must stay: the canonical names of the parameters (`layers.0.attention.query.weight`, ...), matrices as [out, in],
and what is computed. The case chooses norm, activation and positions, each by itself.
"""

import numpy as np
from attention import Attention
from layers import MLPS, Dropout, Embedding, Linear, Norm, Parameter, part


class Decoder:
    """Parameters and gradients are float32 arrays by canonical name."""

    def __init__(self, model, parameters):
        self.model, self.parameters = model, parameters
        self.gradients = {name: np.zeros_like(values) for name, values in parameters.items()}
        self.random = np.random.default_rng()  # of all dropouts: each step sets its state
        at = {name: Parameter(values, self.gradients[name]) for name, values in parameters.items()}
        self.embedding = Embedding(part(at, "embedding"))
        self.positions = Embedding(part(at, "position")) if model.positions == "learned" else None
        self.dropout = Dropout(model.hidden_dropout, self.random)
        self.blocks = [Block(model, part(at, f"layers.{layer}"), self.random) for layer in range(model.layers)]
        self.norm = Norm(part(at, "final_norm"), model)
        self.head = Linear(part(at, "embedding" if model.tied_embeddings else "head"))

    def loss_and_gradients(self, tokens, targets, scale, keep):
        """Add the gradients of `scale` times the mean loss, and return that value. tokens, targets: [batch, sequence].

        keep(name, tensor): called with the tensors that a captured step must have.
        """
        x = self.embedding.forward(tokens)
        if self.positions is not None:
            x = x + self.positions.forward(np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape))
        x = self.dropout.forward(x)
        keep("embedding", x)
        for layer, block in enumerate(self.blocks):
            x = block.forward(x)
            keep(f"layers.{layer}", x)
        x = self.norm.forward(x)
        keep("final_norm", x)
        logits = self.head.forward(x)
        keep("logits", logits)
        loss, gradient = cross_entropy(logits, targets)

        gradient = self.norm.backward(self.head.backward(gradient * np.float32(scale)))
        for block in reversed(self.blocks):
            gradient = block.backward(gradient)
        gradient = self.dropout.backward(gradient)
        if self.positions is not None:
            self.positions.backward(gradient)
        self.embedding.backward(gradient)
        return loss * scale


class Block:
    """x + dropout(attention(norm(x))), then x + dropout(mlp(norm(x)))."""

    def __init__(self, model, at, random):
        self.attention_norm = Norm(part(at, "attention_norm"), model)
        self.attention = Attention(model, part(at, "attention"), Dropout(model.attention_dropout, random))
        self.mlp_norm = Norm(part(at, "mlp_norm"), model)
        self.mlp = MLPS[model.activation](part(at, "mlp"))
        self.after_attention, self.after_mlp = (Dropout(model.hidden_dropout, random) for _ in range(2))

    def forward(self, x):
        x = x + self.after_attention.forward(self.attention.forward(self.attention_norm.forward(x)))
        return x + self.after_mlp.forward(self.mlp.forward(self.mlp_norm.forward(x)))

    def backward(self, gradient):
        inner = self.mlp.backward(self.after_mlp.backward(gradient))
        gradient = gradient + self.mlp_norm.backward(inner)
        inner = self.attention.backward(self.after_attention.backward(gradient))
        return gradient + self.attention_norm.backward(inner)


def cross_entropy(logits, targets):
    """Return the mean loss in nats over all targets, and its gradient with respect to the logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=-1, keepdims=True)
    chosen = np.take_along_axis(shifted, targets[..., None], axis=-1)
    loss = float((np.log(sums) - chosen).mean(dtype=np.float64))
    gradient = exponentials / sums
    np.put_along_axis(gradient, targets[..., None], np.take_along_axis(gradient, targets[..., None], -1) - 1, axis=-1)
    return loss, gradient / np.float32(targets.size)
