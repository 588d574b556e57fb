"""What a sampled step takes of tensors: slices, and copies that later changes do not reach."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_slices_are_those_of_an_index(dim: int) -> None:
    from step.transfers import slices_at

    tensor = torch.arange(60).reshape(3, 4, 5)
    assert torch.equal(slices_at(tensor, [2, 0], dim), tensor.index_select(dim, torch.tensor([2, 0])))


def test_no_slices_keep_nothing_of_the_tensor() -> None:
    from step.transfers import slices_at

    nothing = slices_at(torch.ones(1000, 4), [])
    assert nothing.shape == (0, 4) and nothing.untyped_storage().nbytes() == 0


def test_a_copy_has_the_numbers_of_its_time_in_float32_or_as_integers() -> None:
    from step.transfers import Copied

    parameter, tokens = torch.full((2, 2), 1.5, dtype=torch.bfloat16), torch.tensor([7, 3])
    copies = [Copied(tensor) for tensor in (parameter.t(), tokens)]
    parameter.zero_(), tokens.zero_()
    numbers, whole_numbers = (copy.numbers() for copy in copies)
    assert (numbers.dtype.name, numbers.tolist()) == ("float32", [[1.5, 1.5], [1.5, 1.5]])
    assert (whole_numbers.dtype.name, whole_numbers.tolist()) == ("int64", [7, 3])


def test_lists_of_places_come_apart_again() -> None:
    from step.transfers import indices_on_device

    parts = indices_on_device([[3, 1], [], [2]], torch.device("cpu"))
    assert [part.tolist() for part in parts] == [[3, 1], [], [2]]


def test_parts_of_pinned_memory_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    from step import transfers

    make = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: make(*size, **options))
    memory = transfers.PinnedMemory()
    tensors = [torch.full(shape, float(i)) for i, shape in enumerate([(3,), (5, 7), (2**20,), (1,)] * 2)]
    parts = [memory.empty(tensor).copy_(tensor) for tensor in tensors]
    assert all(torch.equal(part, tensor) for part, tensor in zip(parts, tensors, strict=True))
