"""Comparison of one step of two trainings, tensor by tensor in the order of computation, to find the first difference.

A worker writes the tensors of one step to files (levelfield.worker.Capture): the output of the embedding and of each
block, the logits, then each parameter's gradient, then the updated parameters. The first tensor in this order that
differs shows the cause. Later tensors differ because of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from levelfield.errors import DocumentError
from levelfield.specs.case import Precision

Array = NDArray[np.floating]

# The spacing of numbers at 1: smaller differences are lost in that precision.
EPSILON: dict[Precision, float] = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10, "fp8": 2.0**-3}
# Limits as multiples of EPSILON, for the norm of a tensor's difference / its norm, by the kind of tensor. In float32,
# two correct frameworks measured 7 for outputs and 10 for the others (docs/alignment.md, "diagnose"). The limits are
# four and twelve times larger. In 16 bits nothing was measured: EPSILON is coarse there, and errors average out.
LIMITS_IN_EPSILONS: dict[str, dict[str, float]] = {
    "fp32": {"output": 32, "gradient": 128, "updated": 128},
    "reduced": {"output": 4, "gradient": 8, "updated": 4},
}
# A gradient below this part of the whole is only rounding (as for a key's bias), and so is Adam's update from it.
ROUNDING_SHARE = 1e-5


@dataclass(frozen=True)
class TensorDifference:
    """The difference of one tensor."""

    name: str
    value: float  # |values - expected| / |expected| in L2 norms; infinite if not comparable
    limit: float
    detail: str  # the place of the largest single difference with both values, or why no comparison is possible

    @property
    def differs(self) -> bool:
        return not self.value <= self.limit


def compare_step(
    folder: Path, reference: Path, parameters: Sequence[str], precision: Precision
) -> Iterator[TensorDifference]:
    """Compare every tensor of both folders, in the order of the step. Raises DocumentError for an unreadable one.

    parameters: canonical names in the order of the forward pass.
    """
    ours, theirs = captured_files(folder), captured_files(reference)
    gradients = {name: theirs[f"gradient.{name}"] for name in parameters if f"gradient.{name}" in theirs}
    norms = {name: float(np.linalg.norm(read_tensor(path).astype(np.float64))) for name, path in gradients.items()}
    rounding_norm = ROUNDING_SHARE * math.sqrt(math.fsum(norm * norm for norm in norms.values()))
    rounded_parameters = {name for name, norm in norms.items() if norm < rounding_norm}
    for name in computation_order({*ours, *theirs}, parameters):
        if name.partition(".")[2] in rounded_parameters:
            continue
        limit = tensor_limit(name, precision)
        if name not in ours or name not in theirs:
            holder = "the reference" if name not in ours else "the run"
            yield TensorDifference(name, math.inf, limit, f"only {holder} has it")
        else:
            yield compare_tensor(name, read_tensor(ours[name]), read_tensor(theirs[name]), limit)


def tensor_limit(name: str, precision: Precision) -> float:
    """Return the limit of a tensor's relative difference, by its kind and precision."""
    limits = LIMITS_IN_EPSILONS["fp32" if precision == "fp32" else "reduced"]
    return EPSILON[precision] * limits.get(name.partition(".")[0], limits["output"])


def compare_tensor(name: str, values: Array, expected: Array, limit: float) -> TensorDifference:
    """Compare one tensor with the expected one."""
    if values.shape != expected.shape:
        return TensorDifference(name, math.inf, limit, f"shape {list(values.shape)}, expected {list(expected.shape)}")
    distances = np.abs(values.astype(np.float64) - expected)
    value = float(np.linalg.norm(distances)) / max(float(np.linalg.norm(expected.astype(np.float64))), 1e-300)
    value = value if math.isfinite(value) else math.inf
    place = np.unravel_index(int(np.argmax(np.where(np.isfinite(distances), distances, np.inf))), distances.shape)
    where = ", ".join(str(int(i)) for i in place)
    return TensorDifference(
        name, value, limit, f"at [{where}]: {float(values[place]):.8g}, expected {float(expected[place]):.8g}"
    )


def computation_order(names: set[str], parameters: Sequence[str]) -> list[str]:
    """Return names in the order of a step: forward, gradients from the last parameter to the first, new weights."""
    parameter_index = {name: number for number, name in enumerate(parameters)}
    kinds = ["embedding", "layers", "final_norm", "logits", "gradient", "updated"]
    keys: list[tuple[int, float, str]] = []
    for name in names:
        kind, _, rest = name.partition(".")
        number = (
            float(rest) if kind == "layers" and rest.isdecimal() else parameter_index.get(rest, len(parameter_index))
        )
        kind_index = kinds.index(kind) if kind in kinds else len(kinds)
        keys.append((kind_index, -number if kind == "gradient" else number, name))
    return [name for _, _, name in sorted(keys)]


def captured_files(folder: Path) -> dict[str, Path]:
    """Return the files of a captured step by tensor name. Raises DocumentError when there are none."""
    files = {path.stem: path for path in folder.glob("*.npy")}
    files |= {f"updated.{path.stem}": path for path in (folder / "updated").glob("*.npy")}
    if not files:
        raise DocumentError(f"{folder}: found no captured tensors; the implementation does not support worker.Capture")
    return files


def read_tensor(path: Path) -> Array:
    """Map a captured tensor. Raises DocumentError for a damaged file."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DocumentError(f"{path}: not a captured tensor: {error}") from None
    return array
