"""In fp8 torch keeps the input of each product on NVIDIA devices, though several have the same one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.predict.activations import _inputs


@pytest.mark.parametrize(("is_gated", "expected"), [(True, 5), (False, 4)])
def test_each_product_keeps_its_input_in_8_bits(is_gated: bool, expected: int) -> None:
    def found(width: int, by_product: bool) -> int:
        memory_model = SimpleNamespace(inputs_by_product=by_product)
        model = SimpleNamespace(is_gated=is_gated)
        setup: Any = SimpleNamespace(input_width=width, model=model, memory_model=memory_model)
        return _inputs(setup)

    assert found(1, True) == expected
    assert found(2, True) == found(1, False) == 2
