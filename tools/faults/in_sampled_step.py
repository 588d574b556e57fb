"""Faults of one training in 16 or 8 bits that a sampled step is to show, and how its layers judge them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layouts import MODELS, SINGLE, Variant, events, launch, planted, script_of, small_job
from levelfield.judge.spot_checks import spot_check_layers
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.case import Work
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import AlignmentLayer
from matrix import VARIANTS

STEPS, FIRST = 8, 6  # of the training; the first step of its window, which is the sampled one

QUANTISED = """
import torch
def in_bits(tensor, kind):
    largest = tensor.detach().abs().amax().float()
    scale = torch.where(largest > 0, torch.finfo(kind).max / largest, 1.0)
    return ((tensor.float() * scale).to(kind).float() / scale).to(tensor.dtype)
"""
LATE = """
import training
steps_begun = []
launch = training.Trainer.launch
def launch_counted(self, batch):
    steps_begun.append(batch.step)
    return launch(self, batch)
training.Trainer.launch = launch_counted
is_late = lambda: len(steps_begun) >= 5
"""
GROUPS = """
from step import optimizer
make_adamw = optimizer.make_adamw
def make_faulty_adamw(tensors, training):
    adamw = make_adamw(tensors, training)
    for group in adamw.param_groups:
        {change}
    return adamw
optimizer.make_adamw = make_faulty_adamw
"""
ROUNDED_STEP = """
from step import optimizer
step = optimizer.FusedStep.step
def rounded_step(self, divisor, skip):
    step(self, divisor, skip)
    for tensor in {tensors}:
        tensor.detach().copy_(tensor.detach().bfloat16().float())
optimizer.FusedStep.step = rounded_step
"""
CAST_PRODUCT = """
from model import casts
product = casts.StepLinear.product
def faulty_product(self, x, head_size=None):
    {change}
    return product(self, x, head_size)
casts.StepLinear.product = faulty_product
"""
ATTENTION = """
import parallelism.parallelize as parallelize
choose_attention = parallelize.choose_attention
def choose_faulty(*settings):
    attend = choose_attention(*settings)
    def faulty(query, key, value):
        {change}
        return attend(query, key, value)
    return faulty
parallelize.choose_attention = choose_faulty
"""
FP8_ROUNDED = """
import torch
from step import fp8_rounded
rounded = fp8_rounded.rounded
def faulty(tensor, kind):
    {change}
fp8_rounded.rounded = faulty
"""
NO_CLIPPING = """
import torch, training
training.clip_divisor = lambda norm, limit, scale: torch.ones_like(norm).float()
"""


@dataclass(frozen=True)
class SampledFault:
    """code: lines of Python that run before the training starts. layer: the one that fails; None: none does.

    None fails for queries and scores: with the small models' weights each token attends to all alike, so that wrong
    scores change the output by less than bf16 rounds it.
    """

    name: str
    precision: str
    code: str
    layer: str | None
    family: str = "gpt"
    variant: Variant = SINGLE


FAULTS = (
    SampledFault(
        "E4M3 weights in all products, late", "bf16",
        QUANTISED + LATE
        + CAST_PRODUCT.format(change="is_late() and self.weight.copy_(in_bits(self.weight, torch.float8_e4m3fn))"),
        "products",
    ),
    SampledFault(
        "E4M3 gradients in the backward products, late",
        "bf16",
        QUANTISED
        + LATE
        + """
from model import casts
backward = casts.CastLinear.backward
def quantised(context, *gradients):
    if is_late():
        gradients = [in_bits(gradient, torch.float8_e4m3fn) for gradient in gradients]
    return backward(context, *gradients)
casts.CastLinear.backward = staticmethod(quantised)
""",
        "products",
    ),
    SampledFault(
        "E4M3 gradients, not E5M2",
        "fp8",
        FP8_ROUNDED.format(change="return rounded(tensor, torch.float8_e4m3fn)"),
        "products",
        "llama",
    ),
    SampledFault(
        "bf16 products in the backward pass",
        "fp8",
        """
