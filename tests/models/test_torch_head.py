"""The head with its loss: as torch computes it; and the way of accelerators, on tensors of a processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.torch

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("sizes", [(64, 64), (2000, 400), (2**24, 2**23)])
def test_head_loss_is_cross_entropy(sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from model import head_loss

    monkeypatch.setattr(head_loss, "CPU_BYTES", sizes)
    monkeypatch.setattr(head_loss, "MIN_ROWS", 4)
    x = torch.randn(3, 21, 16, requires_grad=True)
    weight = torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(0, 50, (3, 21))
    expected = torch.nn.functional.cross_entropy((x @ weight.t()).flatten(0, 1), targets.flatten()) * 0.25
    gradients = torch.autograd.grad(expected, (x, weight))
    loss = head_loss.head_loss(x, weight, targets, 0.25)
    torch.testing.assert_close(loss[0], expected)
    for found, right in zip(torch.autograd.grad(loss, (x, weight)), gradients, strict=True):
        torch.testing.assert_close(found, right)


def test_head_loss_refuses_a_factor_outside() -> None:
    from model.head_loss import head_loss

    x, weight = torch.randn(1, 4, 8, requires_grad=True), torch.randn(10, 8, requires_grad=True)
    with pytest.raises(ValueError, match="expected 1"):
        (head_loss(x, weight, torch.zeros(1, 4, dtype=torch.int64), 1.0) * 2).backward()


# ---- on accelerators


def head_of(
    dtype: torch.dtype, tokens: int = 45, vocabulary: int = 50, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, the head's weight in float32, and targets with both ends of the vocabulary."""
    torch.manual_seed(3)
    x = (scale * torch.randn(1, tokens, 16)).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, 16, requires_grad=True)
    targets = torch.randint(0, vocabulary, (1, tokens))
    targets[0, 0], targets[0, -1] = 0, vocabulary - 1
    return x, weight, targets


def loss_and_gradients(x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    from model.head_loss import head_loss

    loss = head_loss(x, weight, targets, 0.5)
    return [loss.detach(), *(part.float() for part in torch.autograd.grad(loss, (x, weight)))]


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], ModuleType]:
    """Take the way of accelerators, with the bytes of a chunk and of a softmax, from then on."""
    from model import head_loss, head_on_accelerators

    def begin(chunk: int, softmax: int) -> ModuleType:
        monkeypatch.setattr(head_loss, "on_processor", lambda tensor: False)
        monkeypatch.setattr(head_on_accelerators, "WHOLE", (chunk, softmax, 2))
        return head_on_accelerators

    return begin


