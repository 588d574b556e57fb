"""Faults of the other frameworks, each in its own terms: three of each."""

from __future__ import annotations

from faults.fault import Fault
from matrix import VARIANTS

MEGATRON = (
    Fault(
        "query, key and value one after another",  # Megatron has them by groups; checksums read what was written
        """
import canonical
canonical.Correspondence.groups = lambda self, module: 1
""",
        "first step",
        None,
        framework="megatron",
    ),
    Fault(
        "weight decay on norms and biases",  # Megatron's own trap: without its scheduler every parameter decays
        """
import parallelize
def set_rates(optimizer, learning_rate, weight_decay):
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = learning_rate, weight_decay
parallelize.set_rates = set_rates
""",
        "gradients",
        None,
        framework="megatron",
    ),
    Fault(
        "a norm's gradient not summed under sequence parallelism",
        """
import local_norm
made = local_norm.LocalNorm.__new__
def unmarked(cls, config, **arguments):
    norm = made(cls, config, **arguments)
    for parameter in norm.parameters():
        parameter.sequence_parallel = False
    return norm
local_norm.LocalNorm.__new__ = unmarked
""",
        "gradients",
        None,
        variant=VARIANTS["TP2 sequence parallel"],
        framework="megatron",
    ),
)

PADDLE = (
    Fault(
        "weight decay on norms and biases",
        """
import optimizer
right = optimizer.AdamW
optimizer.AdamW = lambda **settings: right(**{**settings, "apply_decay_param_fun": None})
""",
        "gradients",
        None,
        framework="paddle",
    ),
    Fault(
        "a gradient not summed over tensor-parallel ranks",  # of what is copied to them: each keeps its own share
        """
import gloo
gloo.CopyToRanks.backward = staticmethod(lambda ctx, gradient: gradient.clone())
""",
        "gradients",
        None,
        variant=VARIANTS["TP2"],
        framework="paddle",
    ),
    Fault(
        "gradients doubled",  # Adam hardly changes the loss; the norms show it
        """
import optimizer
right = optimizer.GlobalNorm._dygraph_clip
def doubled(self, params_grads):
    for _, gradient in params_grads:
        gradient.scale_(2.0)
    return right(self, params_grads)
optimizer.GlobalNorm._dygraph_clip = doubled
""",
        "gradients",
        None,
        framework="paddle",
    ),
)

DEEPSPEED = (
    Fault(
        "gradients summed over data-parallel ranks",
        """
import deepspeed.runtime.zero.stage_1_and_2 as stage
right = stage.DeepSpeedZeroOptimizer.__init__
def init(self, *positional, **named):
    named["gradient_average"] = False
    right(self, *positional, **named)
stage.DeepSpeedZeroOptimizer.__init__ = init
""",
        "gradients",
        None,
        variant=VARIANTS["ZeRO 1, DP2"],
        framework="deepspeed",
    ),
    Fault(
        "gradients not clipped",
        """
import engine
right = engine.configuration
engine.configuration = lambda job: {**right(job), "gradient_clipping": 0.0}
""",
        "gradients",
        None,
        variant=VARIANTS["ZeRO 1, DP2"],
        framework="deepspeed",
    ),
    Fault(
        "weight decay on norms and biases",
        """
import engine
right = engine.make_adamw
engine.make_adamw = lambda parameters, training: right([(p, 2) for p, _ in parameters], training)
""",
        "gradients",
        None,
        framework="deepspeed",
    ),
)

ONEFLOW = (
    Fault(
        "keys dealt out to the query heads by turns",
        """
import attention
right = attention.Attention.mix
def dealt(self, query, key, value, mask):
    order = [head for turn in range(self.groups) for head in range(turn, query.shape[1], self.groups)]
    mixed = right(self, attention.flow.stack([query[:, head] for head in order], 1), key, value, mask)
    heads = mixed.reshape(*mixed.shape[:2], len(order), self.head_size)
    back = sorted(range(len(order)), key=order.__getitem__)
    return attention.flow.stack([heads[:, :, place] for place in back], 2).flatten(2)
attention.Attention.mix = dealt
""",
        "first step",
        None,
        family="llama",
        framework="oneflow",
    ),
    Fault(
        "weight decay on norms and biases",
        """
import optimizer
right = optimizer.flow.optim.AdamW
def everywhere(groups, **settings):
    return right([{**group, "weight_decay": groups[0]["weight_decay"]} for group in groups], **settings)
optimizer.flow.optim.AdamW = everywhere
""",
        "gradients",
        None,
        framework="oneflow",
    ),
    Fault(
        "one process's samples taken for the whole batch",  # each batch called equal to the others': the first is used
        """
import stages
stages.Stage.batch = lambda self, array: stages.flow.tensor(array).to_global(
    placement=self.placement, sbp=stages.flow.sbp.broadcast)
""",
        "first step",
        None,
        variant=VARIANTS["DP2"],
        framework="oneflow",
    ),
)

JAX = (
    Fault(
        "keys dealt out to the query heads by turns",
        """
import attention
right = attention.mix
def dealt(query, key, value, dropout, keys):
    order = [head for turn in range(key.shape[2]) for head in range(turn, query.shape[2], key.shape[2])]
    mixed = right(query[:, :, attention.jnp.array(order)], key, value, dropout, keys)
    return mixed[:, :, attention.jnp.argsort(attention.jnp.array(order))]
attention.mix = dealt
""",
        "first step",
        None,
        family="llama",
        framework="jax",
    ),
    Fault(
        "weight decay on norms and biases",
        """
import program
right = program.adamw
program.adamw = lambda settings, held, *others: right(settings, (*held[:3], True), *others)
""",
        "gradients",
        None,
        framework="jax",
    ),
    Fault(
        "gradients summed over data-parallel ranks",  # the loss stays the mean, and clipping hides the factor from Adam
        """
import program
right = program.Program.gradients
def summed(self, held, batch, numbers):
    loss, gradients, samples = right(self, held, batch, numbers)
    return loss, {name: gradient * self.job.layout.data for name, gradient in gradients.items()}, samples
program.Program.gradients = summed
""",
        "gradients",
        None,
        variant=VARIANTS["DP2"],
        framework="jax",
    ),
)

ELSEWHERE = (*MEGATRON, *PADDLE, *DEEPSPEED, *ONEFLOW, *JAX)
