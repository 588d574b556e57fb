"""GPT's MLP (Radford et al., 2019; Brown et al., 2020)."""

from layers import Linear
from torch import nn
from torch.nn import functional


class MLP(nn.Module):
    """down(gelu(up(x))). `gelu` is the erf form, `gelu_tanh` the tanh one (Hendrycks and Gimpel, 2016)."""

    def __init__(self, model):
        super().__init__()
        self.up = Linear(model.hidden_size, model.ffn_hidden_size, bias=model.bias)
        self.down = Linear(model.ffn_hidden_size, model.hidden_size, bias=model.bias)
        self.form = {"gelu": "none", "gelu_tanh": "tanh"}[model.activation]

    def forward(self, x):
        return self.down(functional.gelu(self.up(x), approximate=self.form))
