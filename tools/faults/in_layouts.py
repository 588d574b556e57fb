"""Faults that only several processes have: what they sum, and what they do not."""

from __future__ import annotations

from faults.fault import Fault
from matrix import VARIANTS

LAYOUTS = (
    Fault(
        "one parameter left out of the data-parallel all-reduce",
        """
from parallelism import data_parallel
class Ignoring(data_parallel.DistributedDataParallel):
    def __init__(self, model, **settings):
        self._set_params_and_buffers_to_ignore_for_model(model, ["layers.1.mlp.up.weight"])
        super().__init__(model, **settings)
data_parallel.DistributedDataParallel = Ignoring
""",
        "gradients",
        None,
        variant=VARIANTS["DP2"],
    ),
    Fault(
        "gradients doubled: summed over data-parallel ranks",
        """
from step import optimizer
right = optimizer.LocalAdamW.take_gradients
def take(self):
    right(self)
    for local in self.locals:
        local.grad *= job.layout.data
optimizer.LocalAdamW.take_gradients = take
""",
        "gradients",
        None,
        variant=VARIANTS["DP2"],
    ),
    Fault(
        "a norm's gradient not summed under sequence parallelism",
        """
from step import optimizer
optimizer._local_gradient = lambda parameter: optimizer.local_memory(parameter.grad)
""",
        "gradients",
        None,
        variant=VARIANTS["TP2 sequence parallel"],
    ),
    Fault(
        "a bias added by each tensor-parallel rank",
        """
from model import layers
from torch.nn import functional
right = layers.Linear.forward
def twice(self, x):
    if self.weight.placements[0].is_shard(0):
        return right(self, x)
    return functional.linear(x, self.weight.to(x.dtype), 2 * self.bias.to(x.dtype))
layers.Linear.forward = twice
""",
        "gradients",
        None,
        variant=VARIANTS["TP2"],
    ),
    Fault(
        "a tied embedding's gradient not summed over the pipeline's ends",
        """
from step import optimizer
right = optimizer.LocalAdamW.__init__
def apart(self, *arguments, **options):
    right(self, *arguments, **options)
    self.tied = [False] * len(self.names)
optimizer.LocalAdamW.__init__ = apart
""",
        "gradients",
        None,
        variant=VARIANTS["PP2"],
    ),
)
