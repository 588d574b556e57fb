"""Slow things that are planted in small trainings, whose steps are recorded: their code, and what is to be told.

A plant notes how long it really took, since a busy machine makes it longer.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

EACH_MS, ONCE_MS = 50.0, 200.0  # one planted delay of a module, in each of four micro-batches; one of a step
EACH_OF_JAX_MS = 25.0  # of each layer


@dataclass(frozen=True)
class Plant:
    """code: what makes the training slow, after the framework's HELP. part, where: what is to be told."""

    code: str
    part: str
    where: str

    def code_for_rank(self, rank: int) -> str:
        return f"if job.rank == {rank}:\n" + textwrap.indent(self.code, "    ")


NOTED = """
import contextlib, itertools, os, time
from levelfield.worker import Batches
turn = [None]  # the plant whose turn it is; None: of every one
afterwards = []  # called with the next turn, between two steps
def is_on(plant):
    return turn[0] in (None, plant)
# opened once: another clock may count what a note takes
notes = open(os.path.join(job.events_dir, f"planted{job.rank}"), "a", buffering=1)
def note(plant, begin, end):
    print(begin, end, plant, sep="|", file=notes)
@contextlib.contextmanager
def clock(plant):
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        note(plant, begin, time.monotonic_ns())
def noted(plant, what):
    if is_on(plant):
        with clock(plant):
            what()
def take_turns(order):
    # a pair of further steps, of which the second is recorded, has one plant
    from levelfield.worker import step_profile as further
    own, steps = further._step, itertools.count(1)
    def step(batches, batch, trainer, profile):
        if profile is not None:
            type(profile).alone = None  # nobody reads it here
        try:
            return own(batches, batch, trainer, profile)
        finally:
            turn[0] = order[next(steps) // 2 % len(order)]
            for each in afterwards:
                each(turn[0])
    further._step, turn[0] = step, ""
    own_steps = further._run_steps
    def run_steps(*arguments):
        turn[0] = order[0]
        return own_steps(*arguments)
    further._run_steps = run_steps
read = Batches.batch
def slow_reader(ms):
    def batch(self, step):
        noted("a reader", lambda: time.sleep(ms / 1e3))
        return read(self, step)
    Batches.batch = batch
"""
READER = f"slow_reader({ONCE_MS})"
TORCH = (
    NOTED
    + f"""
import gc, torch
from levelfield.worker import interface
large = torch.rand(1024, 1024)  # an operation of some ms: a busy machine seldom interrupts between two
own_steps, plants = interface.train_steps, []
def train_steps(job, recorder, trainer):
    for plant in plants:
        plant(trainer)
    own_steps(job, recorder, trainer)
interface.train_steps = train_steps  # before a training imports it
def in_module(plant, end, what):
    def put(trainer):
        model = trainer.chunks[0] if hasattr(trainer, "chunks") else trainer.model
        module, = [module for name, module in model.named_modules() if ("." + name).endswith("." + end)]
        module.register_forward_pre_hook(lambda *_: noted(plant, what))
    plants.append(put)
def in_method(plant, owner, method, what):
    def put(trainer):
        found = getattr(trainer, owner)
        own = getattr(found, method)
        def call(*arguments, **named):
            noted(plant, what)
            return own(*arguments, **named)
        setattr(found, method, call)
    plants.append(put)
def busy(work, ms):
    until = time.monotonic() + ms / 1e3
    with torch.no_grad():
        while time.monotonic() < until:
            work()
nap = lambda: time.sleep({EACH_MS / 1e3})
"""
)
GARBAGE = """
class Node: pass
def litter():
    if not is_on("garbage"):
        return
    gc.disable()
    nodes = [Node() for _ in range(200_000)]
    for node in nodes: node.other = node
    del nodes, node
    noted("garbage", gc.collect)
    gc.enable()
def put(trainer):
    own = trainer.finish
    def finish(batch):
        litter()
        return own(batch)
    trainer.finish = finish
plants.append(put)
"""
# The core's own clock: its call without the choice of a kernel, and from its output's gradient to the first of its
# inputs'. Autograd runs what was made last first, so all of the core's backward operations lie between.
MATH = """
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel
fused = functional.scaled_dot_product_attention
def by_math(query, key, value, *others, **named):
    with sdpa_kernel(SDPBackend.MATH) if is_on("math") else contextlib.nullcontext(), clock("math"):
        mixed = fused(query, key, value, *others, **named)
    begun = []
    mixed.register_hook(lambda _: begun.append(time.monotonic_ns()))
    def reached(_):
        if begun:
            note("math", begun.pop(), time.monotonic_ns())
    for each in (query, key, value):
        each.register_hook(reached)
    return mixed
functional.scaled_dot_product_attention = by_math
"""
AGAIN = """
import gc
from step import recompute as again
gc.disable()  # the clock would count what the record has as garbage collection
def put(trainer):
    for block in trainer.model.layers.values():
        block.forward = switched(block.forward)
def switched(own):
    def timed(*inputs):
        if torch._C._current_graph_task_id() < 0:  # not in a backward pass
            return own(*inputs)
        with clock("recomputation"):
            return own(*inputs)
    def forward(*inputs):
        return again._run(timed, "full", False, *inputs) if is_on("recomputation") else own(*inputs)
    return forward
plants.append(put)
"""


def plants_of(framework: str) -> dict[str, Plant]:
    """Return the plants of a framework, each by its name in the code."""
    return {"jax": IN_JAX, "paddle": IN_PADDLE}.get(framework) or _on_torch(framework)


def help_of(framework: str) -> str:
    return {"jax": JAX, "paddle": PADDLE}.get(framework, TORCH)


