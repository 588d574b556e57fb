"""Layers with their backward passes. Each keeps what its backward pass needs, and adds to its gradients."""

import numpy as np

ROOT = np.float32(np.sqrt(2 / np.pi))
CUBIC = np.float32(0.044715)


class Parameters:
    """The parameters and gradients below a name: `at.part("mlp")["up.weight"]` is layers.0.mlp.up.weight."""

    def __init__(self, values, gradients, prefix=""):
        self.values, self.gradients, self.prefix = values, gradients, prefix

    def part(self, name):
        return Parameters(self.values, self.gradients, f"{self.prefix}{name}.")

    def __contains__(self, name):
        return self.prefix + name in self.values

    def __getitem__(self, name):
        return self.values[self.prefix + name]

    def add(self, name, gradient):
        self.gradients[self.prefix + name] += gradient


class Linear:
    """y = x W^T + b. W: [out, in]; b only where the model has biases."""

    def __init__(self, at):
        self.at = at

    def forward(self, x):
        self.rows = x.reshape(-1, x.shape[-1])  # one large product is faster than one for each sequence
        y = self.rows @ self.at["weight"].T
        if "bias" in self.at:
            y += self.at["bias"]
        return y.reshape(*x.shape[:-1], -1)

    def backward(self, gradient):
        rows = gradient.reshape(-1, gradient.shape[-1])
        self.at.add("weight", rows.T @ self.rows)
        if "bias" in self.at:
            self.at.add("bias", rows.sum(axis=0))
        return (rows @ self.at["weight"]).reshape(*gradient.shape[:-1], -1)


class Embedding:
    """Rows of the weight by number; `position` is one as well."""

    def __init__(self, at):
        self.at = at

    def forward(self, numbers):
        self.numbers = numbers
        return self.at["weight"][numbers]

    def backward(self, gradient):
        total = np.zeros_like(self.at["weight"])
        np.add.at(total, self.numbers.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))
        self.at.add("weight", total)


class LayerNorm:
    """Layer normalisation (Ba et al., 2016) over the last dimension."""

    def __init__(self, at, epsilon):
        self.at, self.epsilon = at, np.float32(epsilon)

    def forward(self, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        self.inverse = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + self.epsilon)
        self.normal = centred * self.inverse
        return self.normal * self.at["weight"] + self.at["bias"]

    def backward(self, gradient):
        axes = tuple(range(gradient.ndim - 1))
        self.at.add("weight", (gradient * self.normal).sum(axis=axes))
        self.at.add("bias", gradient.sum(axis=axes))
        inner = gradient * self.at["weight"]
        along = (inner * self.normal).mean(axis=-1, keepdims=True)
        return self.inverse * (inner - inner.mean(axis=-1, keepdims=True) - self.normal * along)


class RMSNorm:
    """Root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension. The epsilon is in the root."""

    def __init__(self, at, epsilon):
        self.at, self.epsilon = at, np.float32(epsilon)

    def forward(self, x):
        self.inverse = 1 / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + self.epsilon)
        self.normal = x * self.inverse
        return self.normal * self.at["weight"]

    def backward(self, gradient):
        self.at.add("weight", (gradient * self.normal).sum(axis=tuple(range(gradient.ndim - 1))))
        inner = gradient * self.at["weight"]
        along = (inner * self.normal).mean(axis=-1, keepdims=True)
        return self.inverse * (inner - self.normal * along)


class Dropout:
    """Dropout (Srivastava et al., 2014): some values become 0 and the others grow, so that the mean stays."""

    def __init__(self, probability, random):
        self.probability, self.random = probability, random

    def forward(self, x):
        if self.probability:
            mask = self.random.numbers(x.shape) >= np.float32(self.probability)
            self.factors = mask / np.float32(1 - self.probability)
        return x * self.factors if self.probability else x

    def backward(self, gradient):
        return gradient * self.factors if self.probability else gradient


class Random:
    """The random numbers of one step, which depend on its seed alone."""

    def start(self, seed):
        self.generator = np.random.default_rng(seed)

    def numbers(self, shape):
        return self.generator.random(shape, dtype=np.float32)


class GeluMLP:
    """down(gelu(up(x))), by the tanh form (Hendrycks and Gimpel, 2016). `gelu` in a case is the erf form."""

    def __init__(self, at):
        self.up, self.down = Linear(at.part("up")), Linear(at.part("down"))

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
        self.gate, self.up, self.down = (Linear(at.part(name)) for name in ("gate", "up", "down"))

    def forward(self, x):
        self.gated, self.raised = self.gate.forward(x), self.up.forward(x)
        self.sigmoid = 1 / (1 + np.exp(-self.gated))
        return self.down.forward(self.gated * self.sigmoid * self.raised)

    def backward(self, gradient):
        gradient = self.down.backward(gradient)
        silu = self.gated * self.sigmoid
        slope = self.sigmoid * (1 + self.gated * (1 - self.sigmoid))
        return self.gate.backward(gradient * self.raised * slope) + self.up.backward(gradient * silu)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
MLPS = {"gelu_tanh": GeluMLP, "swiglu": SwigluMLP}
