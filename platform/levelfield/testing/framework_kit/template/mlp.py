"""The MLPs of both families with their backward passes."""

import numpy as np
from layers import Linear

ROOT = np.float32(np.sqrt(2 / np.pi))
CUBIC = np.float32(0.044715)


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


MLPS = {"gelu_tanh": GeluMLP, "swiglu": SwigluMLP}
