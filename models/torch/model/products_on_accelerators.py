"""What accelerators' products can do, imported there only: trainings on a processor do not rest on this file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def float32_product(example: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Return the product of two matrices of `example`'s dtype and device that rounds nothing to 16 bits.

    None where torch has none: it does for CUDA, and not in each version.
    """
    product, matrix = partial(torch.mm, out_dtype=torch.float32), example.new_zeros(8, 8)
    try:
        product(matrix.t(), matrix)
    except (RuntimeError, TypeError):
        return None
    return product
