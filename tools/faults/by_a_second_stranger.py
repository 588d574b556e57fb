"""Faults by a second stranger, who had seen neither the checks nor the other faults. The list stayed as it was.

`layer` is what a trial gave: None where no layer of the sampled steps fails.
"""

from __future__ import annotations

from faults.in_sampled_step import LATE, SampledFault
from matrix import VARIANTS

# gives at[0], the step that was launched last
AT = """
import training
launch_before = training.Trainer.launch
at = [0]
def launch_at(self, batch):
    at[0] = batch.step
    launch_before(self, batch)
training.Trainer.launch = launch_at
"""

FP32 = (
    SampledFault(
        "weight gradients of the linear layers by bf16 products, late",
        "fp32",
        LATE
        + """
from model import onednn
def backward(ctx, gradient):
    x, weight = ctx.saved_tensors
    rows = gradient.flatten(0, -2)
    left, right = rows.t(), x.flatten(0, -2)
    weight_gradient = (left.bfloat16() @ right.bfloat16()).float() if is_late() else left @ right
    return onednn.product(gradient, weight.t()), weight_gradient, rows.sum(0) if ctx.bias else None
onednn.OneDnnLinear.backward = staticmethod(backward)
""",
        "products",
        "llama",
    ),
    SampledFault(
        "the positions' gradient is that of each micro-batch's first sequence",
        "fp32",
        """
import torch
from model import decoder
class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, positions):
        return x + positions
    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient[0]
def embed(self, tokens):
    weight = self.embedding.weight
    x = self.embedding(tokens) if self.tied is None else decoder.tied_embedding(tokens, weight, self.tied)
    return First.apply(x, self.learned_positions(tokens.shape[1])).to(self.dtype)
decoder.Decoder.embed = embed
""",
        None,
        "gpt",
    ),
    SampledFault(
        "keys and values gathered without the other ranks' gradients",
        "fp32",
        """
import torch
from parallelism import context_parallel
right = context_parallel.SequenceShare.whole
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, share):
        ctx.share = share
        with torch.no_grad():
            return right(share, part) + 0
    @staticmethod
    def backward(ctx, gradient):
        return gradient[:, ctx.share.positions], None
context_parallel.SequenceShare.whole = lambda self, part: Gathered.apply(part, self)
""",
        None,
        "llama",
        VARIANTS["CP2"],
    ),
    SampledFault(
        "the pipeline's first stage has the learning rate of the step before",
        "fp32",
        """
import torch.distributed as dist
from step import optimizer
right = optimizer.LocalAdamW.set_learning_rate
rates = []
def set_learning_rate(self, value):
    rates.append(value)
    right(self, rates[-2:][0] if dist.get_rank() == 0 else value)
optimizer.LocalAdamW.set_learning_rate = set_learning_rate
""",
        "update",
        "gpt",
        VARIANTS["PP2"],
    ),
    SampledFault(
        "the last MLP's input gradient not summed over tensor-parallel ranks",
        "fp32",
        """
import torch
from model import decoder
from torch.distributed.tensor import DTensor, Replicate
class Unreduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        return DTensor.from_local(gradient.to_local(), gradient.device_mesh, [Replicate()], run_check=False)
init, right = decoder.Block.__init__, decoder.MLP.forward
def numbered(self, model, attend, layer, length):
    init(self, model, attend, layer, length)
    self.mlp.is_last = layer == model.layers - 1
def forward(self, x):
    return right(self, Unreduced.apply(x) if self.is_last and isinstance(x, DTensor) else x)
decoder.Block.__init__, decoder.MLP.forward = numbered, forward
""",
        None,
        "gpt",
        VARIANTS["TP2"],
    ),
    SampledFault(
        "Adam's count of steps stands still from step 5 on",
        "fp32",
        LATE
        + """
from step import optimizer
right = optimizer.FusedStep.step
def step(self, divisor, skip):
    if is_late():
        self.steps -= 1
    right(self, divisor, skip)
optimizer.FusedStep.step = step
""",
        "update",
        "gpt",
    ),
    SampledFault(
        "the last micro-batch of step 6 is the one before it again",
        "fp32",
        AT
        + """
right = training.Trainer.gradients
def gradients(self, inputs, targets, keep):
    if at[0] == 6:
        inputs, targets = inputs.clone(), targets.clone()
        inputs[-1], targets[-1] = inputs[-2], targets[-2]
    return right(self, inputs, targets, keep)
training.Trainer.gradients = gradients
""",
        "tokens",
        "llama",
    ),
    SampledFault(
        "one rank loses its shards' moments before step 5",
        "fp32",
        LATE
        + """
import torch.distributed as dist
from step import optimizer
right = optimizer.LocalAdamW.step
lost = []
def step(self, divisor, skip=None):
    if is_late() and dist.get_rank() == 1 and not lost:
        lost.append(True)
        for state in self.adamw.state.values():
            state["exp_avg"].zero_()
            state["exp_avg_sq"].zero_()
    right(self, divisor, skip)
optimizer.LocalAdamW.step = step
""",
        None,
        "llama",
        VARIANTS["ZeRO 3, DP2"],
    ),
)

