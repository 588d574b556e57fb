"""What each kernel of models/torch/fused must compute: the same as torch in float64, to the rounding of its dtype.

A check is given the kernel's module, and raises AssertionError where it computes something else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Over the largest value. Sums of some hundred numbers in float32; one rounding to 16 bits, and for weights and the norm
# one of their input too. The interpreter cuts bfloat16 off, where a chip rounds: that is up to twice as much.
ALLOWED = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-6}
INFINITE, NAN = float("inf"), float("nan")


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    exact = found.double()
    assert torch.equal(exact.isnan(), expected.isnan()), f"{what}: NaN in other places than expected"
    exact, expected = exact.detach(), expected.detach()
    finite = expected.isfinite()
    assert torch.equal(exact[~finite & ~expected.isnan()], expected[~finite & ~expected.isnan()]), f"{what}: infinities"
    if finite.any():
        largest = expected[finite].abs().max().clamp_min(1e-30)
        off = float((exact[finite] - expected[finite]).abs().max() / largest)
        assert off <= ALLOWED[dtype], f"{what}: off by {off:.3g}, expected at most {ALLOWED[dtype]:.3g} ({dtype})"


def all_close(found: Any, expected: Any, dtype: torch.dtype, what: str) -> None:
    for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        close(mine, theirs, dtype, f"{what}, tensor {index}")


def exact_leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


# ---- cross-entropy


def logits_of(dtype: torch.dtype, columns: int = 201, rows: int = 6) -> torch.Tensor:
    """Rows of a wider matrix: a row's stride is not its length. One has logits of +-1e4, one a block of -inf."""
    torch.manual_seed(1)
    wide = (3 * torch.randn(rows, columns + 7)).to(dtype)
    wide[1] *= 1e4 / wide[1].abs().max().item()
    wide[2, :70] = -INFINITE
    return wide[:, :columns]


def targets_of(logits: torch.Tensor) -> torch.Tensor:
    targets = torch.randint(0, logits.shape[1], (logits.shape[0],))
    targets[0], targets[1], targets[2], targets[-1] = 0, int(logits[1].argmax()), 100, logits.shape[1] - 1
    return targets


def expected_loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss and the logits' gradient, by torch in float64."""
    (exact,) = exact_leaves(logits)
    loss = functional.cross_entropy(exact, targets, reduction="sum")
    return loss.detach(), torch.autograd.grad(loss, exact)[0]


def check_cross_entropy(module: Any, dtype: torch.dtype, columns: int = 201) -> None:
    logits = logits_of(dtype, columns)
    targets = targets_of(logits)
    loss, gradient = expected_loss(logits, targets)
    whole = logits._base
    assert whole is not None
    beside = whole[:, columns:].clone()
    close(module.cross_entropy_(logits, targets), loss, torch.float32, "loss")
    close(logits, gradient, dtype, "gradient")
    assert torch.equal(whole[:, columns:], beside), "wrote beside the logits"


def check_rows_that_are_not_finite(module: Any, dtype: torch.dtype) -> None:
    """As torch has them, and each row by itself: what is not finite in one changes no other."""
    for bad in ([NAN, 1.0, 2.0], [INFINITE, 1.0, 2.0], [-INFINITE, 1.0, 2.0], [-INFINITE] * 3):
        for target in range(3):
            row = torch.tensor([bad], dtype=dtype)
            loss, gradient = expected_loss(row, torch.tensor([target]))
            close(module.cross_entropy_(row, torch.tensor([target])), loss, torch.float32, f"loss of {bad}")
            close(row, gradient, dtype, f"gradient of {bad}")
    rows = torch.randn(2, 3).to(dtype)
    rows[0, 1] = NAN
    _, gradient = expected_loss(rows, torch.tensor([0, 2]))
    module.cross_entropy_(rows, torch.tensor([0, 2]))
    close(rows, gradient, dtype, "gradient of a row after one of NaN")


def check_parts_of_the_vocabulary(module: Any, dtype: torch.dtype, sizes: tuple[int, ...] = (65, 64, 72)) -> None:
    """Ranks that have `sizes` columns each: their kernels one after the other, their exchanges between."""
    logits = logits_of(dtype, sum(sizes))
    targets = targets_of(logits)
    targets[3], targets[4] = sizes[0], sizes[0] - 1  # both sides of the first border
    loss, gradient = expected_loss(logits, targets)
    parts, starts = [part.clone() for part in logits.split(sizes, dim=1)], [sum(sizes[:n]) for n in range(len(sizes))]
    ranks = [module.Part(part, targets - start) for part, start in zip(parts, starts, strict=True)]
    exchange([rank.largest() for rank in ranks], torch.amax)
    exchange([rank.sums() for rank in ranks], torch.sum)
    for rank in ranks:
        close(rank.loss_(), loss, torch.float32, "loss of a part")
    close(torch.cat(parts, dim=1), gradient, dtype, "gradient of the parts")


def exchange(tensors: list[torch.Tensor], operation: Any) -> None:
    common = operation(torch.stack(tensors), dim=0)
    for tensor in tensors:
        tensor.copy_(common)


# ---- rotary