def _on_torch(framework: str) -> dict[str, Plant]:
    attention, norm = "layers.1.attention", "layers.0.mlp_norm"
    owner = "engine" if framework == "deepspeed" else "optimizer"
    if framework == "megatron":
        attention, norm = "layers.1.self_attention", "layers.0.pre_mlp_layernorm"
    return {
        "a sleep": Plant(f'in_module("a sleep", "{attention}", nap)', "host", "layers.1.attention"),
        "a norm": Plant(
            f'in_module("a norm", "{norm}", lambda: busy(lambda: large.sin(), {EACH_MS}))', "elementwise", norm
        ),
        "a product": Plant(
            f'in_module("a product", "layers.0.mlp", lambda: busy(lambda: large @ large, {EACH_MS}))',
            "mlp", "layers.0.mlp",
        ),
        "an optimizer": Plant(
            f'in_method("an optimizer", "{owner}", "step", lambda: busy(lambda: large.exp(), {ONCE_MS}))',
            "optimizer", f"{owner}.step",
        ),
        "a reader": Plant(READER, "input", "input"),
    }  # fmt: skip


JAX = (
    NOTED
    + """
import jax
import attention, decoder, program
from grid import vary
from jax import numpy as jnp
def slow(x, plant, ms):
    # x, after a while; its derivative is quick
    def wait(value):
        noted(plant, lambda: time.sleep(ms / 1e3))
        return value
    same = jax.custom_jvp(lambda x: vary(jax.pure_callback(wait, x, x), tuple(jax.typeof(x).mat.varying)))
    same.defjvp(lambda primals, tangents: (same(*primals), *tangents))
    return same(x)
def around(owner, name, place, change, when=lambda *arguments: True):
    # change: of the argument with the number `place`
    own = getattr(owner, name)
    def call(*arguments):
        if when(*arguments):
            arguments = (*arguments[:place], change(arguments[place]), *arguments[place + 1:])
        return own(*arguments)
    setattr(owner, name, call)
def products(x):
    large = jnp.full((256, 256), 1e-3) + x.ravel()[0] * 1e-9
    for _ in range(40):
        large = large @ large
    return x + large[0, 0] * 1e-9
"""
)
IN_JAX = {
    "a norm": Plant(
        f'around(decoder, "norm", 1, lambda x: slow(x, "a norm", {EACH_OF_JAX_MS}), lambda *a: a[3] == "mlp_norm")',
        "elementwise", "layers.*.mlp_norm",
    ),
    "an mlp": Plant(
        f'around(decoder, "mlp", 1, lambda x: slow(x, "an mlp", {EACH_OF_JAX_MS}))', "mlp", "layers.*.mlp"
    ),
    "a core": Plant(
        f'around(attention, "mix", 0, lambda x: slow(x, "a core", {EACH_OF_JAX_MS}))',
        "attention core", "layers.*.attention",
    ),
    "an optimizer": Plant(
        # of the final norm's weight: it alone has one axis
        f'around(program, "adamw", 2, lambda x: slow(x, "an optimizer", {ONCE_MS}), lambda *a: a[2].ndim == 1)',
        "optimizer", "optimizer.step",
    ),
}  # fmt: skip
PRODUCT = 'around(decoder, "mlp", 1, products)'
PADDLE = (
    NOTED
    + """
import paddle, attention, decoder, layers, mlp, optimizer
def busy(work, ms):
    large, until = paddle.rand([1024, 1024]), time.monotonic() + ms / 1e3
    with paddle.no_grad():
        while time.monotonic() < until:
            work(large)
made = decoder.Block.__init__
def init(self, *arguments):
    made(self, *arguments)
    places = {0: (self.mlp_norm, self.mlp), 1: (self.attention,)}
    for layer in places.get(self.index, ()):
        layer.is_slow = True
decoder.Block.__init__ = init
def around(owner, name, plant, what, when=lambda self: getattr(self, "is_slow", False)):
    own = getattr(owner, name)
    def call(self, *arguments):
        if when(self):
            noted(plant, what)
        return own(self, *arguments)
    setattr(owner, name, call)
"""
)
IN_PADDLE = {
    "a sleep": Plant(
        f'around(attention.Attention, "forward", "a sleep", lambda: time.sleep({EACH_MS / 1e3}))',
        "host", "layers.1.attention",
    ),
    "a norm": Plant(
        f'around(layers.RMSNorm, "forward", "a norm", lambda: busy(lambda x: x.sin(), {EACH_MS}))',
        "elementwise", "layers.0.mlp_norm",
    ),
    "a product": Plant(
        f'around(mlp.SwigluMLP, "forward", "a product", lambda: busy(lambda x: x @ x, {EACH_MS}))',
        "mlp", "layers.0.mlp",
    ),
    "an optimizer": Plant(
        f'around(optimizer.AdamW, "step", "an optimizer", lambda: busy(lambda x: x.exp(), {ONCE_MS}), lambda _: True)',
        "optimizer", "optimizer.step",
    ),
    "a reader": Plant(READER, "input", "input"),
}  # fmt: skip
# Each block takes long, with a clock of its own for its two passes.
LATE = """
from model import decoder
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, begun):
        ctx.begun = begun
        time.sleep(0.2)
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        ctx.begun.append(time.monotonic_ns())
        time.sleep(0.4)
        return gradient, None
block = decoder.Block.forward
def late(self, x, rotary=None):
    begun = []
    with clock("forward"):
        mixed = Late.apply(block(self, x, rotary), begun)
    def reached(_):
        if begun:  # a stage receives into the same tensor again, which keeps former hooks
            note("backward", begun.pop(), time.monotonic_ns())
    x.register_hook(reached)
    return mixed
decoder.Block.forward = late
"""
