"""Faults of a mixture of experts, and of a network that has one: (kind of mixture, variant, lines of Python).

SHOWN: each changes loss, gradients or routing within two steps. HIDDEN: each is small, or late, or changes few choices.
DENSE: those of the dense models that a mixture can have too.
"""

from __future__ import annotations

import copy
from typing import Any

from faults.in_torch import FAULTS as OF_DENSE_MODELS
from layouts import MODELS, SINGLE, shallow
from matrix import VARIANTS


def mixture(router: dict[str, Any] | None = None, **experts: Any) -> dict[str, Any]:
    """The small mixture with two layers, of which the second has the experts."""
    model = copy.deepcopy(shallow(MODELS["mixture"]))
    model["experts"].update(experts)
    model["experts"]["router"].update(router or {})
    return model


DEEPSEEK = mixture(
    {"scores": "sigmoid", "scale": 2.5, "groups": {"count": 2, "chosen": 1}, "bias_rate": 0.01, "z_loss": 1e-3},
    count=8,
)
SWITCH = mixture({"normalised": False}, chosen=1, shared=0, capacity_factor=1.0)
LATENT = {
    **DEEPSEEK,
    "query_key_norm": False,
    "latent_attention": {"query_rank": 12, "key_value_rank": 16, "plain_size": 8, "rotary_size": 4, "value_size": 6},
}
KINDS = {"mixture": mixture(), "deepseek": DEEPSEEK, "switch": SWITCH, "latent": LATENT}


SHOWN = {
    "router without softmax": (
        "mixture",
        SINGLE,
        "from model import mixture\nmixture.scores_of = lambda logits, router: logits",
    ),
    "gates in the wrong order": (
        "mixture",
        SINGLE,
        """
from model import mixture
right = mixture.choose
def swapped(*arguments):
    choice = right(*arguments)
    return choice._replace(gates=choice.gates.flip(-1))
mixture.choose = swapped
""",
    ),
    "auxiliary loss off": (
        "mixture",
        SINGLE,
        "from model import mixture\nmixture.router_loss = lambda logits, *more: logits.new_zeros(())",
    ),
    "auxiliary loss said but not trained": (
        "mixture",
        SINGLE,
        "import routing\nright = routing.Tally.begin\nrouting.Tally.begin = lambda self, scale: right(self, 0.0)",
    ),
    "auxiliary loss once for each tensor rank": (
        "mixture",
        VARIANTS["TP2"],
        "import routing\nright = routing.Tally.begin\nrouting.Tally.begin = lambda self, scale: right(self, 2 * scale)",
    ),
    "auxiliary loss from scores of sigmoid that are not normalised": (
        "deepseek",
        SINGLE,
        """
import routing
from dataclasses import replace
right = routing.balance_loss
def wrong(scores, counts, experts):
    return right(scores, counts, replace(experts, router=replace(experts.router, scores="softmax")))
routing.balance_loss = wrong
""",
    ),
    "an expert that is never trained": (
        "mixture",
        SINGLE,
        """
from model import experts
def frozen(weight):
    return weight * (weight.new_tensor([1, 1, 1, 0]).view(-1, 1, 1) != 0) + weight.detach() * weight.new_tensor(
        [0, 0, 0, 1]).view(-1, 1, 1)
right = experts.grouped_product
experts.grouped_product = lambda x, weight, counts: right(x, frozen(weight), counts)
""",
    ),
    "capacity off by one": (
        "switch",
        SINGLE,
        "from model import mixture\nright = mixture.capacity_of\n"
        "mixture.capacity_of = lambda *arguments: right(*arguments) + 1",
    ),
    "capacity of the whole batch": (
        "switch",
        SINGLE,
        """
import routing
right = routing.with_room
def pooled(chosen, count, capacity):
    flat = chosen.flatten(0, 1)[None]
    return right(flat, count, capacity * chosen.shape[0]).view(chosen.shape)
routing.with_room = pooled
""",
    ),
    "the selection bias in the gates": (
        "deepseek",
        SINGLE,
        """
from model import mixture
right = mixture.choose
mixture.choose = lambda scores, bias, *more: right(scores + bias, 0 * bias, *more)
""",
    ),
    "a selection bias of each rank's own": (
        "deepseek",
        VARIANTS["EP2"],
        "from model import tallies\ntallies.data_group = lambda job: None",
    ),
    "an auxiliary loss of each context rank's own tokens": (
        "mixture",
        VARIANTS["CP2"],
        "from model import mixture\nmixture.Mixture.of_whole_sequences = lambda self, counts: counts",
    ),
    "experts' gradients not divided": (
        "mixture",
        VARIANTS["EP2"],
        """
from parallelism import expert_parallel
expert_parallel.ExpertMesh.reduce_gradients = lambda self, model: None
""",
    ),
    "experts' gradients reduced twice": (
        "mixture",
        VARIANTS["EP2 of DP4"],
        """
from parallelism import expert_parallel
right = expert_parallel.ExpertMesh.reduce_gradients
def twice(self, model):
    right(self, model)
    for parameter in expert_parallel.expert_parameters(model):
        parameter.grad *= self.gradient_ranks
    right(self, model)
expert_parallel.ExpertMesh.reduce_gradients = twice
""",
    ),
    "sharded experts' gradients divided by the ranks of the same experts": (
        "mixture",
        VARIANTS["ZeRO 1, EP2 of DP4"],
        """
from parallelism import expert_parallel
right = expert_parallel.shard_experts
def wrong(mixture, experts, *more):
    right(mixture, experts, *more)
    mixture.experts.set_gradient_divide_factor(experts.replicas)
expert_parallel.shard_experts = wrong
""",
    ),
    "rows sorted by rank and not by expert": (
        "mixture",
        VARIANTS["EP2"],
        """
import torch
from parallelism import expert_parallel
expert_parallel.by_expert = lambda counts: torch.arange(int(counts.sum()))
""",
    ),
}


