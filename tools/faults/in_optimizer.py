"""Faults of AdamW: its decay, its moments and its settings."""

from __future__ import annotations

from faults.fault import Fault

DECAY = (
    Fault(
        "weight decay on norms and biases",
        """
from step import optimizer
right = optimizer.make_adamw
optimizer.make_adamw = lambda parameters, training: right([(p, 2) for p, _ in parameters], training)
""",
        "gradients",
        "updated.layers.0.attention_norm.weight",
    ),
    Fault(
        "weight decay on biases",
        """
from step import optimizer
right, first = optimizer.make_adamw, optimizer.LocalAdamW.__init__
def init(self, model, *more, **options):
    dimensions = [2 if name.endswith("bias") else value.dim() for name, value in model.named_parameters()]
    optimizer.make_adamw = lambda held, training: right([(p, d) for (p, _), d in zip(held, dimensions)], training)
    first(self, model, *more, **options)
optimizer.LocalAdamW.__init__ = init
""",
        "gradients",
        "updated.layers.0.attention_norm.bias",
        step=2,
    ),
    Fault(
        "no weight decay on the embedding",
        """
from step import optimizer
right = optimizer.make_adamw
def excepted(parameters, training):
    return right([(p, 1 if len(p) == job.model.vocab_size else n) for p, n in parameters], training)
optimizer.make_adamw = excepted
""",
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "weight decay added to the gradient",
        """
import torch
torch.optim.AdamW = torch.optim.Adam
""",
        "gradients",
        "updated.embedding.weight",
    ),
)

# AdamW's state as torch makes it at the first step, with FIRST steps behind it.
STATES = """
import torch
from step import optimizer
made = optimizer.LocalAdamW.__init__
def plant_states(self, *arguments, **options):
    made(self, *arguments, **options)
    for local in self.locals:
        moments = {name: torch.zeros_like(local) for name in ("exp_avg", "exp_avg_sq")}
        self.adamw.state[local] = {"step": torch.tensor(FIRST), **moments}
optimizer.LocalAdamW.__init__ = plant_states
"""
# What the optimizer keeps, changed after each step.
AFTER = """
from step import optimizer
right = optimizer.LocalAdamW.step
def step(self, *arguments):
    right(self, *arguments)
    for tensor in kept(self):
        tensor.copy_(tensor.bfloat16())
optimizer.LocalAdamW.step = step
"""
ADAM = (
    Fault(
        "Adam's epsilon 1e-5 for 1e-8",
        """
import torch
from step import optimizer
right = torch.optim.AdamW
torch.optim.AdamW = lambda *groups, eps, **more: right(*groups, eps=1e-5, **more)
""",
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "Adam's epsilon inside the root",
        STATES.replace("FIRST", "0.0")
        + """
right = optimizer.LocalAdamW.step
def step(self, *arguments):
    settings = job.training.optimizer
    for group in self.adamw.param_groups:
        group["eps"] = 0.0
    for state in self.adamw.state.values():  # so that its next mean has epsilon in it, corrected as the squares
        state["exp_avg_sq"] += settings.eps * (1 - settings.beta2) / settings.beta2
    right(self, *arguments)
optimizer.LocalAdamW.step = step
""",
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "Adam without bias correction",
        STATES.replace("FIRST", "1e6"),
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "Adam's beta2 0.999 for 0.95",
        """
object.__setattr__(job.training.optimizer, "beta2", 0.999)  # the job is frozen
""",
        "gradients",
        "updated.embedding.weight",
        step=2,
    ),
    Fault(
        "Adam's moments in bf16",
        AFTER
        + """
kept = lambda self: [state[name] for state in self.adamw.state.values() for name in ("exp_avg", "exp_avg_sq")]
""",
        "gradients",
        "updated.embedding.weight",
        step=2,
    ),
    Fault(
        "weights kept in bf16 between steps",
        AFTER
        + """
kept = lambda self: [local.data for local in self.locals]
""",
        "gradients",
        "updated.embedding.weight",
    ),
    Fault(
        "a bias that never trains",
        """
from step import optimizer
right = optimizer.LocalAdamW.__init__
def incomplete(self, *arguments, **options):
    right(self, *arguments, **options)
    left_out = self.locals[self.names.index("layers.2.mlp.down.bias")]
    for group in self.adamw.param_groups:
        group["params"] = [local for local in group["params"] if local is not left_out]
optimizer.LocalAdamW.__init__ = incomplete
""",
        "gradients",
        "updated.layers.2.mlp.down.bias",
    ),
)