def tables_of(length: int, half: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """More positions than are rotated, as `rotary_tables` has them."""
    angle = torch.outer(torch.arange(length + 3.0), 100 ** -(torch.arange(half) / half))[:, None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def exactly_rotated(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = (table[: x.shape[1]].double() for table in tables)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def check_rotation(module: Any, dtype: torch.dtype, half: int = 6) -> None:
    """Of heads that are a part of a wider tensor, with a gradient that lies heads first, as attention's does."""
    torch.manual_seed(2)
    tables = tables_of(4, half, dtype)
    wide = torch.randn(2, 4, 5, 3 * half).to(dtype)
    x = wide[..., half:].requires_grad_()
    gradient = torch.randn(2, 5, 4, 2 * half).to(dtype).transpose(1, 2)
    (exact,) = exact_leaves(x)
    expected = exactly_rotated(exact, tables)
    found = module.rotate(x, tables)
    close(found, expected.detach(), dtype, "rotated")
    (mine,), (theirs,) = (
        torch.autograd.grad(found, x, gradient),
        torch.autograd.grad(expected, exact, gradient.double()),
    )
    close(mine, theirs, dtype, "gradient of the rotation")


def check_joined_rotation(module: Any, dtype: torch.dtype, heads: tuple[int, int, int] = (6, 2, 2)) -> None:
    torch.manual_seed(3)
    half = 5
    tables = tables_of(4, half, dtype)
    joined = torch.randn(2, 4, sum(heads) * 2 * half).to(dtype).requires_grad_()
    before = joined.detach().clone()
    (exact,) = exact_leaves(joined)
    parts = exact.unflatten(-1, (sum(heads), -1)).split(heads, dim=2)
    expected = (*(exactly_rotated(part, tables) for part in parts[:2]), parts[2])
    found = module.rotate_joined(joined, tables, list(heads))
    all_close(found, [part.detach() for part in expected], dtype, "queries, keys and values")
    assert torch.equal(found[2].detach().flatten(2), before[..., -heads[2] * 2 * half :]), "values are copied"
    assert torch.equal(joined.detach(), before), "the product's output stays: selective recomputation keeps it"
    gradients = [torch.randn(2, n, 4, 2 * half).to(dtype).transpose(1, 2) for n in heads]
    (mine,) = torch.autograd.grad(found, joined, gradients)
    (theirs,) = torch.autograd.grad(expected, exact, [gradient.double() for gradient in gradients])
    close(mine, theirs, dtype, "gradient of the joined output")


# ---- swiglu

ACTIVATIONS = {"swiglu": functional.silu, "geglu_tanh": lambda x: functional.gelu(x, approximate="tanh")}


def check_gated(module: Any, dtype: torch.dtype, activation: str, columns: int = 1500) -> None:
    """Of one tensor for both, and of two; more than one block of columns, and gates of +-100."""
    torch.manual_seed(4)
    joined = (2 * torch.randn(2, 3, 2 * columns)).to(dtype)
    joined[0, 0, :2] = torch.tensor([100.0, -100.0])
    gradient = torch.randn(2, 3, columns).to(dtype)
    (exact,) = exact_leaves(joined)
    gate, up = exact.chunk(2, dim=-1)
    expected = ACTIVATIONS[activation](gate) * up
    (of_exact,) = torch.autograd.grad(expected, exact, gradient.double())
    one = joined.clone().requires_grad_()
    found = module.gated(activation, one)
    close(found, expected.detach(), dtype, "gated")
    close(torch.autograd.grad(found, one, gradient)[0], of_exact, dtype, "gradient of both")
    two = [half.clone().requires_grad_() for half in joined.chunk(2, dim=-1)]
    found = module.gated(activation, *two)
    close(found, expected.detach(), dtype, "gated of two")
    mine = torch.autograd.grad(found, two, gradient.transpose(0, 1).contiguous().transpose(0, 1))
    all_close(mine, of_exact.chunk(2, dim=-1), dtype, "gradients of gate and up")


# ---- add_norm


def check_add_norm(
    module: Any, dtype: torch.dtype, layer: bool, columns: int = 37, rows: tuple[int, ...] = (3, 5)
) -> None:
    """With a branch and without; where the sum goes on, and where it ends."""
    torch.manual_seed(5)
    x, branch = ((1 + torch.randn(*rows, columns)).to(dtype) for _ in range(2))
    weights = [torch.randn(columns).to(dtype) for _ in range(1 + layer)]
    of_sum, of_normed = (torch.randn(*rows, columns).to(dtype) for _ in range(2))
    for inputs in ((x, branch), (x,)):
        leaves = [leaf.clone().requires_grad_() for leaf in (*inputs, *weights)]
        exact = exact_leaves(*leaves)
        parts, (weight, *bias) = leaves[: len(inputs)], leaves[len(inputs) :]
        total, normed = module.add_norm(*parts, weight=weight, bias=bias[0] if layer else None, eps=1e-3)
        rounded = exact_sum(exact[: len(inputs)], dtype)
        right = exact_norm(rounded, exact[len(inputs) :], layer)
        all_close((total, normed), (rounded.detach(), right.detach()), dtype, "sum and norm")
        for goes_on in (True, False):
            outputs = ((total, normed), (rounded, right)) if goes_on else ((normed,), (right,))
            gradients = [of_sum, of_normed] if goes_on else [of_normed]
            mine = torch.autograd.grad(outputs[0], leaves, gradients, retain_graph=True)
            theirs = torch.autograd.grad(outputs[1], exact, [each.double() for each in gradients], retain_graph=True)
            all_close(mine, theirs, dtype, f"gradients with {len(inputs)} inputs, sum goes on: {goes_on}")


def exact_sum(inputs: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Rounded to `dtype`, as the sum is handed on; its gradient is that of a sum."""
    total: Any = sum(inputs)
    return total + (total.detach().to(dtype).double() - total.detach())


def exact_norm(x: torch.Tensor, weights: list[torch.Tensor], layer: bool) -> torch.Tensor:
    norm: Any = functional.layer_norm if layer else functional.rms_norm
    return norm(x, x.shape[-1:], *weights, eps=1e-3)
