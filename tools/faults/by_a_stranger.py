"""Faults of a training by somebody who had read neither the sampled step's checks nor the faults they were made with.

Those named "late" begin at step 5. `layer` is what a trial gave: None where no layer of the sampled steps fails. Those
that had none at first showed which checks were missing.
"""

from __future__ import annotations

from faults.in_sampled_step import ATTENTION, FP8_ROUNDED, GROUPS, LATE, QUANTISED, SampledFault

ALWAYS = "is_late = lambda: True\n"
THROUGH = """
import torch
from torch.nn import functional
class Through(torch.autograd.Function):
    @staticmethod
    def forward(context, x, change):
        return change(x)
    @staticmethod
    def backward(context, gradient):
        return gradient, None
"""
BLOCKS = """
from model import decoder
now, make_block, run_block = [0], decoder.Block.__init__, decoder.Block.forward
def make_numbered(self, model, attend, layer, length):
    make_block(self, model, attend, layer, length)
    self.number = layer
def run_numbered(self, x, rotary=None):
    now[0] = self.number
    return run_block(self, x, rotary)
decoder.Block.__init__, decoder.Block.forward = make_numbered, run_numbered
"""
TF32 = """
import torch
from model import head_loss, onednn
exact = onednn.product
def tf32(tensor):
    return ((tensor.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
def coarse(x, weight, bias=None):
    return exact(tf32(x), tf32(weight), bias) if is_late() else exact(x, weight, bias)
"""
MASKED = """
import torch
from torch.nn import functional
def masked(query, key, value, mask):
    heads = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=query.shape[2] != key.shape[2])
    return mixed.transpose(1, 2)
"""
GRADIENTS = """
import torch
from step import optimizer
take_gradients = optimizer.LocalAdamW.take_gradients
def take_faulty(self):
    take_gradients(self)
    for name, local in zip(self.names, self.locals):
        {change}
optimizer.LocalAdamW.take_gradients = take_faulty
"""
MICRO_BATCHES = """
import torch, training
right_gradients = training.Trainer.gradients
def faulty_gradients(self, inputs, targets, keep):
    if not is_late():
        return right_gradients(self, inputs, targets, keep)
    count, total = self.job.accumulation, torch.zeros(1)
    for micro in range(count):
        loss = self.runner(inputs[micro], targets[micro], self.loss_scale.value / count)
        {change}
        total += loss.detach()
    return total
training.Trainer.gradients = faulty_gradients
"""
INPUTS = """
import training
right_gradients = training.Trainer.gradients
def faulty_gradients(self, inputs, targets, keep):
    if is_late():
        {change}
    return right_gradients(self, inputs, targets, keep)
training.Trainer.gradients = faulty_gradients
"""
STEP = """
import torch
from step import optimizer
step = optimizer.FusedStep.step
def faulty_step(self, divisor, skip):
    {before}
    step(self, divisor, skip)
    {after}
optimizer.FusedStep.step = faulty_step
"""
LOSS = """
import torch
from model import head_loss
cross_entropy = head_loss.cross_entropy_
def faulty_loss(logits, targets, group):
    plain = logits.float()
    plain = plain.clone() if plain is logits else plain
    loss = cross_entropy(logits, targets, group)
    if not is_late():
        return loss
    {change}
    return loss
head_loss.cross_entropy_ = faulty_loss
"""
LEFT_OUT = """
    each = torch.nn.functional.cross_entropy(plain, targets, reduction="none")
    factor = (len(keep) / keep.sum()) * keep
    logits.mul_(factor[:, None].to(logits.dtype))
    loss = (each * factor).sum()
"""
CAST_BACKWARD = """
import torch
from model import casts
linear_forward, linear_backward = casts.CastLinear.forward, casts.CastLinear.backward
def forward(context, *settings):
    context.number = now[0]
    return linear_forward(context, *settings)
def backward(context, *gradients):
    x, _, _, _, _, *parameters = linear_backward(context, *gradients)
    {change}
    return x, None, None, None, None, *parameters
casts.CastLinear.forward, casts.CastLinear.backward = staticmethod(forward), staticmethod(backward)
"""
ROTARY = """
import torch
from model import attention
rotate = attention.rotate
def faulty_rotate(x, tables):
    {change}
    return rotate(x, tables)
attention.rotate = faulty_rotate
"""
NORM = """
import torch
from torch.nn import functional
from model import layers
norm_forward = layers.{kind}.forward
def faulty_norm(self, x, *branch, kernel=None):
    {change}
    return norm_forward(self, x, *branch, kernel=kernel)
layers.{kind}.forward = faulty_norm
"""
MLP = """
from torch.nn import functional
from model import decoder
mlp_forward = decoder.MLP.forward
def faulty_mlp(self, x):
    {change}
    return mlp_forward(self, x)
decoder.MLP.forward = faulty_mlp
"""
RATE = """
from step import optimizer
set_rate = optimizer.LocalAdamW.set_learning_rate
optimizer.LocalAdamW.set_learning_rate = lambda self, value: set_rate(self, {rate})
"""
FP8_LINEAR = """
import torch
from step import fp8_rounded
linear_forward = fp8_rounded.RoundedLinear.forward
def faulty_linear(self, x):
    {change}
    return linear_forward(self, x)
fp8_rounded.RoundedLinear.forward = faulty_linear
"""
SCALES = """
import torch
largest_before, scales_of_start = {}, {}
def scale_now(tensor, kind):
    return torch.finfo(kind).max / tensor.detach().abs().amax().float().clamp(min=1e-30)
def first_scale(tensor, kind):
    return scales_of_start.setdefault(tensor.data_ptr(), scale_now(tensor, kind))
def scale_before(tensor, kind):
    now = scale_now(tensor, kind)
    before = largest_before.get(tuple(tensor.shape), now)
    largest_before[tuple(tensor.shape)] = now
    return before
def scaled(tensor, kind, scale):
    most = torch.finfo(kind).max
    return (tensor.float() * scale).clamp(-most, most).to(kind), 1 / scale
"""
E4M3, E5M2 = "torch.float8_e4m3fn", "torch.float8_e5m2"