from step import fp8_rounded
backward = fp8_rounded._Products.backward
def in_bf16(ctx, gradient):
    numbers, factor, weights, weight_factor = ctx.saved_tensors
    of_x, of_weight, of_bias = backward(ctx, gradient)
    return (gradient.float() @ weights.float() * weight_factor).to(of_x.dtype), of_weight, of_bias
fp8_rounded._Products.backward = staticmethod(in_bf16)
""",
        "products",
        "llama",
    ),
    SampledFault(
        "E4M3 values in attention, late", "bf16",
        QUANTISED + LATE
        + ATTENTION.format(change="value = in_bits(value, torch.float8_e4m3fn) if is_late() else value"),
        "products",
    ),
    SampledFault(
        "E4M3 queries in attention, late", "bf16",
        QUANTISED + LATE
        + ATTENTION.format(change="query = in_bits(query, torch.float8_e4m3fn) if is_late() else query"),
        "products",
    ),
    SampledFault(
        "biases left out, late", "bf16",
        LATE + CAST_PRODUCT.format(change="self.bias is not None and is_late() and self.bias.zero_()"), "products",
    ),
    SampledFault(
        "weights of the step before, in the forward pass", "bf16",
        """
from model import casts
make = casts.StepCasts.make
def make_late(self):
    previous = getattr(self, "previous", None) or [source.clone() for source in self.sources]
    self.previous, now = [source.clone() for source in self.sources], self.sources
    self.sources = previous
    make(self)
    self.sources = now
casts.StepCasts.make = make_late
""",
        "products",
    ),
    SampledFault(
        "EMA weights in the forward pass", "bf16",
        """
from model import casts
make = casts.StepCasts.make
def make_averages(self):
    self.averages = getattr(self, "averages", None) or [source.clone() for source in self.sources]
    for average, source in zip(self.averages, self.sources):
        average.lerp_(source, 0.1)
    now, self.sources = self.sources, self.averages
    make(self)
    self.sources = now
casts.StepCasts.make = make_averages
""",
        "products",
    ),
    SampledFault(
        "attention skipped in one layer, late", "bf16",
        LATE + """
from model import decoder
forward, blocks = decoder.Block.forward, []
def skipping(self, x, rotary=None):
    if self not in blocks:
        blocks.append(self)
    if blocks.index(self) == 2 and is_late():
        unused = sum(parameter.sum() for parameter in (*self.attention.parameters(), *self.attention_norm.parameters()))
        return x + 0 * unused.to(x.dtype) + self.mlp(self.mlp_norm(x))
    return forward(self, x, rotary)
decoder.Block.forward = skipping
""",
        "products",
    ),
    SampledFault(
        "a window of attention that is 4 tokens too short", "bf16",
        """
import parallelism.parallelize as parallelize
choose = parallelize.choose_attention
length = job.training.sequence_length
parallelize.choose_attention = lambda name, dropout, stream, window: choose(name, dropout, stream, length - 4)
""",
        "products",
    ),
    SampledFault(
        "scores that are not divided by the root of the head size", "bf16",
        ATTENTION.format(change="query = query * query.shape[-1] ** 0.5"), "products",
    ),
    SampledFault(
        "a norm's epsilon of 1e-2", "bf16",
        """
from model import layers
forward = layers.LayerNorm.forward
def forward_with_epsilon(self, x, *branch, kernel=None):
    self.eps = 1e-2
    return forward(self, x, *branch, kernel=kernel)
layers.LayerNorm.forward = forward_with_epsilon
""",
        "products",
    ),
    SampledFault(
        "bf16 products in one layer", "fp8",
        """
from step import fp8_rounded
from torch.nn import functional
forward, layers = fp8_rounded.RoundedLinear.forward, []
def mixed(self, x):
    if self not in layers:
        layers.append(self)
    return functional.linear(x, self.weight.to(x.dtype)) if layers.index(self) == 4 else forward(self, x)
