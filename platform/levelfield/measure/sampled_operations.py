"""What a rank samples of a step, and how far an output is off what it has to be.

The size of an output's error tells precisions apart. A number of m fraction bits is rounded by about 0.2 x 2^-m of
itself: the mean square over a binade of uniform errors of half a unit in the last place. Where the factors of a product
are rounded, the terms' errors add up at random, to sqrt(2) times as much of the root of the terms' squares. The sum may
be much larger than this root, or smaller. So errors are held to both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

# The largest error of an output, between that of honest ones and of the next coarser precision: fp32 5e-7, TF32 3e-4,
# fp16 2e-4, bf16 1.7e-3, E4M3 3.5e-2, E5M2 7e-2.
LIMITS = {"fp32": 3e-5, "fp16": 8e-4, "bf16": 6e-3, "fp8": 5.5e-2}
# The least and the largest error of products in fp8, of one and, less spread, of all of a step together: E4M3 has
# 3.6e-2; E5M2 beside it, as in the backward pass, 5.7e-2. A weight gradient is sampled at fewer places.
FP8_LIMITS = {
    "product": ((1.8e-2, 6.3e-2), (3e-2, 4.6e-2)),
    "input gradient": ((3.2e-2, 8.5e-2), (4.7e-2, 7.2e-2)),
    "weight gradient": ((1e-2, 2.5e-1), (4.5e-2, 7.8e-2)),
}
FEWEST_TOGETHER = 4
BF16_BITS, E4M3_BITS = 8, 4  # of a significand
E4M3_LARGEST, E4M3_LEAST_EXPONENT = 448.0, -5  # of numbers m x 2^e with 0.5 <= m < 1: below are steps of 2^-9
# How far the exact sum of a product is from the numbers that round to its output. Sums in float32 have below 1e-8, sums
# in fp16 6e-4, scales 16 times too small 7e-6.
EXACT_SUM_LIMIT = 1e-6
OUTPUT_ROUNDING = 1.66e-3  # of a product in fp8, whose result is in bf16
PRECISION_WORDS = {"fp32": "float32", "fp16": "TF32 or fp16", "bf16": "bf16", "fp8": "E4M3"}  # of errors up to LIMITS


# The arrays of each kind of operation: those that all have, and those that some lack.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "product": (("inputs", "weight", "output"), ("bias", "largest")),
    "input gradient": (("inputs", "weight", "output"), ()),
    "weight gradient": (("inputs", "weight", "output"), ("bias_gradient",)),
    "norm": (("inputs", "weight", "output"), ("bias",)),
    "attention": (("query", "key", "value", "output"), ("unrotated_query", "unrotated_key")),
    "heads": (("query", "key", "value", "output"), ()),
    "norm gradient": (("inputs", "output"), ()),
    "activation gradient": (("output", "up", "up_gradient"), ("gate", "gate_gradient")),
    "attention gradient": (
        ("output", "query_gradient", "last_query", "last_output", "key_gradient", "value_gradient"),
        ("unrotated_gradient",),
    ),
    "embedding": (("table", "output"), ("positions",)),
    "table gradient": (("output",), ("hidden", "read", "head_gradient", "head_inputs")),
    "loss": (("normaliser", "target_logit", "target_gradient", "logits", "gradient", "targets"), ()),
    "update": (("value", "gradient", "mean", "square", "new_value", "new_mean", "new_square"), ("micro_batches",)),
}


_ATTENTION_KINDS = ("attention", "attention gradient", "heads")
_NAME_IN_LAYER = re.compile(r"layers\.[0-9]{1,6}\..+")


@dataclass(frozen=True)
class SampledOperation:
    """A part of a step that a rank sampled. The shapes of its arrays: worker/spot_check.py."""

    kind: str  # one of KINDS
    name: str  # of the module or parameter
    arrays: Mapping[str, Numbers]
    # Of attention: the queries' positions. Of a product: its columns, where they are known. Of a table: its rows.
    places: tuple[int, ...] = ()
    dimensions: int = 0  # of an updated parameter

    def check_shapes(self) -> None:
        """Raise ValueError where the arrays do not fit together."""
        shapes = {name: array.shape for name, array in self.arrays.items()}
        is_fitting = all(math.prod(shape) for shape in shapes.values()) and _is_fitting(self.kind, shapes, self.places)
        if is_fitting and "targets" in self.arrays:
            targets = self.arrays["targets"]
            is_fitting = bool((targets == np.clip(targets.round(), 0, self.arrays["logits"].shape[1] - 1)).all())
        is_in_layer = self.kind in _ATTENTION_KINDS or self.name.startswith("layers.")
        if not is_fitting or (is_in_layer and not _NAME_IN_LAYER.fullmatch(self.name)):
            raise ValueError(f"{self.kind} of {self.name[:100]}: found shapes {shapes}")


Shape = tuple[int, ...]


def _is_fitting(kind: str, shapes: dict[str, Shape], places: tuple[int, ...]) -> bool:
    """Return whether arrays of these shapes are those of one operation."""
    match kind, shapes:
        case "product" | "input gradient" | "weight gradient", {"inputs": (int(rows), int(size)), **others}:
            width = others.pop("weight")
            if others.pop("bias_gradient", (rows,)) != (rows,) or others.pop("largest", (2,)) != (2,):
                return False
            return (
                width[1:] == (size,)
                and others.pop("output") == (rows, width[0])
                and (len(places) in (0, width[0]) and all(place >= 0 for place in places))
                and set(others.values()) <= {width[:1]}
            )
        case "norm", {"inputs": (int(rows), int(size)), **others}:
            return others.pop("output") == (rows, size) and set(others.values()) == {(size,)}
        case "attention", {"query": (int(rows), int(size)), "key": (int(length), int(width)), **others}:
            value, output = others.pop("value"), others.pop("output")
            return (
                size == width
                and (len(value) == 2 and value[0] == length and output == (rows, value[1]))
                and (len(places) == rows and all(0 <= place < length for place in places))
                and (not others or list(others.values()) == [(rows, size)] * 2)
            )
        case "heads", {"query": (int(heads), int(size)), "key": (int(groups), int(length), int(width)), **others}:
            value, output = others["value"], others["output"]
            return (
                size == width
                and heads % groups == 0
                and value[:2] == (groups, length)
                and (len(value) == 3 and output == (heads, value[2]))
            )
        case "norm gradient" | "activation gradient", {"output": (int(), int()), **others}:
            return set(others.values()) == {shapes["output"]}
        case "attention gradient", {"output": (int(rows), int(width)), "last_query": (int(group), int(size)), **others}:
            return (
                others.pop("query_gradient") == others.pop("unrotated_gradient", (rows, size)) == (rows, size)
                and others == {"last_output": (group, width), "key_gradient": (size,), "value_gradient": (width,)}
            )  # fmt: skip
        case "embedding", {"table": (int(), int()), **others}:
            return set(others.values()) == {shapes["table"]}
        case "table gradient", {"output": (int(rows), int(columns)), **others}:
            return len(places) == rows and _is_fitting_table(rows, columns, others)
        case "loss", {"logits": (int(rows), int()), "normaliser": (int(),), **others}:
            return others == {
                "gradient": shapes["logits"],
                "targets": (rows,),
                **dict.fromkeys(("target_logit", "target_gradient"), shapes["normaliser"]),
            }
        case "update", {"value": (int(size),), **others}:
            micro_batches = others.pop("micro_batches", (1, size))
            return set(others.values()) == {(size,)} and len(micro_batches) == 2 and micro_batches[1] == size
    return False


def _is_fitting_table(rows: int, columns: int, shapes: dict[str, Shape]) -> bool:
    match shapes:
        case {"hidden": (int(tokens), int(width)), "read": (int(read),), **head}:
            return tokens == read and width == columns and (not head or _is_fitting_table(rows, columns, head))
        case {"head_gradient": (int(tokens), int(width)), "head_inputs": (int(inputs), int(size))}:
            return tokens == inputs and width == rows and size == columns and len(shapes) == 2
    return False


@dataclass(frozen=True)
class TokenChecksums:
    """Checksums of a step's micro-batches: those of the tokens that the training used, and of the case's."""

    kind: str  # inputs or targets
    read: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass(frozen=True)
class SampledStep:
    """What one rank sampled of a step."""

    rank: int
    step: int
    told: bool  # the platform drew the step; else it is the window's last one
    operations: tuple[SampledOperation, ...]
    tokens: tuple[TokenChecksums, ...] = ()
    micro_batch_losses: tuple[float, ...] = ()  # none where the rank has no head
    loss_factors: tuple[float, ...] = ()  # of these losses in the one whose gradient is taken


@dataclass(frozen=True)
class SampleError:
    """The error of one sampled operation beside its limits. value: infinite where it is not finite."""

    name: str
    kind: str
    value: float
    limit: float
    least: float = 0.0

    @property
    def is_within(self) -> bool:
        return self.least <= self.value <= self.limit


def output_error(output: Numbers, expected: Numbers, terms: float) -> float:
    """Return the root mean square of the difference over that of `expected` and of its terms together."""
    return _root_ratio(mean_square(output - expected), mean_square(expected) + terms)


def factor_error(output: Numbers, expected: Numbers, terms: float) -> float:
    """Return the root mean square of the difference without the output's own rounding, over that of the terms."""
    rounding = OUTPUT_ROUNDING**2 * mean_square(expected)
    difference = mean_square(output - expected)
    return _root_ratio(max(0.0, difference - rounding) if math.isfinite(difference) else difference, terms)


