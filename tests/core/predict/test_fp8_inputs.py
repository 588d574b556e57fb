"""In fp8 torch keeps the input of each product on NVIDIA devices, though several have the same one."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.predict.activations import _inputs


@pytest.mark.parametrize(("width", "is_gated", "by_product", "expected"), [(1, True, True, 5), (1, False, True, 4)])
def test_each_product_keeps_its_input_in_8_bits(width: int, is_gated: bool, by_product: bool, expected: int) -> None:
    def found(width: int, by_product: bool) -> int:
        setup: Any = type("Setup", (), {})()
        setup.input_width, setup.model = width, type("Model", (), {"is_gated": is_gated})
        setup.memory_model = type("MemoryModel", (), {"inputs_by_product": by_product})
        return _inputs(setup)

    assert found(width, by_product) == expected
    assert found(2, by_product) == found(width, False) == 2