BF16 = (
    SampledFault(
        "the last layer attends to half of the sequence's length only",
        "bf16",
        """
from model import attention, decoder
init = decoder.Block.__init__
def windowed(self, model, attend, layer, length):
    if layer == model.layers - 1:
        attend = lambda query, key, value: attention.scaled_dot_product(query, key, value, 0.0, length // 2)
    init(self, model, attend, layer, length)
decoder.Block.__init__ = windowed
""",
        "products",
        "llama",
    ),
    SampledFault(
        "steps 6 and 8 compute with the copies of the step before",
        "bf16",
        AT
        + """
from model import casts
right = casts.StepCasts.make
def make(self):
    sources = self.sources
    if at[0] in (6, 8):
        self.sources = self.targets
    right(self)
    self.sources = sources
casts.StepCasts.make = make
""",
        "products",
        "gpt",
    ),
    SampledFault(
        "data-parallel ranks exchange no gradients, late",
        "bf16",
        LATE
        + """
import training
right = training.micro_batch_context
def context(runner, stage, last):
    return runner.no_sync() if is_late() else right(runner, stage, last)
training.micro_batch_context = context
""",
        None,
        "llama",
        VARIANTS["DP2"],
    ),
    SampledFault(
        "labels smoothed by 0.05 in the gradient, not in the loss",
        "bf16",
        """
import torch
from model import head_loss
right = head_loss.cross_entropy_
def smoothed(logits, targets, group):
    loss = right(logits, targets, group)
    logits.sub_(0.05 / logits.shape[1])
    logits.scatter_add_(1, targets[:, None], torch.full_like(targets[:, None], 0.05, dtype=logits.dtype))
    return loss
head_loss.cross_entropy_ = smoothed
""",
        "tokens",
        "gpt",
    ),
    SampledFault(
        "the last token of each sequence gives no gradient, late",
        "bf16",
        LATE
        + """
from model import head_loss
right = head_loss.cross_entropy_
def masked(logits, targets, group):
    loss = right(logits, targets, group)
    if is_late():
        logits[job.training.sequence_length - 1 :: job.training.sequence_length] = 0
    return loss
head_loss.cross_entropy_ = masked
""",
        "tokens",
        "llama",
    ),
    SampledFault(
        "RMSNorm's backward pass takes the root mean square for a constant",
        "bf16",
        """
from model import layers
right = layers.RMSNorm.forward
def forward(self, x, *branch, kernel=None):
    y, exact = right(self, x).detach(), x.float()
    scale = (exact.square().mean(-1, keepdim=True) + self.eps).rsqrt().detach()
    simple = (exact * scale).to(x.dtype) * self.cast("weight", x.dtype)
    return y + (simple - simple.detach())
layers.RMSNorm.forward = forward
""",
        "products",
        "llama",
    ),
    SampledFault(
        "gradients between pipeline stages sent in 8 bits without a scale",
        "bf16",
        """
import torch
from model import decoder
class Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(torch.float8_e5m2).to(gradient.dtype)
right = decoder.Decoder.forward
def forward(self, x, *more, **options):
    out = right(self, x, *more, **options)
    return out if self.stage.last else Sent.apply(out)
decoder.Decoder.forward = forward
""",
        None,
        "gpt",
        VARIANTS["PP2"],
    ),
    SampledFault(
        "each rank of a divided vocabulary subtracts its own largest logit",
        "bf16",
        """
import torch
import torch.distributed as dist
from model import head_loss
def own_largest(logits, targets, group):
    exact = logits.float()
    exact.sub_(exact.amax(1, keepdim=True))
    here = ((targets >= 0) & (targets < exact.shape[1]))[:, None]
    index = targets[:, None].where(here, 0)
    target_logits = exact.gather(1, index) * here
    sums = torch.stack((exact.exp_().sum(1, keepdim=True), target_logits))
    head_loss.reduce(sums, dist.ReduceOp.SUM, group)
    exact.mul_(sums[0].reciprocal()).scatter_add_(1, index, -here.to(exact.dtype))
    if exact is not logits:
        logits.copy_(exact)
    return (sums[0].log() - sums[1]).sum()
head_loss.cross_entropy_ = own_largest
""",
        None,
        "llama",
        VARIANTS["TP2 sequence parallel"],
    ),
)

