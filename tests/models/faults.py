"""Faults that implementations have had, planted into the torch implementation, and what must catch each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from layouts import SINGLE, Variant


@dataclass(frozen=True)
class Fault:
    """layer: of the alignment, that decides. tensor, step: what `diagnose` finds; None where one process is right.

    model: what differs from the small model of the family.
    """

    name: str
    code: str
    layer: str
    tensor: str | None
    family: str = "gpt"
    variant: Variant = SINGLE
    step: int = 1
    model: dict[str, Any] = field(default_factory=dict)


# The two forms differ by 5e-4 at most, and where weights are small by less than rounding. Without biases: a key's has
# a gradient of rounding alone, which larger weights make larger.
LARGE_WEIGHTS = {"init_std": 0.2, "bias": False}

FAULTS = (
    Fault(
        "gradients summed over micro-batches instead of averaged",
        """
import optimizer
right = optimizer.LocalAdamW.take_gradients
def take(self):
    right(self)
    for local in self.locals:
        local.grad *= 4
optimizer.LocalAdamW.take_gradients = take
""",
        "gradients",
        "gradient.final_norm.bias",
    ),
    Fault(
        "erf form of GELU for the tanh form",
        """
import gpt
from types import SimpleNamespace
from torch.nn.functional import gelu
gpt.functional = SimpleNamespace(gelu=lambda x, approximate: gelu(x))
""",
        "first step",
        "layers.0",
        model=LARGE_WEIGHTS,
    ),
    Fault(
        "weight decay on norms and biases",
        """
import optimizer
right = optimizer.make_adamw
optimizer.make_adamw = lambda parameters, training: right([(p, 2) for p, _ in parameters], training)
""",
        "gradients",
        "updated.layers.0.attention_norm.weight",
    ),
    Fault(
        "weight decay on biases",
        """
import optimizer
right, first = optimizer.make_adamw, optimizer.LocalAdamW.__init__
def init(self, model, *more):
    dimensions = [2 if name.endswith("bias") else value.dim() for name, value in model.named_parameters()]
    optimizer.make_adamw = lambda held, training: right([(p, d) for (p, _), d in zip(held, dimensions)], training)
    first(self, model, *more)
optimizer.LocalAdamW.__init__ = init
""",
        "gradients",
        "updated.layers.0.attention_norm.bias",
        step=2,
    ),
    Fault(
        "the tenth step's update lost",
        """
import optimizer
right = optimizer.LocalAdamW.step
def step(self, *more):
    self.count = getattr(self, "count", 0) + 1
    if self.count != 10:
        right(self, *more)
optimizer.LocalAdamW.step = step
""",
        "final weights",
        "updated.embedding.weight",
        step=10,
    ),
    Fault(
        "query's heads interleaved with their parts",
        """
import attention
def heads(self, x):
    return x.unflatten(-1, (self.head_size, -1)).transpose(-1, -2)
attention.Attention.heads = heads
""",
        "first step",
        "layers.0",
    ),
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
        "first step",
        "layers.2",
    ),
    Fault(
        "two samples swapped between steps",
        """
from levelfield.worker.batches import Batches
right = Batches.run_samples
def swapped(self, step):
    numbers = right(self, step)
    if step in (3, 4):
        numbers[0] = right(self, 7 - step)[0]
    return numbers
Batches.run_samples = swapped
""",
        "identity",
        "the tokens of step 3",
        step=3,
    ),
    Fault(
        "learning rate off by one step",
        """
import training
right = training.learning_rate
training.learning_rate = lambda schedule, step: right(schedule, step + 1)
""",
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "learning rate wrong from step 7 on",
        """
import training
right = training.learning_rate
training.learning_rate = lambda schedule, step: right(schedule, step) * (1.01 if step >= 7 else 1)
""",
        "gradients",
        "updated.embedding.weight",
        step=7,
    ),
    Fault(
        "attention sees one token ahead",
        """
import attention, torch
from types import SimpleNamespace
right = torch.nn.functional.scaled_dot_product_attention
def shifted(q, k, v, dropout_p, is_causal, enable_gqa):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(1)
    return right(q, k, v, attn_mask=mask, enable_gqa=enable_gqa)
attention.functional = SimpleNamespace(scaled_dot_product_attention=shifted)
""",
        "first step",
        "layers.0",
        family="llama",
    ),
    Fault(
        "one parameter left out of the data-parallel all-reduce",
        """
import data_parallel
class Ignoring(data_parallel.DistributedDataParallel):
    def __init__(self, model, **settings):
        self._set_params_and_buffers_to_ignore_for_model(model, ["layers.1.mlp.up.weight"])
        super().__init__(model, **settings)
data_parallel.DistributedDataParallel = Ignoring
""",
        "gradients",
        None,
        variant=Variant("DP2", {"data": 2}),
    ),
    Fault(
        "wrong RoPE base",
        """
import decoder
right = decoder.rotary_tables
decoder.rotary_tables = lambda size, length, base, *more: right(size, length, 5 * base, *more)
""",
        "gradients",
        "layers.0",
        family="llama",
    ),
    Fault(
        "Adam's epsilon 1e-5 for 1e-8",
        """
import optimizer, torch
right = torch.optim.AdamW
torch.optim.AdamW = lambda *groups, eps, **more: right(*groups, eps=1e-5, **more)
""",
        "gradients",
        "updated.embedding.weight",
    ),
)
