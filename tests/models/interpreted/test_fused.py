"""The kernels of models/torch/fused in Triton's interpreter: against float64, and with faults planted in them."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import checks
import pytest
import torch
from checks import DTYPES

FUSED = Path(__file__).parents[3] / "models" / "torch" / "fused"
BLOCK = 64  # of logits: several for a row
EXACT = torch.float32  # in which every shape is computed; in 16 bits one, as masks do not depend on the type
TYPES = [pytest.param(dtype, marks=[pytest.mark.thorough] if dtype == torch.float16 else []) for dtype in DTYPES]


def kernel(name: str) -> ModuleType:
    return small(importlib.import_module(f"fused.{name}"))


def small(module: ModuleType) -> ModuleType:
    """With blocks that a row of a test fills several times."""
    for name, size in {"BLOCK": BLOCK, "ROWS": 4, "PAIRS": 32, "PROGRAMS": 2, "LONG_ROW": 64}.items():
        if hasattr(module, name) and module.__name__ != "fused.swiglu":
            setattr(module, name, size)
    return module


@pytest.mark.parametrize("dtype", TYPES)
def test_cross_entropy(dtype: torch.dtype) -> None:
    module = kernel("cross_entropy")
    for columns in (201, 192, 128, 103) if dtype == EXACT else (201,):  # whole blocks and not
        checks.check_cross_entropy(module, dtype, columns)
    checks.check_rows_that_are_not_finite(module, dtype)
    checks.check_parts_of_the_vocabulary(module, dtype)
    if dtype == EXACT:
        checks.check_parts_of_the_vocabulary(module, dtype, (1, 200))


@pytest.mark.parametrize("dtype", TYPES)
def test_rotary(dtype: torch.dtype) -> None:
    module = kernel("rotary")
    for half in (1, 6, 9) if dtype == EXACT else (6,):
        checks.check_rotation(module, dtype, half)
    for heads in ((6, 2, 2), (1, 1, 1)) if dtype == EXACT else ((6, 2, 2),):
        checks.check_joined_rotation(module, dtype, heads)


@pytest.mark.parametrize("dtype", TYPES)
def test_swiglu(dtype: torch.dtype) -> None:
    for activation in checks.ACTIVATIONS:
        for columns in (1500, 3) if dtype == EXACT else (1500,):
            checks.check_gated(kernel("swiglu"), dtype, activation, columns)


@pytest.mark.parametrize("dtype", TYPES)
def test_add_norm(dtype: torch.dtype) -> None:
    for layer in (True, False):
        for columns, rows in ((37, (3, 5)), (64, (1,))) if dtype == EXACT else ((37, (3, 5)),):
            checks.check_add_norm(kernel("add_norm"), dtype, layer, columns, rows)


def test_no_rows_are_no_fault() -> None:
    """An expert may have no tokens."""
    gate = torch.empty(0, 8, requires_grad=True)
    found = kernel("swiglu").gated("swiglu", gate, gate)
    assert found.shape == (0, 8) and torch.autograd.grad(found.sum(), gate)[0].shape == (0, 8)


# ---- planted faults: (file, what is there, what is there instead, the check that must refuse it)

FLOAT = EXACT
FAULTS = {
    "a target is the next one": (
        "cross_entropy",
        "tl.where(at == target, 1.0, 0.0)",
        "tl.where(at == target + 1, 1.0, 0.0)",
        lambda module: checks.check_cross_entropy(module, FLOAT),
    ),
    "the largest logit is not subtracted": (
        "cross_entropy",
        "tl.where(largest == infinite, 0.0, largest)",
        "0.0",
        lambda module: checks.check_cross_entropy(module, FLOAT),
    ),
    "a later block's larger logit does not shrink the sum": (
        "cross_entropy",
        "total * tl.exp(shift - new_shift)",
        "total",
        lambda module: checks.check_cross_entropy(module, FLOAT),
    ),
    "what lies beside the row counts": (
        "cross_entropy",
        "logit = tl.load(logits + at, mask=at < columns, other=infinite)",
        "logit = tl.load(logits + at)",
        lambda module: checks.check_cross_entropy(module, FLOAT),
    ),
    "a block of -inf makes NaN": (
        "cross_entropy",
        "tl.where(largest == infinite, 0.0, largest)",
        "largest",
        lambda module: checks.check_cross_entropy(module, FLOAT),
    ),
    "a part's sum keeps its own largest logit": (
        "cross_entropy",
        "total * tl.exp(local - common)",
        "total",
        lambda module: checks.check_parts_of_the_vocabulary(module, FLOAT),
    ),
    "a target of another part counts here": (
        "cross_entropy",
        "tl.where(here, target_logit - common, 0.0)",
        "target_logit - common",
        lambda module: checks.check_parts_of_the_vocabulary(module, FLOAT),
    ),
    "cosine and sine are exchanged": (
        "rotary",
        "(exact_first * c - exact_second * s)",
        "(exact_first * s - exact_second * c)",
        lambda module: checks.check_rotation(module, FLOAT),
    ),
    "the gradient is rotated forward": (
        "rotary",
        "        s = -s\n",
        "        s = s\n",
        lambda module: checks.check_rotation(module, FLOAT),
    ),
    "values are rotated": (
        "rotary",
        "HALF_BLOCK, HEADS_BLOCK, BACKWARD, False,",
        "HALF_BLOCK, HEADS_BLOCK, BACKWARD, True,",
        lambda module: checks.check_joined_rotation(module, FLOAT),
    ),
    "gate and up are exchanged": (
        "swiglu",
        "    return tuple(unit_stride(part).flatten(0, -2) for part in parts)",
        "    return tuple(unit_stride(part).flatten(0, -2) for part in reversed(parts))",
        lambda module: checks.check_gated(module, FLOAT, "swiglu"),
    ),
    "silu for gelu": (
        "swiglu",
        "    if GELU:",
        "    if not GELU:",
        lambda module: checks.check_gated(module, FLOAT, "geglu_tanh"),
    ),
    "the slope of gelu lacks its cubic part": (
        "swiglu",
        "0.134145 * x * x",
        "0.0",
        lambda module: checks.check_gated(module, FLOAT, "geglu_tanh"),
    ),
    "the sum's gradient is left out": (
        "add_norm",
        "ADDS=total_gradient is not None",
        "ADDS=False",
        lambda module: checks.check_add_norm(module, FLOAT, layer=False),
    ),
    "the mean counts what lies beside the row": (
        "add_norm",
        "        t = tl.where(inside, t - mean, 0.0)",
        "        t = t - mean",
        lambda module: checks.check_add_norm(module, FLOAT, layer=True),
    ),
    "the gradient's mean is not subtracted": (
        "add_norm",
        "            t_gradient -= tl.sum(p) / columns",
        "            t_gradient -= 0",
        lambda module: checks.check_add_norm(module, FLOAT, layer=True),
    ),
    "a program's second row is the first one": (
        "add_norm",
        "        place += step",
        "        place += 0",
        lambda module: checks.check_add_norm(module, FLOAT, layer=False),
    ),
    "only one program's part of the weight's gradient": (
        "add_norm",
        "row < programs",
        "row < 1",
        lambda module: checks.check_add_norm(module, FLOAT, layer=False),
    ),
}


# others of the same kernel are like them, and take less
LATER = (
    *("a target of another part counts here", "the largest logit is not subtracted", "what lies beside the row counts"),
    *("only one program's part of the weight's gradient", "cosine and sine are exchanged"),
    *("a part's sum keeps its own largest logit", "values are rotated", "silu for gelu"),
    *("the slope of gelu lacks its cubic part", "the mean counts what lies beside the row"),
    "the gradient's mean is not subtracted",
)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.thorough) if fault in LATER else fault for fault in FAULTS]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fault_is_refused(fault: str, tmp_path: Path) -> None:
    name, right, wrong, check = FAULTS[fault]
    check(planted(tmp_path / "right.py", name, right, right))
    with pytest.raises(AssertionError):
        check(planted(tmp_path / "wrong.py", name, right, wrong))


def planted(path: Path, name: str, right: str, wrong: str) -> ModuleType:
    source = (FUSED / f"{name}.py").read_text()
    assert right in source, right
    path.write_text(source.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("fused.swiglu" if name == "swiglu" else path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return small(module)
