"""AdamW (Loshchilov and Hutter, 2019). REPLACE it by your framework's own, with the same rules."""

import numpy as np


class AdamW:
    """Decay on parameters of two or more dimensions only: not on norms and biases. The epsilon is outside the root."""

    def __init__(self, parameters, settings):
        self.parameters, self.settings, self.count = parameters, settings, 0
        self.first = {name: np.zeros_like(values) for name, values in parameters.items()}
        self.second = {name: np.zeros_like(values) for name, values in parameters.items()}

    def step(self, gradients, rate, divisor):
        """Update every parameter in place, with the gradients divided by `divisor`, which clips their norm."""
        self.count += 1
        settings = self.settings
        for name, values in self.parameters.items():
            gradient, first, second = gradients[name] / np.float32(divisor), self.first[name], self.second[name]
            if values.ndim > 1:
                values *= np.float32(1 - rate * settings.weight_decay)
            first += np.float32(1 - settings.beta1) * (gradient - first)
            second *= np.float32(settings.beta2)
            second += np.float32(1 - settings.beta2) * gradient * gradient
            size = np.float32(rate / (1 - settings.beta1**self.count))
            root = np.sqrt(second) / np.float32(np.sqrt(1 - settings.beta2**self.count))
            values -= size * first / (root + np.float32(settings.eps))