ROUTER = "import routing, torch\nfrom torch.nn.functional import linear\nrouting.Router.forward = lambda self, x: "
CHOICE = """
from model import mixture
right = mixture.choose
def choose(scores, bias, experts, *more):
    choice = right(scores, bias, experts, *more)
    return choice._replace(gates=changed(choice, scores))
mixture.choose = choose
"""
MIXED = """
from model import mixture
right = mixture.Mixture.mixed
def mixed(self, tokens, choice):
    self.count = getattr(self, "count", -1) + 1
    return changed(self, right(self, tokens, choice))
mixture.Mixture.mixed = mixed
"""
LOST = """
import torch
from step import optimizer
right = optimizer.LocalAdamW.step
def step(self, *arguments):
    self.done = getattr(self, "done", 0) + 1
    before = [local.detach().clone() for local in self.locals]
    right(self, *arguments)
    for name, local, old in zip(self.names, self.locals, before):
        if self.done == 10 and name == LEFT:
            local.data.copy_(old)
optimizer.LocalAdamW.step = step
"""
NORM = """
import torch
from model import layers
def forward(self, x):
    return x * inverse(x.square().mean(-1, keepdim=True), self.eps) * self.weight
layers.RMSNorm.forward = forward
"""
TF32 = """
import routing, torch
from torch.nn.functional import linear
def rounded(x):
    bits = x.detach().float().view(torch.int32)
    return x.float() + (((bits + 0x1000) & ~0x1FFF).view(torch.float32) - x.detach().float())
routing.Router.forward = lambda self, x: linear(rounded(x), rounded(self.weight))
"""
BALANCE = """
import routing
def balance_loss(scores, counts, experts):
    shares = counts / (experts.chosen * scores.shape[1])
    return changed(scores, shares, experts)
routing.balance_loss = balance_loss
"""
MOVE = "import routing\ndef move(self, counts, rate):\n    load = counts.double()\n"
HIDDEN = {
    "router products in TF32": ("mixture", SINGLE, TF32),
    "router products in TF32, deepseek's": ("deepseek", SINGLE, TF32),
    "a router in bf16": ("mixture", SINGLE, ROUTER + "linear(x.bfloat16(), self.weight.bfloat16()).float()"),
    "the router's input in bf16": ("mixture", SINGLE, ROUTER + "linear(x.bfloat16().float(), self.weight.float())"),
    "the router's scores in bf16": (
        "mixture", SINGLE,
        "from model import mixture\nright = mixture.scores_of\n"
        "mixture.scores_of = lambda logits, router: right(logits, router).bfloat16().float()",
    ),
    "learning rate 0 in the last step": (
        "mixture", SINGLE,
        "import training\nright = training.learning_rate\n"
        "training.learning_rate = lambda schedule, step: 0.0 if step == 10 else right(schedule, step)",
    ),
    "the last update of the final norm lost": ("mixture", SINGLE, LOST.replace("LEFT", '"final_norm.weight"')),
    "the last update of a router lost": ("mixture", SINGLE, LOST.replace("LEFT", '"layers.1.mlp.router.weight"')),
    "the last update of the experts' gates lost": (
        "mixture", SINGLE, LOST.replace("LEFT", '"layers.1.mlp.experts.gate.weight"')
    ),
    "the last update of a query's norm lost": (
        "mixture", SINGLE, LOST.replace("LEFT", '"layers.0.attention.query_norm.weight"')
    ),
    "a norm's epsilon outside of the root": (
        "mixture", SINGLE, NORM + "inverse = lambda square, eps: 1 / (square.sqrt() + eps)"
    ),
    "a norm's epsilon 2e-5 for 1e-5": (
        "mixture", SINGLE, NORM + "inverse = lambda square, eps: (square + 2 * eps).rsqrt()"
    ),
    "one token of 1,024 without its experts": (
        "mixture", SINGLE,
        MIXED + "def changed(self, out):\n    keep = out.new_ones(len(out), 1)\n"
        "    keep[5] = float(self.count % 16 != 3)\n    return out * keep",
    ),
    "gates off by 1e-6": ("mixture", SINGLE, CHOICE + "changed = lambda choice, scores: choice.gates * (1 + 1e-6)"),
    "gates off by 1e-5": ("mixture", SINGLE, CHOICE + "changed = lambda choice, scores: choice.gates * (1 + 1e-5)"),
    "gates divided by their sum and 1e-6": (
        "mixture", SINGLE,
        CHOICE + "def changed(choice, scores):\n    own = scores.gather(-1, choice.experts)\n"
        "    return own / (own.sum(-1, keepdim=True) + 1e-6)",
    ),
    "gates of plain scores": (
        "mixture", SINGLE, CHOICE + "changed = lambda choice, scores: scores.gather(-1, choice.experts)"
    ),
    "gates without a gradient": ("mixture", SINGLE, CHOICE + "changed = lambda choice, scores: choice.gates.detach()"),
    "the second expert's gate without a gradient": (
        "mixture", SINGLE,
        CHOICE + "def changed(choice, scores):\n    first, second = choice.gates.split(1, -1)\n"
        "    import torch\n    return torch.cat((first, second.detach()), -1)",
    ),
    "gates in bf16": ("mixture", SINGLE, CHOICE + "changed = lambda choice, scores: choice.gates.bfloat16().float()"),
    "the gates' scale left out": ("deepseek", SINGLE, "object.__setattr__(job.model.experts.router, 'scale', 1.0)"),
    "experts' outputs in bf16": ("mixture", SINGLE, MIXED + "changed = lambda self, out: out.bfloat16().float()"),
    "attention scaled by 1/sqrt(d + 1)": (
        "mixture", SINGLE,
        """
from model import attention
from types import SimpleNamespace
right = attention.functional.scaled_dot_product_attention
def scaled(q, k, v, **more):
    return right(q, k, v, scale=(q.shape[-1] + 1)**-0.5, **more)
attention.functional = SimpleNamespace(scaled_dot_product_attention=scaled)
""",
    ),
    "RoPE's base doubled in the last layer": (
        "mixture", SINGLE,
        """
from model import attention, decoder
made = decoder.rotary_tables
def tables(size, length, base, *more):
    global other
    decoder.other = made(size, length, 2 * base, *more)
    return made(size, length, base, *more)
decoder.rotary_tables = tables
right = decoder.Block.forward
def forward(self, x, rotary=None):
    return right(self, x, decoder.other if hasattr(self.mlp, "router") else rotary)
decoder.Block.forward = forward
""",
    ),
    "weight decay on the embedding alone": (
        "mixture", SINGLE,
        "from step import optimizer\nright = optimizer.make_adamw\n"
        "optimizer.make_adamw = lambda held, training: right("
        "[(p, 2 if len(p) == job.model.vocab_size else 1) for p, _ in held], training)",
    ),
    "no weight decay on the routers": (
        "mixture", SINGLE,
        "from step import optimizer\nright = optimizer.make_adamw\n"
        "optimizer.make_adamw = lambda held, training: right("
        "[(p, 1 if tuple(p.shape) == (4, 32) else d) for p, d in held], training)",
    ),
    "no weight decay on the experts": (
        "mixture", SINGLE,
        "from step import optimizer\nright = optimizer.make_adamw\n"
        "optimizer.make_adamw = lambda held, training: right([(p, 1 if d == 3 else d) for p, d in held], training)",
    ),
    "no bias correction from step 7 on": (
        "mixture", SINGLE,
        """
from step import optimizer
right = optimizer.LocalAdamW.step
def step(self, *arguments):
    self.done = getattr(self, "done", 0) + 1
    if self.done == 7:
        for state in self.adamw.state.values():
            state["step"] += 1000000
    right(self, *arguments)
optimizer.LocalAdamW.step = step
""",
    ),
    "the balance loss of the choices alone": (
        "mixture", SINGLE,
        BALANCE + "changed = lambda scores, shares, experts: experts.count * (shares * shares).sum(-1).mean()",
    ),
    "the balance loss 1 % too large": (
        "mixture", SINGLE,
        "router = job.model.experts.router\nobject.__setattr__(router, 'auxiliary_loss', 1.01 * router.auxiliary_loss)",
    ),
    "the balance loss of the whole micro-batch": (
        "mixture", SINGLE,
        BALANCE + "changed = lambda scores, shares, experts: "
        "experts.count * (shares.mean(0) * scores.mean((0, 1))).sum()",
    ),
    "the balance loss not divided by the chosen": (
        "mixture", SINGLE,
        BALANCE + "changed = lambda scores, shares, experts: "
        "experts.chosen * experts.count * (shares * scores.mean(1)).sum(-1).mean()",
    ),
    "the z-loss off": ("deepseek", SINGLE, "object.__setattr__(job.model.experts.router, 'z_loss', 0.0)"),
    "the z-loss of the mean logit": (
        "deepseek", SINGLE,
        """
import routing
from model import mixture
def router_loss(logits, scores, counts, experts):
    router = experts.router
    balance = router.auxiliary_loss * routing.balance_loss(scores, counts, experts)
    return balance + router.z_loss * logits.mean(-1).square().mean()
mixture.router_loss = router_loss
""",
    ),
    "groups ignored": ("deepseek", SINGLE, "import routing\nrouting.within_groups = lambda scores, experts: scores"),
    "a group as strong as its best expert": (
        "deepseek", SINGLE,
        "import routing\nrouting.strength_of_groups = lambda scores, experts: "
        "scores.detach().unflatten(-1, (experts.router.groups.count, -1)).amax(-1)",
    ),
    "the selection bias moves twice as far": (
        "deepseek", SINGLE,
        "router = job.model.experts.router\nobject.__setattr__(router, 'bias_rate', 2 * router.bias_rate)",
    ),
    "the selection bias moves towards the load": (
        "deepseek", SINGLE,
        MOVE + "    self.bias -= rate * (load.mean() - load).sign().float()\nrouting.Tally.move_bias = move",
    ),
    "the selection bias moves by the load's distance": (
        "deepseek", SINGLE,
        MOVE + "    self.bias += rate * ((load.mean() - load) / load.mean()).float()\n"
        "routing.Tally.move_bias = move",
    ),
    "the selection bias left at zero": (
        "deepseek", SINGLE, "from model import tallies\ntallies.Tallies.move_biases = lambda self: None"
    ),
    "softmax for sigmoid": ("deepseek", SINGLE, "object.__setattr__(job.model.experts.router, 'scores', 'softmax')"),
    "the shared expert left out": (
        "mixture", SINGLE,
        """
from model import mixture
right = mixture.Mixture.forward
def forward(self, x):
    return right(self, x) - self.shared(x)
mixture.Mixture.forward = forward
""",
    ),
    "two experts exchange their tokens": (
        "mixture", SINGLE,
        """
from model import mixture
right = mixture.Mixture.mixed
def mixed(self, tokens, choice):
    other = choice.experts.clone()
    other[choice.experts == 0], other[choice.experts == 1] = 1, 0
    return right(self, tokens, choice._replace(experts=other))
mixture.Mixture.mixed = mixed
""",
    ),
    "the experts' gate and up exchanged": (
        "mixture", SINGLE,
        """
from model import experts
def mlp(self, rows, counts):
    return self.down(experts.gated(self.activation, self.up(rows, counts), self.gate(rows, counts)), counts)
experts.Experts.mlp = mlp
""",
    ),
    "the third expert for the second from step 8 on": (
        "mixture", SINGLE,
        """
import routing
right, tally = routing.best, routing.Tally.begin
steps = []
def begin(self, scale):
    steps.append(1)
    tally(self, scale)
routing.Tally.begin = begin
def best(scores, number):
    found = right(scores, number + 1)
    late = len(steps) >= 8
    return found[..., [0, 2]] if late and number == 2 else found[..., :number]
routing.best = best
""",
    ),
    "one choice of a step flipped": (
        "mixture", SINGLE,
        """
import routing
right = routing.best
passes = []
def best(scores, number):
    passes.append(1)
    found = right(scores, scores.shape[-1])
    chosen = found[..., :number].clone()
    if len(passes) == 5:
        chosen[0, 7, -1] = found[0, 7, number]
    return chosen
routing.best = best
""",
    ),
}  # fmt: skip

# Of a GPT: they name parameters, or parts, that a mixture does not have, or need as many keys as queries. The norms of
# a mixture's gradients are below the clip, so that no parameter is clipped by its own.
_OF_A_GPT = (
    "by its own norm",
    "softmax in bf16",
    "GELU",
    "LayerNorm",
    "tied",
    "learned positions",
    "bias",
    "layers.2",
    '["2"]',
    "norms and biases",
)
DENSE = {
    f"dense: {fault.name}": ("mixture", SINGLE, fault.code)
    for fault in OF_DENSE_MODELS
    if fault.framework == "torch"
    and fault.variant == SINGLE
    and not any(word in fault.name + fault.code for word in _OF_A_GPT)
}
FAULTS = {**SHOWN, **HIDDEN, **DENSE}
