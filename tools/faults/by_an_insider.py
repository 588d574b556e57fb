"""Faults of a training by somebody who knew the sampled steps' checks, and looked for what they did not see.

Those named "late" begin at step 5. `layer` is what a trial gave: None where no layer of the sampled steps fails. Of
most it was None until gradients between the products were sampled too.
"""

from __future__ import annotations

from faults.by_a_stranger import ALWAYS, BLOCKS, E4M3, E5M2, LOSS, MLP, NORM, ROTARY, SCALES
from faults.in_sampled_step import ATTENTION, FP8_ROUNDED, LATE, QUANTISED, SampledFault
from matrix import VARIANTS

# micro[0]: the micro-batch that runs, from 0
MICRO = """
import training
from model import decoder
micro, launch_step, run_layers = [0], training.Trainer.launch, decoder.Decoder.hidden
def launch_from_first(self, batch):
    micro[0] = -1
    return launch_step(self, batch)
def run_counted(self, x):
    micro[0] += 1
    return run_layers(self, x)
training.Trainer.launch, decoder.Decoder.hidden = launch_from_first, run_counted
"""
COARSE_GRADIENT = (
    QUANTISED
    + f"""
class CoarseGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.view_as(x)
    @staticmethod
    def backward(context, gradient):
        return in_bits(gradient, {E5M2}) if is_late() else gradient
"""
)
FP8_PRODUCTS = """
import torch
from step import fp8_rounded
products_forward, products_backward = fp8_rounded._Products.forward, fp8_rounded._Products.backward
def forward(context, x, weight, bias):
    context.x, context.key = x.detach(), weight.data_ptr()
    return products_forward(context, x, weight, bias)
def backward(context, gradient):
    of_x, of_weight, of_bias = products_backward(context, gradient)
    {change}
    return of_x, of_weight, of_bias
fp8_rounded._Products.forward, fp8_rounded._Products.backward = staticmethod(forward), staticmethod(backward)
"""