fp8_rounded.RoundedLinear.forward = mixed
""",
        "products", "llama",
    ),
    SampledFault("E5M2 forward", "fp8", FP8_ROUNDED.format(change="return rounded(tensor, torch.float8_e5m2)"),
                 "products", "llama"),
    SampledFault(
        "E5M2 weights", "fp8",
        FP8_ROUNDED.format(change="return rounded(tensor, torch.float8_e5m2 if tensor.requires_grad and "
                                  "tensor.dim() == 2 else kind)"),
        "products", "llama",
    ),
    SampledFault(
        "scales 16 times too large", "fp8",
        FP8_ROUNDED.format(change="""largest, most = tensor.detach().abs().amax().float(), torch.finfo(kind).max
    scale = torch.where(largest > 0, most / largest * 16, 1.0)
    return (tensor.float() * scale).clamp(-most, most).to(kind), 1 / scale"""),
        "products", "llama",
    ),
    SampledFault(
        "scales 16 times too small", "fp8",
        FP8_ROUNDED.format(change="""largest, most = tensor.detach().abs().amax().float(), torch.finfo(kind).max
    scale = torch.where(largest > 0, most / largest / 16, 1.0)
    return (tensor.float() * scale).to(kind), 1 / scale"""),
        "products", "llama",
    ),
    SampledFault("no clipping", "fp8",
                 NO_CLIPPING,
                 "update"),
    SampledFault("no clipping", "bf16",
                 NO_CLIPPING,
                 "update"),
    SampledFault(
        "a learning rate 1.5 % too large", "bf16",
        """
from step import optimizer
set_rate = optimizer.LocalAdamW.set_learning_rate
optimizer.LocalAdamW.set_learning_rate = lambda self, value: set_rate(self, value * 1.015)
""",
        "update",
    ),
    SampledFault("decay on every parameter", "bf16",
                 GROUPS.format(change="group['weight_decay'] = training.optimizer.weight_decay"), "update"),
    SampledFault("no decay", "bf16", GROUPS.format(change="group['weight_decay'] = 0.0"), "update"),
    SampledFault("the root of Adam's epsilon", "bf16",
                 GROUPS.format(change="group['eps'] = training.optimizer.eps ** 0.5"), "update"),
    SampledFault("beta 2 of 0.96", "bf16", GROUPS.format(change="group['betas'] = (0.9, 0.96)"), "update"),
    SampledFault("moments in bf16", "bf16", ROUNDED_STEP.format(tensors="self.means"), "update"),
    SampledFault("second moments in bf16", "bf16", ROUNDED_STEP.format(tensors="self.squares"), "update"),
    SampledFault("weights in bf16", "bf16", ROUNDED_STEP.format(tensors="self.parameters"), "update"),
    SampledFault(
        "gradients summed in bf16", "bf16",
        """
from step import optimizer
take = optimizer.LocalAdamW.take_gradients
def take_rounded(self):
    take(self)
    for local in self.locals:
        local.grad.copy_(local.grad.bfloat16().float())