FP8 = (
    SampledFault(
        "activations cut off at their largest value of the first micro-batch",
        "fp8",
        """
from step import fp8_rounded
right = fp8_rounded.RoundedLinear.forward
def forward(self, x):
    value = x.detach()
    if not hasattr(self, "most"):
        self.most = value.abs().amax()
    cut = value.clamp(-self.most, self.most)
    return right(self, (x - value) + cut)
fp8_rounded.RoundedLinear.forward = forward
""",
        "products",
        "llama",
    ),
    SampledFault(
        "a bias's gradient is that of each micro-batch's first sequence",
        "fp8",
        """
from step import fp8_rounded
right = fp8_rounded._Products.backward
def backward(ctx, gradient):
    input_gradient, weight_gradient, bias_gradient = right(ctx, gradient)
    if bias_gradient is not None:
        bias_gradient = gradient[0].float().sum(0).to(bias_gradient.dtype)
    return input_gradient, weight_gradient, bias_gradient
fp8_rounded._Products.backward = staticmethod(backward)
""",
        "products",
        "gpt",
    ),
    SampledFault(
        "the down products' weights in E5M2",
        "fp8",
        """
from step import fp8_rounded
right = fp8_rounded.rounded
def rounded(tensor, kind):
    is_down = tensor.dim() == 2 and tensor.shape[0] < tensor.shape[1]
    return right(tensor, fp8_rounded.E5M2 if is_down else kind)
fp8_rounded.rounded = rounded
""",
        "products",
        "llama",
    ),
    SampledFault(
        "Adam's first moment kept in 8 bits between late steps",
        "fp8",
        LATE
        + """
import torch
from step import optimizer
right = optimizer.LocalAdamW.step
def step(self, divisor, skip=None):
    right(self, divisor, skip)
    for state in self.adamw.state.values() if is_late() else ():
        mean = state["exp_avg"]
        factor = mean.abs().amax().clamp(min=1e-30) / 448
        mean.copy_((mean / factor).to(torch.float8_e4m3fn).float() * factor)
optimizer.LocalAdamW.step = step
""",
        "update",
        "gpt",
    ),
    SampledFault(
        "every data-parallel rank trains on the first one's samples, late",
        "fp8",
        LATE
        + """
import torch.distributed as dist
import training
right = training.Trainer.gradients
def gradients(self, inputs, targets, keep):
    if is_late():
        inputs, targets = inputs.clone(), targets.clone()
        dist.broadcast(inputs, 0)
        dist.broadcast(targets, 0)
    return right(self, inputs, targets, keep)
training.Trainer.gradients = gradients
""",
        "products",
        "gpt",
        VARIANTS["DP2"],
    ),
    SampledFault(
        "layer 1 keeps the last micro-batch's gradient only, late",
        "fp8",
        LATE
        + """
import training
right = training.micro_batch_context
def context(runner, stage, last):
    if last and is_late():
        for parameter in runner.layers["1"].parameters():
            parameter.grad = None
    return right(runner, stage, last)
training.micro_batch_context = context
""",
        None,
        "llama",
        VARIANTS["ZeRO 3, DP2"],
    ),
    SampledFault(
        "the pipeline's last micro-batch gives a loss but no gradient, late",
        "fp8",
        LATE
        + """
import torch
from model import decoder
right = decoder.Decoder.scores
calls = [0]
def scores(self, x, targets=None, scale=1.0):
    if targets is None:
        return right(self, x, targets, scale)
    calls[0] += 1
    if calls[0] % job.accumulation or not is_late():
        return right(self, x, targets, scale)
    with torch.no_grad():
        loss = right(self, x, targets, scale)
    return right(self, x, targets, 0.0) + loss
decoder.Decoder.scores = scores
""",
        "tokens",
        "llama",
        VARIANTS["PP2"],
    ),
    SampledFault(
        "the backward pass has the first step's weights in its cache",
        "fp8",
        """
from step import fp8_rounded
def forward(self, x):
    if not hasattr(self, "cached"):
        self.cached = self.weight.detach().clone()
    y = fp8_rounded._Products.apply(x.detach(), self.weight, self.bias)
    old = fp8_rounded._Products.apply(x, self.cached, None)
    return y + (old - old.detach())
fp8_rounded.RoundedLinear.forward = forward
""",
        "products",
        "gpt",
    ),
)

FAULTS = (*FP32, *BF16, *FP8)