IN_FP32 = (
    SampledFault(
        "TF32 in the blocks' outputs and input gradients, late",
        "fp32",
        LATE + TF32 + "onednn.product = coarse",
        "products",
    ),
    SampledFault(
        "TF32 in the blocks' weight gradients",
        "fp32",
        ALWAYS
        + TF32
        + """
def backward(context, gradient):
    x, weight = context.saved_tensors
    rows = gradient.flatten(0, -2)
    weights = tf32(rows).t() @ tf32(x.flatten(0, -2))
    return exact(gradient, weight.t()), weights, rows.sum(0) if context.bias else None
onednn.OneDnnLinear.backward = staticmethod(backward)
""",
        "products",
    ),
    SampledFault("TF32 in the head", "fp32", ALWAYS + TF32 + "head_loss.product = coarse", "products"),
    SampledFault(
        "bf16 values in one layer's attention, late",
        "fp32",
        LATE
        + THROUGH
        + BLOCKS
        + ATTENTION.format(
            change="value = Through.apply(value, lambda x: x.bfloat16().float()) "
            "if is_late() and now[0] == 2 else value"
        ),
        "products",
    ),
    SampledFault(
        "scores divided by the hidden size's root",
        "fp32",
        ATTENTION.format(change="query = query * (1 / query.shape[2]) ** 0.5"),
        "products",
    ),
    SampledFault(
        "each token sees the next one, late",
        "fp32",
        LATE
        + MASKED
        + "leak = lambda n: torch.ones(n, n, dtype=torch.bool).tril(1)\n"
        + ATTENTION.format(change="if is_late(): return masked(query, key, value, leak(query.shape[1]))"),
        "products",
    ),
    SampledFault(
        "a norm's variance divided by n - 1, late",
        "fp32",
        LATE
        + NORM.format(
            kind="LayerNorm",
            change="if is_late(): return functional.layer_norm("
            "x, self.normalized_shape, self.weight * (1 - 1 / x.shape[-1]) ** 0.5, self.bias, self.eps)",
        ),
        "products",
    ),
    SampledFault(
        "learned positions shifted by one",
        "fp32",
        ALWAYS
        + """
from model import layers
positions = layers.Positions.forward
layers.Positions.forward = lambda self, n: positions(self, n).roll(1, 0) if is_late() else positions(self, n)
""",
        "products",
    ),
    SampledFault(
        "rotary base 500,000 for 10,000",
        "fp32",
        """
from model import decoder
tables = decoder.rotary_tables
decoder.rotary_tables = lambda size, length, base, *rest: tables(size, length, 5e5, *rest)
""",
        "products",
        "llama",
    ),
    SampledFault(
        "rotary tables in bf16",
        "fp32",
        """
from model import decoder
tables = decoder.rotary_tables
decoder.rotary_tables = lambda *settings: tuple(table.bfloat16().float() for table in tables(*settings))
""",
        "products",
        "llama",
    ),
    SampledFault(
        "one layer's residual branch times 0.7",
        "fp32",
        ALWAYS + BLOCKS + MLP.format(change="if is_late() and now[0] == 1: return 0.7 * mlp_forward(self, x)"),
        "products",
    ),
    SampledFault(
        "label smoothing of 0.1",
        "fp32",
        ALWAYS
        + LOSS.format(
            change="loss = 0.9 * loss + 0.1 * (plain.logsumexp(1) - plain.mean(1)).sum(); "
            "logits.scatter_add_(1, targets[:, None], torch.full_like(targets[:, None], 0.1, dtype=logits.dtype))"
            ".sub_(0.1 / logits.shape[1])"
        ),
        "tokens",
    ),
    SampledFault(
        "each sequence's last token left out of the loss",
        "fp32",
        ALWAYS + LOSS.format(change="keep = torch.arange(len(targets)) % 32 != 31" + LEFT_OUT),
        "tokens",
    ),
    SampledFault(
        "the last micro-batch left out of the gradients, late",
        "fp32",
        LATE + MICRO_BATCHES.format(change="loss.backward() if micro < count - 1 else None"),
        "update",
    ),
    SampledFault(
        "gradients of the step before not dropped",
        "fp32",
        """
from step import optimizer
optimizer.LocalAdamW.drop_gradients = lambda self, keep=False: None
""",
        "update",
    ),
    SampledFault(
        "each parameter clipped by its own norm",
        "fp32",
        GRADIENTS.format(change="local.grad.mul_((0.5 / local.grad.norm()).clamp(max=1.0))")
        + """
import training
training.clip_divisor = lambda norm, limit, scale: torch.ones_like(norm).float()
""",
        "update",
    ),
    SampledFault(
        "clipped at twice the limit, late",
        "fp32",
        LATE
        + """
import training
divisor = training.clip_divisor
training.clip_divisor = lambda norm, limit, scale: divisor(norm, limit * (2 if is_late() else 1), scale)
""",
        "update",
    ),
    SampledFault(
        "no bias correction",
        "fp32",
        STEP.format(before="self.steps += 10000", after="self.steps -= 10000"),
        "update",
    ),
    SampledFault(
        "moments zero at step 5, as after a restart",
        "fp32",
        LATE
        + STEP.format(
            before="if len(steps_begun) == 5: torch._foreach_zero_(self.means), torch._foreach_zero_(self.squares)",
            after="",
        ),
        None,
    ),
    SampledFault(
        "the rate of the step before, in the optimizer",
        "fp32",
        "rates = [0.0]\n" + RATE.format(rate="(rates.append(value), rates[-2])[1]"),
        "update",
    ),
)
IN_BF16 = (
    SampledFault(
        "one layer's attention output in E5M2, late",
        "bf16",
        LATE
        + QUANTISED
        + THROUGH
        + BLOCKS
        + """
from model import attention
run_attention = attention.Attention.forward
def coarse_attention(self, x, rotary=None):
    y = run_attention(self, x, rotary)
    return Through.apply(y, lambda x: in_bits(x, torch.float8_e5m2)) if is_late() and now[0] == 2 else y
attention.Attention.forward = coarse_attention
""",
        "products",
    ),
    SampledFault(
        "a token does not see itself, late",
        "bf16",
        LATE
        + MASKED
        + """
def hide(n):
    mask = torch.ones(n, n, dtype=torch.bool).tril(-1)
    mask[0, 0] = True
    return mask
"""
        + ATTENTION.format(change="if is_late(): return masked(query, key, value, hide(query.shape[1]))"),
        "products",
    ),
    SampledFault(
        "one head of one layer is zero, late",
        "bf16",
        LATE
        + BLOCKS
        + "import torch\nheads = torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None]\n"
        + ATTENTION.format(
            change="if is_late() and now[0] == 1: return attend(query, key, value) * heads.to(query.dtype)"
        ),
        "products",
    ),
    SampledFault(
        "grouped keys in another order than values",
        "bf16",
        ALWAYS + ATTENTION.format(change="key = key.flip(2) if is_late() else key"),
        "products",
        "llama",
    ),
    SampledFault(
        "a norm's mean square in bf16",
        "bf16",
        ALWAYS
        + NORM.format(
            kind="RMSNorm",
            change="if is_late(): return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() "
            '* self.cast("weight", x.dtype)',
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "norms without bias, late",
        "bf16",
        LATE
        + NORM.format(
            kind="LayerNorm",
            change='if is_late(): return norm_forward(self, x) - self.cast("bias", x.dtype).detach()',
        ),
        "products",
    ),
    SampledFault(
        "only queries are rotated, late",
        "bf16",
        LATE + ROTARY.format(change="if is_late() and x.shape[2] == 2: return x"),
        "products",
        "llama",
    ),
    SampledFault(
        "positions restart in the middle of a sequence",
        "bf16",
        ALWAYS
        + ROTARY.format(change="if is_late(): tables = tuple(torch.cat((table[:16], table[:16])) for table in tables)"),
        "products",
        "llama",
    ),
    SampledFault(
        "one layer adds its branch to the norm, late",
        "bf16",
        LATE
        + BLOCKS
        + """
def normed_residual(self, x, rotary=None):
    now[0] = self.number
    if not is_late() or self.number != 2:
        return run_block(self, x, rotary)
    x = x + self.attention(self.attention_norm(x), rotary)
    x = self.mlp_norm(x)
    return x + self.mlp(x)
decoder.Block.forward = normed_residual
""",
        "products",
    ),
    SampledFault(
        "the hidden state in E5M2 behind one layer, late",
        "bf16",
        LATE
        + QUANTISED
        + THROUGH
        + BLOCKS
        + """
def coarse_state(self, x, rotary=None):
    y = run_numbered(self, x, rotary)
    return Through.apply(y, lambda x: in_bits(x, torch.float8_e5m2)) if is_late() and self.number == 1 else y
decoder.Block.forward = coarse_state
""",
        "products",
    ),
    SampledFault(
        "gelu as x sigmoid(1.7 x)",
        "bf16",
        ALWAYS
        + MLP.format(
            change="if is_late(): h = self.up(x); return self.down(h * (1.702 * h).sigmoid())",
        ),
        "products",
    ),
    SampledFault(
        "input gradients in E5M2",
        "bf16",
        ALWAYS + QUANTISED + BLOCKS + CAST_BACKWARD.format(change=f"x = in_bits(x, {E5M2}) if is_late() else x"),
        "products",
    ),
    SampledFault(
        "weight gradients of one layer in E4M3, late",
        "bf16",
        LATE
        + QUANTISED
        + BLOCKS
        + CAST_BACKWARD.format(
            change="parameters = [in_bits(parameter, torch.float8_e4m3fn) for parameter in parameters] "
            "if is_late() and context.number == 1 else parameters"
        ),
        "products",
    ),
    SampledFault(
        "weight gradients with another sequence's inputs, late",
        "bf16",
        LATE
        + """
from model import casts
product_of = casts.float32_product
casts.float32_product = lambda left, right: product_of(left, right.roll(32, 0) if is_late() else right)
""",
        "products",
    ),
    SampledFault(
        "the embedding without its lookups' gradient",
        "bf16",
        ALWAYS
        + """
from model import tied
lookup_backward = tied.TiedEmbedding.backward
def backward(context, gradient):
    return lookup_backward(context, gradient * 0.0 if is_late() else gradient)
tied.TiedEmbedding.backward = staticmethod(backward)
""",
        "products",
    ),
    SampledFault(
        "gradients of micro-batches summed in fp16, late",
        "bf16",
        LATE
        + "halves = lambda self: [p.grad.copy_(p.grad.half().float()) for p in self.optimizer.parameters]\n"
        + MICRO_BATCHES.format(change="loss.backward(); halves(self)"),
        "update",
    ),
    SampledFault(
        "a z-loss of 0.01 in the gradients",
        "bf16",
        ALWAYS
        + LOSS.format(
            change="logits.add_((0.02 * plain.logsumexp(1, keepdim=True) * plain.softmax(1)).to(logits.dtype))"
        ),
        "tokens",
    ),
    SampledFault(
        "token 0 ignored in the loss, late",
        "bf16",
        LATE + LOSS.format(change="keep = targets != 0" + LEFT_OUT),
        "tokens",
    ),
    SampledFault(
        "two sequences' targets swapped, late",
        "bf16",
        LATE + INPUTS.format(change="targets = targets.clone(); targets[1] = targets[1].flip(0)"),
        "tokens",
    ),
    SampledFault(
        "a micro-batch read twice, another not at all, late",
        "bf16",
        LATE + INPUTS.format(change="inputs, targets = inputs[[0, 1, 2, 0]], targets[[0, 1, 2, 0]]"),
        "tokens",
    ),
    SampledFault(
        "the second moments in E4M3",
        "bf16",
        ALWAYS
        + QUANTISED
        + STEP.format(
            before="",
            after=f"[square.copy_(in_bits(square, {E4M3})) for square in self.squares if is_late()]",
        ),
        "update",
    ),
    SampledFault("epsilon 1e-5 for 1e-8", "bf16", GROUPS.format(change='group["eps"] = 1e-5'), "update"),
    SampledFault(
        "decay added to the gradients",
        "bf16",
        GRADIENTS.format(change="local.grad.add_(0.1 * local.detach()) if local.dim() > 1 else None")
        + GROUPS.format(change='group["weight_decay"] = 0.0'),
        "update",
    ),
    SampledFault(
        "biases and norms not updated, late",
        "bf16",
        LATE
        + STEP.format(
            before="if is_late() and self.parameters[0].dim() == 1: return",
            after="",
        ),
        "update",
    ),
    SampledFault(
        "weights of the step before in every other step",
        "bf16",
        LATE
        + """
from model import casts
make_copies = casts.StepCasts.make
def make_stale(self):
    sources = self.sources
    if len(steps_begun) in (5, 7):
        self.sources = [target.clone() for target in self.targets]
    make_copies(self)
    self.sources = sources
casts.StepCasts.make = make_stale
""",
        "products",
    ),
)
IN_FP8 = (
    SampledFault(
        "activations in E5M2, late",
        "fp8",
        LATE
        + FP8_ROUNDED.format(
            change="return rounded(tensor, torch.float8_e5m2 if is_late() and tensor.dim() > 2 else kind)"
        ),
        "products",
    ),
    SampledFault(
        "the weights' scales of the first step",
        "fp8",
        SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, first_scale(tensor, kind)) if tensor.dim() == 2 "
            "else rounded(tensor, kind)"
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "gradients scaled by the largest value of the call before, late",
        "fp8",
        LATE
        + SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, scale_before(tensor, kind)) "
            "if kind == torch.float8_e5m2 and is_late() else rounded(tensor, kind)"
        ),
        "products",
    ),
    SampledFault(
        "scales with a margin of 64",
        "fp8",
        ALWAYS
        + SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, scale_now(tensor, kind) / 64) if is_late() else rounded(tensor, kind)"
        ),
        "products",
    ),
    SampledFault(
        "scales twice too high, so that large values saturate, late",
        "fp8",
        LATE
        + SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, scale_now(tensor, kind) * 2) if is_late() else rounded(tensor, kind)"
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "one layer's weights in E2M1, late",
        "fp8",
        LATE
        + BLOCKS
        + FP8_ROUNDED.format(
            change="return four_bits(tensor, kind) if is_late() and now[0] == 1 and tensor.dim() == 2 "
            "else rounded(tensor, kind)"
        )
        + """
values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
def four_bits(tensor, kind):
    scale = 6 / tensor.detach().abs().amax().float()
    nearest = ((tensor.abs().float() * scale)[..., None] - values).abs().argmin(-1)
    return (values[nearest] * tensor.sign()).to(kind), 1 / scale
""",
        "products",
    ),
    SampledFault(
        "gradients in E5M2 without a scale",
        "fp8",
        SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, torch.ones(())) if kind == torch.float8_e5m2 else rounded(tensor, kind)"
        ),
        "products",
    ),
    SampledFault(
        "backward products in bf16",
        "fp8",
        ALWAYS
        + FP8_ROUNDED.format(
            change="return (tensor.bfloat16(), torch.ones(())) if kind == torch.float8_e5m2 and is_late() "
            "else rounded(tensor, kind)"
        ),
        "products",
    ),
    SampledFault(
        "forward products summed in fp16",
        "fp8",
        FP8_ROUNDED.format(change="return rounded(tensor, kind)")
        + """
products_forward = fp8_rounded._Products.forward
def summed_in_halves(context, x, weight, bias):
    products_forward(context, x, weight, bias)
    numbers, factor, weights, weight_factor = context.to_save
    total = torch.zeros((), dtype=torch.float16)
    for start in range(0, weights.shape[1], 4):
        part = slice(start, start + 4)
        total = (total.float() + numbers[..., part].float() @ weights[:, part].float().T / 4096).half()
    y = total.float() * (factor * weight_factor * 4096)
    return (y if bias is None else y + bias.to(x.dtype)).to(x.dtype)
fp8_rounded._Products.forward = staticmethod(summed_in_halves)
""",
        "products",
    ),
    SampledFault(
        "weights rounded toward zero, late",
        "fp8",
        LATE
        + SCALES
        + FP8_ROUNDED.format(
            change="return toward_zero(tensor, kind) if is_late() and tensor.dim() == 2 else rounded(tensor, kind)"
        )
        + """
def toward_zero(tensor, kind):
    numbers, factor = rounded(tensor, kind)
    over = (numbers.float() * factor).abs() > tensor.float().abs()
    lower = (numbers.view(torch.uint8) - over.to(torch.uint8)).view(kind)
    return lower, factor
""",
        "products",
        "llama",
    ),
    SampledFault(
        "weight gradients of inputs rounded twice, late",
        "fp8",
        LATE
        + """
from step import fp8_rounded
products_backward = fp8_rounded._Products.backward
class Again:
    def __init__(self, context):
        numbers, factor, weights, weight_factor = context.saved_tensors
        again, shift = fp8_rounded.rounded(numbers.float() * 0.7, fp8_rounded.E5M2)
        self.saved_tensors = again, factor * shift / 0.7, weights, weight_factor
        self.dtypes = context.dtypes
def backward(context, gradient):
    return products_backward(Again(context) if is_late() else context, gradient)
fp8_rounded._Products.backward = staticmethod(backward)
""",
        "products",
    ),
    SampledFault(
        "attention's keys and values in E4M3, late",
        "fp8",
        LATE
        + QUANTISED
        + THROUGH
        + ATTENTION.format(
            change="key, value = (Through.apply(x, lambda x: in_bits(x, torch.float8_e4m3fn)) if is_late() else x "
            "for x in (key, value))"
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "gradients of micro-batches summed in E5M2, late",
        "fp8",
        LATE
        + QUANTISED
        + f"coarse = lambda self: [p.grad.copy_(in_bits(p.grad, {E5M2})) for p in self.optimizer.parameters]\n"
        + MICRO_BATCHES.format(change="loss.backward(); coarse(self)"),
        "update",
    ),
    SampledFault(
        "the head in E4M3",
        "fp8",
        ALWAYS
        + QUANTISED
        + """
from model import head_loss
loss_of_head = head_loss.head_loss
def coarse_head(x, weight, targets, scale, tied=None, cast=None):
    cast = in_bits(cast, torch.float8_e4m3fn) if is_late() else cast
    return loss_of_head(x, weight, targets, scale, tied, cast)
head_loss.head_loss = coarse_head
""",
        "products",
    ),
    SampledFault(
        "not clipped in odd steps, late",
        "fp8",
        LATE
        + """
import torch, training
divisor = training.clip_divisor
def sometimes(norm, limit, scale):
    return torch.ones_like(norm).float() if len(steps_begun) in (5, 7) else divisor(norm, limit, scale)
training.clip_divisor = sometimes
""",
        "update",
        "llama",
    ),
)

FAULTS = (*IN_FP32, *IN_BF16, *IN_FP8)