optimizer.LocalAdamW.take_gradients = take_rounded
""",
        "update",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class HonestTraining:
    """A training without a fault."""

    precision: str
    family: str = "gpt"
    variant: Variant = SINGLE

    def __str__(self) -> str:
        return f"{self.family}, {self.precision}, {self.variant.name}"

    def check(self, folder: Path, layers: Sequence[str], framework: str = "torch", python: Path | None = None) -> None:
        """Train it, and raise AssertionError unless it gives these layers and all hold."""
        sampled = sampled_layers(folder, self.precision, self.family, self.variant, framework=framework, python=python)
        assert [layer.name for layer in sampled] == list(layers) and failed_layer(sampled) is None, sampled


# The first ones are trained by `make test`.
HONEST = (
    *(HonestTraining("fp32", "gpt", VARIANTS["ZeRO 3, DP2"]), HonestTraining("fp8", "llama")),
    HonestTraining("bf16", "gpt", VARIANTS["recompute full"]),
    HonestTraining("bf16", "llama", VARIANTS["TP2 sequence parallel"]),
    HonestTraining("bf16", "gpt", VARIANTS["ZeRO 3, DP2"]),
    HonestTraining("bf16", "llama", VARIANTS["CP2"]),
    *(
        HonestTraining("bf16", "gpt", VARIANTS[name])
        for name in ("DP2", "TP2", "PP2", "PP2 interleaved", "ZeRO 3, DP2 x TP2")
    ),
    *(HonestTraining(precision, "llama") for precision in ("fp32", "bf16", "fp16")),
    *(HonestTraining(precision) for precision in ("fp32", "bf16", "fp16", "fp8")),
    HonestTraining("fp8", "llama", VARIANTS["ZeRO 3, DP2"]),
)


def sampled_layers(
    folder: Path, precision: str, family: str = "gpt", variant: Variant = SINGLE, code: str = "",
    framework: str = "torch", python: Path | None = None, seed: str = "a seed",
) -> Sequence[AlignmentLayer]:  # fmt: skip
    """Train the small model of the family for STEPS steps, and return the layers that its sampled step gives.

    Every rank is told before the training, as if the platform had drawn the window's first step.
    """
    # every norm is above the limit, so that clipping shows
    job = {**small_job(MODELS[family], variant, STEPS, precision, gradient_clip=0.5), "spot_check": True}
    job["window"] = {"first_step": FIRST, "last_step": STEPS}
    events = folder / "events"
    events.mkdir(parents=True)
    for rank in range(variant.ranks):
        (events / f"rank{rank}.spot_check").write_text(f"{seed}, {rank}")
    script = planted(folder, framework, code) if code else script_of(framework)
    for rank, end in enumerate(launch(job, events, script, python)):
        if end.returncode:
            raise RuntimeError(f"rank {rank}: {end.output[-3000:]}")
    work = Work.model_validate(
        {
            **{key: job[key] for key in ("model", "training", "data", "window")},
            "acceptance": {"final_loss_below_fraction": 1.0, "tail_steps": 1},
            "limits": {"heartbeat_seconds": 60, "step_seconds": 60, "start_seconds": 60},
        }
    )
    return spot_check_layers(read_raw(RunPaths(folder)), work, job["accumulation"], job["layout"]["data"])


def sampled_names(folder: Path, family: str, variant: Variant, framework: str, python: Path) -> list[list[str]]:
    """Train in float32, and return the names of what each rank sampled in each step, but of updates, in order."""
    sampled_layers(folder, "fp32", family, variant, framework=framework, python=python)
    steps = read_raw(RunPaths(folder)).sampled
    return [sorted(o.name for o in step.operations if o.kind != "update") for step in steps]


def figures(
    folder: Path, precision: str, framework: str = "torch", python: Path | None = None, **settings: Any
) -> list[tuple[float, float]]:
    """Train the small GPT for a few steps and return (loss, gradient norm) of each. settings: more keys of the job."""
    window = {"first_step": 2, "last_step": 4}
    job = {**small_job(MODELS["gpt"], SINGLE, 4, precision), "window": window, **settings}
    folder.mkdir()
    (folder / "rank0.spot_check").write_text("a seed")
    (end,) = launch(job, folder, script_of(framework), python)
    if end.returncode or (folder / "rank0.spot_check.jsonl").exists() != job.get("spot_check", False):
        raise RuntimeError(end.output[-3000:])
    return [(event["loss"], event["grad_norm"]) for event in events(folder, 0) if event["event"] == "step"]


def failed_layer(layers: Sequence[AlignmentLayer]) -> str | None:
    return next((layer.name for layer in layers if layer.passed is False), None)


def trained_layers(fault: SampledFault) -> Sequence[AlignmentLayer]:
    with tempfile.TemporaryDirectory() as folder:
        return sampled_layers(Path(folder), fault.precision, fault.family, fault.variant, fault.code)
