"""Faults of a step: the samples, the loss, the gradients, the optimizer and the schedule."""

from __future__ import annotations

from faults.fault import Fault

DATA_AND_LOSS = (
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
        "token 0 taken for padding in the loss",
        """
from model import head_loss
right = head_loss.head_loss
def masked(x, weight, targets, scale, tied, _):
    kept = targets != 0
    return right(x[kept][None], weight, targets[kept][None], scale, tied)
head_loss.head_loss = masked
""",
        "first step",
        "gradient.final_norm.bias",
    ),
    Fault(
        "the vocabulary's padding in the softmax",
        """
import torch
from model import head_loss
right = head_loss.head_loss
def padded(x, weight, targets, scale, tied, _):
    return right(x, torch.cat((weight, weight.new_zeros(16, weight.shape[1]))), targets, scale, tied)
head_loss.head_loss = padded
""",
        "first step",
        "gradient.head.weight",
        family="llama",
    ),
    Fault(
        "cross-entropy in bf16",
        """
import torch
from model import head_loss
def coarse(logits, targets, group):
    half, index = logits.bfloat16(), targets[:, None]
    log_sum = half.logsumexp(1, keepdim=True)
    loss = (log_sum - half.gather(1, index)).float().sum()
    logits.copy_((half - log_sum).exp()).scatter_add_(1, index, -torch.ones_like(index, dtype=logits.dtype))
    return loss
head_loss.cross_entropy_ = coarse
""",
        "first step",
        "gradient.final_norm.bias",
    ),
)

# What runs around each micro-batch's forward and backward pass of one process.
AROUND = """
import contextlib, torch, training
@contextlib.contextmanager
def around(model, stage, last):
    parameters = list(model.parameters())
    before = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    yield
    for parameter, gradient in zip(parameters, changed(before, [p.grad for p in parameters], last)):
        parameter.grad = gradient
training.micro_batch_context = around
"""
GRADIENTS = (
    Fault(
        "gradients summed over micro-batches instead of averaged",
        """
from step import optimizer
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
        "the last micro-batch left out of the gradient",
        AROUND
        + """
changed = lambda before, after, last: before if last else after
""",
        "gradients",
        "gradient.final_norm.bias",
    ),
    Fault(
        "gradients accumulated in bf16",
        AROUND
        + """
changed = lambda before, after, last: [gradient.bfloat16().float() for gradient in after]
""",
        "gradients",
        "gradient.final_norm.bias",
    ),
    Fault(
        "each micro-batch's gradient clipped before the average",
        AROUND
        + """
def changed(before, after, last):
    own = [a - b for a, b in zip(after, before)]
    norm = torch.nn.utils.get_total_norm(own) * job.accumulation
    return [b + o / (norm / job.training.gradient_clip).clamp(min=1) for b, o in zip(before, own)]
""",
        "gradients",
        "gradient.final_norm.bias",
    ),
    Fault(
        "each parameter's gradient clipped by its own norm",
        """
import torch
from step import optimizer
right = optimizer.LocalAdamW.step
def step(self, divisor, skip=None):
    for local in self.locals:
        local.grad /= (local.grad.norm() / job.training.gradient_clip).clamp(min=1)
    right(self, torch.ones_like(divisor), skip)
optimizer.LocalAdamW.step = step
""",
        "gradients",
        "updated.layers.0.attention_norm.bias",
    ),
)

UPDATES = """
import training
right = training.Trainer.update
def update(self, rate):
    self.updates = getattr(self, "updates", 0) + 1
    right(self, rate) if self.updates != LOST else self.optimizer.drop_gradients()
training.Trainer.update = update
"""
SCHEDULE = (
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
        "learning rate decays to zero",
        """
object.__setattr__(job.training.schedule, "min_lr", 0.0)
""",
        "gradients",
        "updated.embedding.weight",
        step=3,
    ),
    Fault(
        "the third step's update lost",
        UPDATES.replace("LOST", "3"),
        "gradients",
        "updated.embedding.weight",
        step=3,
    ),
    Fault(
        "the tenth step's update lost",
        UPDATES.replace("LOST", "10"),
        "final weights",
        "updated.embedding.weight",
        step=10,
    ),
)