def relative_error(output: Numbers, expected: Numbers) -> float:
    return output_error(output, expected, 0.0)


def mean_square(numbers: Numbers) -> float:
    with np.errstate(all="ignore"):
        return float(np.square(numbers).mean())


def _root_ratio(square: float, whole: float) -> float:
    """Return the root of square / whole: 0 for 0 / 0, infinite where it is no number."""
    if square == 0.0:
        return 0.0
    ratio = square / whole if whole else math.inf
    return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


def rounding_error(output: Numbers, expected: Numbers, terms: float) -> float:
    """Return how far `expected` is from what rounds to the bf16 `output`, over the root mean square of the terms."""
    _, exponent = np.frexp(output)
    half_ulp = np.ldexp(0.5, exponent - BF16_BITS)
    distance = np.maximum(np.abs(output - expected) - half_ulp, 0.0)
    return _root_ratio(mean_square(distance), terms)


def rounded_to_e4m3(numbers: Numbers, largest: float) -> Numbers:
    """Return numbers in E4M3 (Micikevicius et al., 2022) by the scale that makes `largest` its largest number, 448.

    To nearest, ties to even, of float32 numbers. The scale is the reciprocal times 448, as torch divides a number by a
    tensor: with another last bit of it many bf16 numbers would lie on the other side of a tie.
    """
    scale = np.float32(1) / np.float32(largest) * np.float32(E4M3_LARGEST) if largest > 0 else np.float32(1)
    scaled = np.clip((numbers.astype(np.float32) * scale).astype(np.float64), -E4M3_LARGEST, E4M3_LARGEST)
    _, exponent = np.frexp(scaled)
    unit = np.ldexp(1.0, np.maximum(exponent, E4M3_LEAST_EXPONENT) - E4M3_BITS)
    in_8_bits: Numbers = np.round(scaled / unit) * unit / np.float64(scale)
    return in_8_bits


def rounded(numbers: Numbers, precision: str) -> Numbers:
    """Return float32 numbers in the precision of activations: bf16, also in fp8, or fp16; to nearest, ties to even."""
    if precision == "fp16":
        return numbers.astype(np.float16).astype(np.float64)
    if precision not in ("bf16", "fp8"):
        return numbers
    bits = numbers.astype(np.float32).view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return even.view(np.float32).astype(np.float64)


def precision_word(error: SampleError) -> str:
    """Return which precision an output's error is that of."""
    if error.value < error.least:
        return "more bits"
    word = next((PRECISION_WORDS[name] for name, limit in LIMITS.items() if error.value <= limit), None)
    return word or "fewer bits than E4M3, or of other values"