@pytest.mark.parametrize("scale", [1.0, 1000.0])  # of 1000: logits of 10,000
@pytest.mark.parametrize(
    ("tokens", "chunk", "softmax"), [(45, 3 * 2**27, 2**27), (45, 1600, 1600), (45, 1, 1), (1, 1, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_on_accelerators_the_head_computes_the_same(
    dtype: torch.dtype,
    tokens: int,
    chunk: int,
    softmax: int,
    scale: float,
    accelerated: Callable[[int, int], ModuleType],
) -> None:
    inputs = head_of(dtype, tokens, scale=scale)
    expected = loss_and_gradients(*inputs)
    accelerated(chunk, softmax)
    found = loss_and_gradients(*inputs)
    rounding = torch.finfo(dtype).eps
    for mine, theirs, allowed in zip(found, expected, (1e-6, 2 * rounding, 4 * rounding), strict=True):
        assert theirs.isfinite().all() and theirs.abs().max() > 0
        assert (mine - theirs).abs().max() <= allowed * theirs.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_loss_on_accelerators_is_finite_where_it_was(dtype: torch.dtype) -> None:
    """And equal there, as the gradients are, also in a row that has logits without weight."""
    from model.head_loss import cross_entropy_
    from model.head_on_accelerators import whole_cross_entropy_

    largest, infinite = torch.finfo(dtype).max, float("inf")
    rows = [
        [0.0] * 4,
        [largest, largest, 0.0, -largest],
        [-largest, -largest, -largest, -largest],
        [largest / 2, -largest / 2, 3.0, 4.0],
        [-infinite, 1.0, 2.0, 3.0],
        [infinite, 1.0, 2.0, 3.0],
        [-infinite] * 4,
        [float("nan"), 1.0, 2.0, 3.0],
        [88.0, -88.0, 104.0, -104.0],
    ]
    finite = 0
    for row in rows:
        for target in range(4):
            mine, theirs = torch.tensor([row], dtype=dtype), torch.tensor([row], dtype=dtype)
            found = whole_cross_entropy_(mine, torch.tensor([target]))
            expected = cross_entropy_(theirs, torch.tensor([target]), None)
            torch.testing.assert_close(found, expected, equal_nan=True)
            torch.testing.assert_close(mine, theirs, equal_nan=True)
            finite += int(expected.isfinite())
    assert 12 <= finite < 4 * len(rows)


def test_on_accelerators_a_chunk_has_as_many_rows_as_a_plan_has_memory_for() -> None:
    """Its logits in x's precision, and float32 beside them; whole tiles of a product, in chunks of equal length."""
    from levelfield.predict import footprint
    from model import head_on_accelerators as there

    assert (there.WHOLE, there.PART) == (footprint.WHOLE_HEAD, footprint.PART_OF_HEAD)
    weight = torch.empty(128256, 8, device="meta")
    group: Any = object()
    x = torch.empty(2**15, 8, dtype=torch.bfloat16, device="meta")
    assert there.way_of(x, weight, None)[:2] == (1536, 130)  # 22 chunks; 1,569 have room
    assert there.way_of(x.float(), weight, None)[:2] == (768, 130)
    assert there.way_of(x, weight[: 128256 // 2], group)[:2] == (2048, 1046)
    assert there.way_of(x[:3000], weight, None)[:2] == (1536, 130)
    assert there.way_of(x[:100], weight, None)[:2] == (100, 100)
    assert there.way_of(x, torch.empty(2**28, 1, device="meta"), None)[:2] == (1, 1)


def test_with_a_kernel_a_chunk_has_the_bytes_of_the_softmax_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one call of the kernel is for all of its rows."""
    from levelfield.predict import footprint
    from model import head_on_accelerators as there
    from model import kernels

    assert there.KERNEL_BYTES == footprint.FUSED_HEAD_BYTES == sum(there.WHOLE[:2]) == sum(there.PART[:2])
    kernel = SimpleNamespace(cross_entropy_=object(), part_cross_entropy_=print)
    monkeypatch.setitem(kernels._chosen, "cross_entropy", kernel)
    weight = torch.empty(128256, 8, device="meta")
    group: Any = object()
    x = torch.empty(2**15, 8, dtype=torch.bfloat16, device="meta")
    way = there.way_of(x, weight, None)
    assert way[:3] == (2048, 2048, kernel.cross_entropy_)
    part = there.way_of(x, weight[: 128256 // 2], group)
    assert part[:2] == (4096, 4096)
    loss: Any = part.cross_entropy
    assert (loss.func, loss.keywords) == (print, {"group": group})
    assert there.way_of(x[:2000], weight, None)[:2] == (2000, 2000)
    assert there.way_of(x[:2100], weight, None)[:2] == (1152, 1152)


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 1000, 4096, 8192, 32768, 99999])
@pytest.mark.parametrize("most", [0, 1, 100, 128, 200, 1569, 2093, 2**20])
def test_chunks_are_equal_tiles_and_as_few_as_they_can_be(tokens: int, most: int) -> None:
    from levelfield.predict.footprint import head_chunk_rows
    from model.head_on_accelerators import TILE, equal_chunks

    rows = equal_chunks(tokens, most)
    assert rows == head_chunk_rows(tokens, most), "a plan has memory for another chunk"
    assert 1 <= rows <= max(1, most) and rows <= max(tokens, TILE)
    if TILE <= most < tokens:
        assert rows % TILE == 0
        assert -(-tokens // rows) == -(-tokens // (most // TILE * TILE))
        assert rows - TILE < tokens / -(-tokens // rows), "a tile less would not do"


def test_parts_of_a_vocabulary_are_summed_over_their_group(accelerated: Callable[[int, int], ModuleType]) -> None:
    from model import head_loss

    there, group = accelerated(2**10, 2**10), object()
    x, weight, _ = head_of(torch.float32)
    assert there.way_of(x, weight, None).cross_entropy is there.whole_cross_entropy_
    assert there.way_of(x, weight, group).cross_entropy.func is head_loss.cross_entropy_
    assert there.way_of(x, weight, group).cross_entropy.keywords == {"group": group}


@pytest.mark.parametrize("dtype", HALVES)
def test_where_torch_adds_in_float32_the_head_s_gradient_is_not_rounded(
    dtype: torch.dtype, accelerated: Callable[[int, int], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has that kernel for CUDA alone: here products of float32 stand for it, with the arguments that it takes."""
    there = accelerated(1600, 1600)
    x, weight, targets = head_of(dtype)
    assert not there.adds_in_float32(x.device, dtype)
    exact = loss_and_gradients(
        x.detach().float().requires_grad_(), weight.detach().to(dtype).float().requires_grad_(), targets
    )
    rounded = loss_and_gradients(x, weight, targets)
    calls, own = [], torch.addmm

    def addmm(
        total: torch.Tensor,
        left: torch.Tensor,
        right: torch.Tensor,
        *,
        out_dtype: torch.dtype,
        beta: int,
        alpha: int,
        out: torch.Tensor,
    ) -> torch.Tensor:
        assert left.dtype == right.dtype == dtype and out is total and out_dtype == total.dtype == torch.float32
        calls.append(beta)
        return own(total, left.float(), right.float(), beta=beta, alpha=alpha, out=out)

    monkeypatch.setattr(torch, "addmm", addmm)
    there.adds_in_float32.cache_clear()
    try:
        added = loss_and_gradients(x, weight, targets)
    finally:
        there.adds_in_float32.cache_clear()
    assert calls == [1, 0, 1, 1]  # the question whether it does, then a chunk of 16 rows each
    torch.testing.assert_close(added[:2], rounded[:2])
    limit = torch.finfo(dtype).eps * exact[2].abs().max()
    assert (added[2] - rounded[2]).abs().max() <= 4 * limit
    assert (added[2] - exact[2]).abs().mean() < (rounded[2] - exact[2]).abs().mean()


def test_what_computes_on_a_processor_does_not_rest_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    import model

    monkeypatch.delitem(sys.modules, "model.head_on_accelerators", raising=False)
    monkeypatch.delattr(model, "head_on_accelerators", raising=False)
    loss_and_gradients(*head_of(torch.float32))
    assert "model.head_on_accelerators" not in sys.modules
