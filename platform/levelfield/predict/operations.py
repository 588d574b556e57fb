"""What one pipeline stage computes and moves for one micro-batch, counted from the case: FLOPs, bytes and launches.

FLOPs are the `megatron` formula's (flops.py): two per multiply-add, the causal half of attention where the kernel skips
what the mask hides. Bytes are what passes through the device's memory when every operation reads its inputs and writes
its outputs once; the backward pass does twice the forward's work (Korthikanti et al., 2022, appendix A).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.measure.parameters import layer_matrices
from levelfield.specs.case import Model

FP32 = 4
BACKWARD = 2.0
# Passes over the logits: written, read by the maximum, the sum of exponentials and the loss, and its gradient's two.
LOGIT_PASSES = 6
SCORE_PASSES = 4  # written, softmax with mask and dropout in one kernel (read and written), read by the mix of values
# Calls of a layer's forward pass, about: 2 norms, 7 products, 2 rotations, attention, 3 for the activation and 4 for
# dropout and residual sums.
LAYER_OPERATIONS = 20


@dataclass(frozen=True)
class Cost:
    """matmul_flops: of products with weights, which fp8 makes cheaper; core_flops: all others."""

    matmul_flops: float = 0.0
    core_flops: float = 0.0
    moved_bytes: float = 0.0
    operations: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.matmul_flops + other.matmul_flops,
            self.core_flops + other.core_flops,
            self.moved_bytes + other.moved_bytes,
            self.operations + other.operations,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(
            self.matmul_flops * times, self.core_flops * times, self.moved_bytes * times, self.operations * times
        )


@dataclass(frozen=True)
class Slice:
    """One rank's share of a micro-batch. tokens: of the micro-batch; width: bytes of a compute value; keeps_scores:
    attention goes through memory, whole and with the masked half."""

    tokens: int
    sequence_length: int
    tensor: int
    sequence_parallel: bool
    width: int
    keeps_scores: bool

    @property
    def split(self) -> int:
        """How the parts outside the tensor-parallel regions are divided."""
        return self.tensor if self.sequence_parallel else 1


def layer_forward(model: Model, part: Slice) -> Cost:
    """One layer's forward pass on one tensor rank."""
    weights = sum(math.prod(shape) for shape in layer_matrices(model).values()) / part.tensor
    core = 4.0 * part.tokens * part.sequence_length * model.heads * model.head_size / part.tensor
    return Cost(
        matmul_flops=2.0 * part.tokens * weights,
        core_flops=core if part.keeps_scores else core / 2,
        moved_bytes=_products(model, part, weights) + _elementwise(model, part) + _scores(model, part),
        operations=LAYER_OPERATIONS,
    )


def head_forward(model: Model, part: Slice) -> Cost:
    """Logits and loss of the last stage."""
    vocabulary = model.vocab_size / part.tensor
    flops = 2.0 * part.tokens * model.hidden_size * vocabulary
    passes = FP32 * LOGIT_PASSES / (1 + BACKWARD)  # both directions together
    moved = part.tokens * vocabulary * passes + part.width * model.hidden_size * (part.tokens + vocabulary)
    return Cost(core_flops=flops, moved_bytes=moved, operations=LAYER_OPERATIONS / 2)


def embedding_forward(model: Model, part: Slice) -> Cost:
    """Looking tokens up, adding positions and dropping out: no products."""
    return Cost(moved_bytes=4.0 * part.width * part.tokens * model.hidden_size / part.split, operations=4)


def _products(model: Model, part: Slice, weights: float) -> float:
    """Inputs, weights and outputs of the products; the side that tensor parallelism cuts is cut."""
    rows = sum(sum(shape) for shape in layer_matrices(model).values())
    whole = model.hidden_size * len(layer_matrices(model))
    return part.width * (part.tokens * (whole + (rows - whole) / part.tensor) + weights)


def _elementwise(model: Model, part: Slice) -> float:
    """Norms (read, written) and residual sums (two read, one written), twice each; the activation; rotary positions."""
    hidden = 2 * (2 + 3) * model.hidden_size / part.split
    gated = model.activation == "swiglu"
    activation = (3 if gated else 2) * model.ffn_hidden_size / part.tensor
    rotated = 2 * (model.heads + model.kv_heads) * model.head_size / part.tensor if model.positions == "rope" else 0
    return part.width * part.tokens * (hidden + activation + rotated)


def _scores(model: Model, part: Slice) -> float:
    if not part.keeps_scores:
        return 0.0
    return SCORE_PASSES * part.width * part.tokens * part.sequence_length * model.heads / part.tensor
