"""The generic adapter on recorded output of every shape (recorded/README.md), and on damaged copies of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from declared_specs import SHAPES, recorded, spec_of
from hypothesis import given
from hypothesis import strategies as st
from levelfield.contracts.command import Answer
from levelfield.contracts.declared import DeclaredVendor
from levelfield.contracts.readings import SAMPLED
from levelfield.contracts.vendor import Device, Sample

MIB = 2**20


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACME_VISIBLE_DEVICES", raising=False)


def replay(output: str | None, reason: str = "") -> Callable[[Sequence[str], float], Answer]:
    return lambda argv, timeout_seconds: Answer(output, reason)


def vendor(shape: str, output: str | None = None) -> DeclaredVendor:
    """The adapter of a shape over its own recording, or over `output`."""
    return DeclaredVendor(spec_of(SHAPES[shape][0]), replay(recorded(shape) if output is None else output))


def devices(shape: str) -> Sequence[Device]:
    return vendor(shape).devices()


def samples(shape: str, output: str | None = None) -> Sequence[Sample]:
    return vendor(shape, output).sample(devices(shape))


def values(sample: Sample) -> dict[str, Any]:
    return {field: getattr(sample, field) for field in SAMPLED}


EXPECTED = {
    "csv": {
        0: (57.0, None, 15 * MIB, 0.0, 31.0),
        1: (58.5, None, 15 * MIB, 0.0, 33.0),
    },
    "list": {
        0: (146.0, 1532.25, 283 * MIB, 0.12, 41.0),
        1: (None, 1533.5, 284 * MIB, 0.0, 42.0),
    },
    "keyed": {
        0: (57.0, None, 11264000, 0.07, None),
        1: (58.5, None, 11264001, 0.0, None),
    },
    "npu": {
        4: (None, None, 861 * MIB, 0.0, 43.0),
        5: (67.5, None, 862 * MIB, 0.12, 44.0),
    },
    "mx": {
        0: (56.0, None, 914 * MIB, 0.0, 35.0),
        1: (57.0, None, 915 * MIB, 0.03, 36.0),
    },
    "headed": {
        0: (96.0, None, None, 0.0, 53.0),
        1: (97.0, None, None, 0.05, 54.0),
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_recorded_values_in_the_contracts_units(shape: str) -> None:
    found = {s.index: tuple(values(s).values()) for s in samples(shape)}
    assert found == EXPECTED[shape]
    for sample in samples(shape):
        assert set(sample.reasons) == {field for field, value in values(sample).items() if value is None}


def test_devices_with_chip_memory_and_identity() -> None:
    name = "NVIDIA A100-SXM4-40GB"
    assert devices("csv")[0] == Device(0, "X", name, 40536 * MIB, "GPU-00000000-aaaa-bbbb-cccc-000000000000")
    assert devices("npu")[1] == Device(5, "X", "910A", 21534 * MIB, "0000:82:00.0")
    assert devices("headed")[1] == Device(1, None, "acme device 1", None, None)


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_no_truncation_gives_a_wrong_value(shape: str, data: st.DataObject) -> None:
    whole = recorded(shape)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    for found, right in zip(samples(shape, cut), samples(shape), strict=True):
        for field, value in values(found).items():
            assert value is None or value == getattr(right, field)
            assert value is not None or found.reasons[field]
