"""Faults of the forward pass: attention, positions, norms, activations and weights."""

from __future__ import annotations

from faults.fault import Fault

# The two forms of GELU differ by 5e-4 at most, and where weights are small by less than rounding in one block. Without
# biases: a key's has a gradient of rounding alone, which larger weights make larger.
LARGE_WEIGHTS = {"init_std": 0.2, "bias": False}

ATTENTION = (
    Fault(
        "query's heads interleaved with their parts",
        """
from model import attention
def interleaved(x, layers, size):
    return [layer(x).unflatten(-1, (size, -1)).transpose(-1, -2) for layer in layers]
attention.heads_for_one_input = interleaved
""",
        "first step",
        "layers.0",
    ),
    Fault(
        "attention sees one token ahead",
        """
import torch
from model import attention
from types import SimpleNamespace
right = torch.nn.functional.scaled_dot_product_attention
def shifted(q, k, v, dropout_p, is_causal, enable_gqa, attn_mask=None):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1)
    return right(q, k, v, attn_mask=mask, enable_gqa=enable_gqa)
attention.functional = SimpleNamespace(scaled_dot_product_attention=shifted)
""",
        "first step",
        "layers.0",
        family="llama",
    ),
    Fault(
        "attention scaled by the hidden size instead of the head's",
        """
from model import attention
from types import SimpleNamespace
right = attention.functional.scaled_dot_product_attention
def scaled(q, k, v, **more):
    return right(q, k, v, scale=job.model.hidden_size**-0.5, **more)
attention.functional = SimpleNamespace(scaled_dot_product_attention=scaled)
""",
        "first step",
        "layers.0",
    ),
    Fault(
        "keys dealt out to the query heads by turns",
        """
from model import attention
right = attention.scaled_dot_product
def dealt(query, key, value, dropout):
    turns = query.shape[2] // key.shape[2]
    return right(query, key.tile(1, 1, turns, 1), value.tile(1, 1, turns, 1), dropout)
attention.scaled_dot_product = dealt
""",
        "first step",
        "layers.0",
        family="llama",
    ),
    Fault(
        "attention's softmax in bf16",
        """
import torch
from model import attention
def coarse(query, key, value, dropout):
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    ahead = torch.full((query.shape[-2], query.shape[-2]), -torch.inf).triu(1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + ahead
    return (scores.bfloat16().softmax(-1).to(value.dtype) @ value).transpose(1, 2)
attention.scaled_dot_product = coarse
""",
        "gradients",
        "layers.0",
    ),
)

POSITIONS = (
    Fault(
        "queries rotated one position late",
        """
import torch
from model import attention
right = attention.rotate
def late(x, tables):
    if x.shape[2] == job.model.heads:
        tables = [torch.cat((table[:1], table[:-1])) for table in tables]
    return right(x, tables)
attention.rotate = late
""",
        "gradients",
        "layers.0",
        family="llama",
    ),
    Fault(
        "wrong RoPE base",
        """
from model import decoder
right = decoder.rotary_tables
decoder.rotary_tables = lambda size, length, base, *more: right(size, length, 5 * base, *more)
""",
        "gradients",
        "layers.0",
        family="llama",
    ),
    Fault(
        "RoPE on neighbouring pairs instead of halves",
        """
import torch
from model import attention
def interleaved(x, tables):
    cos, sin = (table[: x.shape[1]] for table in tables)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
attention.rotate = interleaved
""",
        "first step",
        "layers.0",
        family="llama",
    ),
    Fault(
        "RoPE's angles in bf16",
        """
import torch
from model import decoder
def coarse(size, length, base, device, dtype, scaling):
    frequency = base ** -(torch.arange(0, size, 2) / size).bfloat16()
    angle = torch.outer(torch.arange(length).bfloat16(), frequency)[:, None]
    return angle.cos().to(dtype), angle.sin().to(dtype)
decoder.rotary_tables = coarse
""",
        "gradients",
        "layers.2",
        family="llama",
    ),
    Fault(
        "learned positions off by one",
        """
from model import layers
layers.Positions.forward = lambda self, length: self.weight.roll(1, 0)
""",
        "first step",
        "embedding",
    ),
)

LAYERS = (
    Fault(
        "erf form of GELU for the tanh form",
        """
from model import decoder
from types import SimpleNamespace
from torch.nn.functional import gelu
decoder.functional = SimpleNamespace(gelu=lambda x, approximate: gelu(x))
""",
        "final weights",
        "layers.0",
        model=LARGE_WEIGHTS,
    ),
    Fault(
        "a norm's epsilon 1e-6 for 1e-5",
        """
object.__setattr__(job.model, "norm_eps", 1e-6)
""",
        "first step",
        "layers.0",
    ),
    Fault(
        "RMSNorm in bf16",
        """
from model import layers
def coarse(self, x):
    half = x.bfloat16()
    scale = (half.square().mean(-1, keepdim=True) + self.eps).rsqrt()
    return (half * scale * self.weight.bfloat16()).to(x.dtype)
layers.RMSNorm.forward = coarse
""",
        "first step",
        "layers.0",
        family="llama",
    ),
    Fault(
        "LayerNorm without its bias",
        """
from model import layers
right = layers.LayerNorm.forward
layers.LayerNorm.forward = lambda self, x: right(self, x) - self.bias.to(x.dtype)
""",
        "gradients",
        "gradient.final_norm.bias",
    ),
    Fault(
        "a tied head that gives the embedding no gradient",
        """
from model import decoder
from model.head_loss import head_loss
right = decoder.head_scores
def detached(layer, x, targets, scale, tied):
    if targets is None:
        return right(layer, x, targets, scale)
    return head_loss(x, layer.weight.detach(), targets, scale)
decoder.TiedGradient, decoder.head_scores = lambda: None, detached
""",
        "gradients",
        "gradient.embedding.weight",
    ),
)

WEIGHTS = (
    Fault(
        "weights of one layer perturbed by 1e-3",
        """
import training
right = training.build
def build(job, *arguments):
    model, runner = right(job, *arguments)
    model.layers["2"].mlp.up.weight.data *= 1.001
    return model, runner
training.build = build
""",
        "identity",
        "the initial weights of layers.2.mlp.up.weight",
    ),
    Fault(
        "weights perturbed after they were reported",
        """
import training
right = training.Trainer.launch
def launch(self, batch):
    if batch.step == 1:
        self.model.layers["2"].mlp.up.weight.data *= 1.01
    right(self, batch)
training.Trainer.launch = launch
""",
        "gradients",
        "layers.2",
    ),
)