IN_FP32 = (
    SampledFault(
        "softmax's gradient without its row sums, late",
        "fp32",
        LATE
        + """
import torch
class Attend(torch.autograd.Function):
    @staticmethod
    def forward(context, *inputs):
        query, key, value = (tensor.transpose(1, 2) for tensor in inputs)
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
        scores = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        context.save_for_backward(query, key, value, weights)
        return (weights @ value).transpose(1, 2)
    @staticmethod
    def backward(context, gradient):
        query, key, value, weights = context.saved_tensors
        mixed = gradient.transpose(1, 2)
        scores = weights * (mixed @ value.mT) / query.shape[-1] ** 0.5
        return tuple(tensor.transpose(1, 2) for tensor in (scores @ key, scores.mT @ query, weights.mT @ mixed))
"""
        + ATTENTION.format(change="if is_late(): return Attend.apply(query, key, value)"),
        "products",
    ),
    SampledFault(
        "grouped keys and values with the gradient of one query of each group",
        "fp32",
        """
import torch
class Grouped(torch.autograd.Function):
    @staticmethod
    def forward(context, x, count):
        context.count = count
        return x.repeat_interleave(count, 2)
    @staticmethod
    def backward(context, gradient):
        return gradient[:, :, :: context.count].contiguous(), None
"""
        + ATTENTION.format(
            change="key, value = (Grouped.apply(x, query.shape[2] // x.shape[2]) for x in (key, value))"
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "gradients rotated as the forward pass rotates, not back, late",
        "fp32",
        LATE
        + ROTARY.format(change="if is_late(): return Rotation.apply(x, tables)")
        + """
class Rotation(torch.autograd.Function):
    @staticmethod
    def forward(context, x, tables):
        context.tables = tables
        return rotate(x, tables)
    @staticmethod
    def backward(context, gradient):
        return rotate(gradient, context.tables), None
""",
        "products",
        "llama",
    ),
    SampledFault(
        "gelu's gradient as that of x sigmoid(1.7 x)",
        "fp32",
        ALWAYS
        + """
import torch
class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return functional.gelu(x, approximate="tanh")
    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        share = (1.702 * x).sigmoid()
        return gradient * share * (1 + 1.702 * x * (1 - share))
"""
        + MLP.format(change="return self.down(Gelu.apply(self.up(x)))"),
        "products",
    ),
    SampledFault(
        "a softcap of 30 on the logits, late",
        "fp32",
        LATE
        + """
import torch
from model import head_loss
cross_entropy = head_loss.cross_entropy_
def capped_loss(logits, targets, group):
    if not is_late():
        return cross_entropy(logits, targets, group)
    capped = 30 * (logits.float() / 30).tanh()
    logits.copy_(capped)
    loss = cross_entropy(logits, targets, group)
    logits.mul_(1 - (capped / 30) ** 2)
    return loss
head_loss.cross_entropy_ = capped_loss
""",
        "tokens",
    ),
    SampledFault(
        "a gradient norm that leaves out the embedding",
        "fp32",
        """
import torch, training
reduce_figures = training.Trainer.reduce
def reduce_without(self, loss, squares):
    counted = torch.tensor([name != "embedding.weight" for name in self.optimizer.square_names])
    return reduce_figures(self, loss, squares * counted)
training.Trainer.reduce = reduce_without
""",
        None,
    ),
    SampledFault(
        "the sum of exponentials of a rank's own vocabulary, late",
        "fp32",
        LATE
        + """
from model import head_loss
reduce_right = head_loss.reduce
def reduce_targets_alone(tensor, operation, group):
    alone = tensor[0].clone() if tensor.dim() == 3 and is_late() else None
    reduce_right(tensor, operation, group)
    if alone is not None:
        tensor[0] = alone
    return tensor
head_loss.reduce = reduce_targets_alone
""",
        None,
        "gpt",
        VARIANTS["TP2"],
    ),
    SampledFault(
        "keys and values without the gradients of other ranks' queries, late",
        "fp32",
        LATE
        + """
from parallelism import context_parallel
gather = context_parallel.SequenceShare.whole
def gather_alone(self, part):
    return gather(self, part.detach()).index_copy(1, self.positions, part) if is_late() else gather(self, part)
context_parallel.SequenceShare.whole = gather_alone
""",
        None,
        "llama",
        VARIANTS["CP2"],
    ),
    SampledFault(
        "a tied table's gradient not summed over the pipeline's ends, late",
        "fp32",
        LATE
        + """
from step import optimizer
take = optimizer.LocalAdamW.take_gradients
def take_alone(self):
    self.tied = [tied and not is_late() for tied in self.tied]
    take(self)
optimizer.LocalAdamW.take_gradients = take_alone
""",
        None,
        "gpt",
        VARIANTS["PP2"],
    ),
)
IN_BF16 = (
    SampledFault(
        "attention's backward pass in E5M2, late",
        "bf16",
        LATE
        + COARSE_GRADIENT
        + ATTENTION.format(
            change="return CoarseGradient.apply(attend(*map(CoarseGradient.apply, (query, key, value))))"
        ),
        "products",
    ),
    SampledFault(
        "positions go on from one micro-batch to the next, late",
        "bf16",
        LATE
        + MICRO
        + """
from model import layers
positions = layers.Positions.forward
layers.Positions.forward = lambda self, n: positions(self, n).roll(-8 * micro[0] if is_late() else 0, 0)
""",
        "products",
    ),
    SampledFault(
        "RMSNorm's gradient without the part along its input, late",
        "bf16",
        LATE
        + NORM.format(
            kind="RMSNorm",
            change="if is_late(): return (x.float() * (x.detach().float().pow(2).mean(-1, keepdim=True) + self.eps)"
            '.rsqrt() * self.cast("weight", x.dtype).float()).to(x.dtype)',
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "the reciprocal of the sum of exponentials in bf16",
        "bf16",
        ALWAYS
        + LOSS.format(
            change="total = (plain - plain.amax(1, keepdim=True)).exp().sum(1, keepdim=True); "
            "share = plain.softmax(1) * total * total.reciprocal().bfloat16().float(); "
            "logits.copy_(share.scatter_add_(1, targets[:, None], torch.full_like(share[:, :1], -1.0)))"
        ),
        "tokens",
    ),
    SampledFault(
        "biases with the gradient of one sequence of a micro-batch",
        "bf16",
        """
from model import casts
sum_rows = casts.float32_sum
casts.float32_sum = lambda rows: sum_rows(rows[: len(rows) // 2])
""",
        "products",
    ),
    SampledFault(
        "each micro-batch's gradient divided by how many are left, late",
        "bf16",
        LATE
        + """
import torch, training
right_gradients = training.Trainer.gradients
def weighed_gradients(self, inputs, targets, keep):
    if not is_late():
        return right_gradients(self, inputs, targets, keep)
    count, total = self.job.accumulation, torch.zeros(1)
    for micro in range(count):
        loss = self.runner(inputs[micro], targets[micro], self.loss_scale.value / (count - micro))
        loss.backward()
        total += loss.detach() * (count - micro) / count
    return total
training.Trainer.gradients = weighed_gradients
""",
        "tokens",
    ),
    SampledFault(
        "one layer without the gradient of its residual, late",
        "bf16",
        LATE
        + BLOCKS
        + """
def run_cut(self, x, rotary=None):
    if not is_late() or self.number != 2:
        return run_numbered(self, x, rotary)
    x = x + self.attention(self.attention_norm(x), rotary)
    return x.detach() + self.mlp(self.mlp_norm(x))
decoder.Block.forward = run_cut
""",
        "products",
    ),
    SampledFault(
        "recomputation rotates keys by the next position, late",
        "bf16",
        LATE
        + ROTARY.format(
            change="if is_late() and x.shape[2] == 2 and torch._C._current_graph_task_id() >= 0: "
            "tables = tuple(table.roll(-1, 0) for table in tables)"
        ),
        "products",
        "llama",
        VARIANTS["recompute full"],
    ),
    SampledFault(
        "norms' gradients not summed over the sequence's parts, late",
        "bf16",
        LATE
        + """
from step import optimizer
take_part = optimizer._local_gradient
optimizer._local_gradient = lambda parameter: (
    optimizer.local_memory(parameter.grad) if is_late() and parameter.dim() == 1 else take_part(parameter)
)
""",
        None,
        "llama",
        VARIANTS["TP2 sequence parallel"],
    ),
    SampledFault(
        "the MLP's last bias added by each rank, late",
        "bf16",
        LATE
        + MLP.format(
            change="if is_late(): return mlp_forward(self, x) + self.down.bias.detach().to_local().to(x.dtype)",
        ),
        None,
        "gpt",
        VARIANTS["TP2"],
    ),
    SampledFault(
        "gradients reduced in bf16 at each micro-batch",
        "bf16",
        """
import torch
from parallelism import data_parallel
policy = data_parallel.policy
def policy_in_bf16(dtype):
    import dataclasses
    return dataclasses.replace(policy(dtype), reduce_dtype=torch.bfloat16)
data_parallel.policy = policy_in_bf16
""",
        None,
        "gpt",
        VARIANTS["ZeRO 3, DP2"],
    ),
    SampledFault(
        "weights gathered in E4M3, late",
        "bf16",
        LATE
        + QUANTISED
        + f"""
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
inputs_of = _fsdp_collectives._get_param_all_gather_inputs
def coarse_inputs(parameters):
    pairs = zip(parameters, inputs_of(parameters))
    coarse = lambda parameter: is_late() and len(parameter._orig_size) > 1
    return [[in_bits(x, {E4M3}) if coarse(parameter) else x for x in inputs] for parameter, inputs in pairs]
_fsdp_collectives._get_param_all_gather_inputs = coarse_inputs
""",
        None,
        "gpt",
        VARIANTS["ZeRO 3, DP2"],
    ),
)
IN_FP8 = (
    SampledFault(
        "only weights in E4M3, activations in bf16, late",
        "fp8",
        LATE
        + FP8_ROUNDED.format(
            change="return (tensor.bfloat16(), torch.ones(())) "
            "if is_late() and kind == torch.float8_e4m3fn and tensor.dim() > 2 else rounded(tensor, kind)"
        ),
        "products",
        "llama",
    ),
    SampledFault(
        "weight gradients by bf16 products",
        "fp8",
        FP8_PRODUCTS.format(
            change="of_weight = (gradient.flatten(0, -2).float().T @ context.x.flatten(0, -2).float()).bfloat16()"
        ),
        "products",
    ),
    SampledFault(
        "gradients rounded to E5M2 at random, late",
        "fp8",
        LATE
        + FP8_ROUNDED.format(
            change="return round_at_random(tensor, kind) "
            "if is_late() and kind == torch.float8_e5m2 else rounded(tensor, kind)"
        )
        + """
def round_at_random(tensor, kind):
    scale = torch.finfo(kind).max / tensor.detach().abs().amax().float().clamp(min=1e-30)
    bits = (tensor.float() * scale).half().view(torch.int16)
    bits = bits + torch.randint(0, 256, bits.shape, dtype=torch.int16) & -256
    return bits.view(torch.float16).to(kind), 1 / scale
""",
        "products",
    ),
    SampledFault(
        "weights of the step before from the second micro-batch on",
        "fp8",
        MICRO
        + FP8_ROUNDED.format(change="return cached(tensor, kind) if tensor.dim() == 2 else rounded(tensor, kind)")
        + """
cache, cache_before = {}, {}
def cached(tensor, kind):
    key = tensor.data_ptr()
    if micro[0]:
        return cache_before[key]
    now = rounded(tensor, kind)
    cache_before[key], cache[key] = cache.get(key, now), now
    return now
""",
        "products",
        "llama",
    ),
    SampledFault(
        "each weight by the scale of the same one in the layer before",
        "fp8",
        "scales = []\n"
        + SCALES
        + FP8_ROUNDED.format(
            change="return scaled(tensor, kind, scale_of_layer_before(tensor, kind)) "
            "if tensor.dim() == 2 else rounded(tensor, kind)"
        )
        + """
def scale_of_layer_before(tensor, kind):
    scales.append(scale_now(tensor, kind))
    return scales[-7:][0] if len(scales) > 6 else scales[-1]
""",
        "products",
    ),
    SampledFault(
        "repeated tokens overwrite each other's gradients in the embedding, late",
        "fp8",
        LATE
        + """
from model import tied
lookup_backward = tied.TiedEmbedding.backward
def overwriting(context, gradient):
    if not is_late():
        return lookup_backward(context, gradient)
    (tokens,), total = context.saved_tensors, context.tied.take()
    total[tokens.flatten()] = total[tokens.flatten()] + gradient.flatten(0, 1).to(total.dtype)
    return None, total, None
tied.TiedEmbedding.backward = staticmethod(overwriting)
""",
        "products",
    ),
    SampledFault(
        "silu's gradient as its sigmoid, late",
        "fp8",
        LATE
        + """
import torch
from torch.nn import functional
from model import layers
class Silu(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return functional.silu(x)
    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0].sigmoid()
layers.GATES["swiglu"] = lambda x: Silu.apply(x) if is_late() else functional.silu(x)
""",
        "products",
        "llama",
    ),
    SampledFault(
        "weight gradients with the inputs of the micro-batch before, late",
        "fp8",
        LATE
        + MICRO
        + """
from types import SimpleNamespace
inputs_before = {}
def of_inputs_before(context, gradient, of_weight):
    numbers, factor, *weights = context.saved_tensors
    before, inputs_before[context.key] = inputs_before.get(context.key), (numbers, factor)
    if not micro[0] or not is_late():
        return of_weight
    mixed = SimpleNamespace(saved_tensors=(*before, *weights), dtypes=context.dtypes)
    return products_backward(mixed, gradient)[1]
"""
        + FP8_PRODUCTS.format(change="of_weight = of_inputs_before(context, gradient, of_weight)"),
        "products",
        "llama",
    ),
    SampledFault(
        "norms and biases left out of the all-reduce",
        "fp8",
        """
from parallelism import parallelize
replicate = parallelize.replicate_data_parallel
parallelize.replicate_data_parallel = lambda model, grid, divided=(): replicate(
    model, grid, [*divided, *(parameter for parameter in model.parameters() if parameter.dim() == 1)]
)
""",
        None,
        "gpt",
        VARIANTS["DP2"],
    ),
    SampledFault(
        "gradients sent in E5M2 between a pipeline's stages, late",
        "fp8",
        LATE
        + COARSE_GRADIENT
        + """
from model import decoder
run_stage = decoder.Decoder.hidden
def run_and_send(self, x):
    y = run_stage(self, x)
    return y if self.stage.last else CoarseGradient.apply(y)
decoder.Decoder.hidden = run_and_send
""",
        "products",
        "gpt",
        VARIANTS["PP2"],
    ),
)

FAULTS = (*IN_FP32, *IN_BF16, *IN_FP8)
