"""Layers with their backward passes. Each keeps what its backward pass needs, and adds to its gradients."""

from dataclasses import dataclass

import numpy as np

ROOT = np.float32(np.sqrt(2 / np.pi))
CUBIC = np.float32(0.044715)


@dataclass
class Parameter:
    """A parameter's values, and its gradient, to which every backward pass adds. Both are float32 arrays."""

    values: np.ndarray
    gradient: np.ndarray


def part(parameters, name):
    """Return the parameters below a name: of `layers.0`, layers.0.mlp.up.weight is mlp.up.weight."""
    begin = f"{name}."
    return {key.removeprefix(begin): parameter for key, parameter in parameters.items() if key.startswith(begin)}


class Linear:
    """y = x W^T + b. W: [out, in]; b only where the model has biases."""

    def __init__(self, at):
        self.at = at

    def forward(self, x):
        self.rows = x.reshape(-1, x.shape[-1])  # one large product is faster than one for each sequence
        y = self.rows @ self.at["weight"].values.T
        if "bias" in self.at:
            y += self.at["bias"].values
        return y.reshape(*x.shape[:-1], -1)

    def backward(self, gradient):
        rows = gradient.reshape(-1, gradient.shape[-1])
        self.at["weight"].gradient += rows.T @ self.rows
        if "bias" in self.at:
            self.at["bias"].gradient += rows.sum(axis=0)
        return (rows @ self.at["weight"].values).reshape(*gradient.shape[:-1], -1)


class Embedding:
    """Rows of the weight by number; `position` is one as well."""

    def __init__(self, at):
        self.at = at

    def forward(self, numbers):
        self.numbers = numbers
        return self.at["weight"].values[numbers]

    def backward(self, gradient):
        total = np.zeros_like(self.at["weight"].values)
        np.add.at(total, self.numbers.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))
        self.at["weight"].gradient += total


class Norm:
    """Layer normalisation (Ba et al., 2016) over the last dimension. Root mean square normalisation (Zhang and
    Sennrich, 2019) is the same without the mean and the bias. The epsilon is in the root."""

    def __init__(self, at, model):
        self.at, self.epsilon, self.is_centred = at, np.float32(model.norm_eps), model.norm == "layernorm"

    def forward(self, x):
        centred = x - x.mean(axis=-1, keepdims=True) if self.is_centred else x
        self.inverse = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + self.epsilon)
        self.normal = centred * self.inverse
        y = self.normal * self.at["weight"].values
        return y + self.at["bias"].values if self.is_centred else y

    def backward(self, gradient):
        axes = tuple(range(gradient.ndim - 1))
        self.at["weight"].gradient += (gradient * self.normal).sum(axis=axes)
        inner = gradient * self.at["weight"].values
        along = (inner * self.normal).mean(axis=-1, keepdims=True)
        if self.is_centred:
            self.at["bias"].gradient += gradient.sum(axis=axes)
            inner = inner - inner.mean(axis=-1, keepdims=True)
        return self.inverse * (inner - self.normal * along)


class Dropout:
    """Dropout (Srivastava et al., 2014): some values become 0 and the others grow, so that the mean stays."""

    def __init__(self, probability, random):
        self.probability, self.random = probability, random

    def forward(self, x):
        if self.probability:
            mask = self.random.random(x.shape, dtype=np.float32) >= np.float32(self.probability)
            self.factors = mask / np.float32(1 - self.probability)
        return x * self.factors if self.probability else x

    def backward(self, gradient):
        return gradient * self.factors if self.probability else gradient


class GeluMLP:
    """down(gelu(up(x))), by the tanh form (Hendrycks and Gimpel, 2016). `gelu` in a case is the erf form."""

    def __init__(self, at):
        self.up, self.down = Linear(part(at, "up")), Linear(part(at, "down"))

    def forward(self, x):
        self.x = self.up.forward(x)
        self.square = self.x * self.x  # numpy's power is 20 times slower
        self.tanh = np.tanh(ROOT * self.x * (1 + CUBIC * self.square))
        return self.down.forward(np.float32(0.5) * self.x * (1 + self.tanh))

    def backward(self, gradient):
        gradient = self.down.backward(gradient)
        inner = ROOT * (1 + 3 * CUBIC * self.square) * (1 - self.tanh * self.tanh)
        return self.up.backward(gradient * np.float32(0.5) * (1 + self.tanh + self.x * inner))


class SwigluMLP:
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, at):
        self.gate, self.up, self.down = (Linear(part(at, name)) for name in ("gate", "up", "down"))

    def forward(self, x):
        self.gated, self.raised = self.gate.forward(x), self.up.forward(x)
        self.sigmoid = 1 / (1 + np.exp(-self.gated))
        return self.down.forward(self.gated * self.sigmoid * self.raised)

    def backward(self, gradient):
        gradient = self.down.backward(gradient)
        silu = self.gated * self.sigmoid
        slope = self.sigmoid * (1 + self.gated * (1 - self.sigmoid))
        return self.gate.backward(gradient * self.raised * slope) + self.up.backward(gradient * silu)


MLPS = {"gelu_tanh": GeluMLP, "swiglu": SwigluMLP}
