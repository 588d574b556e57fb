"""Numbers and documents come back exactly, and damaged bytes are found."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.store.compression import pack_json, pack_numbers, unpack_json, unpack_numbers

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0))
DICTIONARY = b'{"tokens_per_second":1000.5,"reason":null,"steps":40}'


@given(st.lists(NUMBERS, max_size=60))
def test_any_numbers_come_back(values: list[float | None]) -> None:
    assert unpack_numbers(pack_numbers(tuple(values))) == tuple(values)


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=60))
def test_step_times_are_kept_as_nanoseconds(steps: list[int]) -> None:
    values = tuple(step / 1e9 for step in steps)
    packed = pack_numbers(values)
    assert packed[:1] == b"n" and unpack_numbers(packed) == values


def test_losses_are_kept_as_single_floats_where_they_are_such() -> None:
    (single,) = struct.unpack("<f", struct.pack("<f", 2.3456789))
    assert pack_numbers((single, None, 1.5))[:1] == b"f"
    assert pack_numbers((2.3456789, 1 / 3))[:1] == b"d"


def test_forty_step_times_take_less_than_half_of_their_bytes() -> None:
    values = tuple((671_700_000 + 654_321 * (i * 7919 % 40)) / 1e9 for i in range(40))
    assert len(pack_numbers(values)) < 40 * 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        pack_numbers((1.0, value, None))
    with pytest.raises(ValueError, match="JSON compliant"):
        pack_json({"value": value})


def test_a_dictionary_shortens_a_document_of_the_same_form() -> None:
    content = {"tokens_per_second": 1001.25, "reason": None, "steps": 40}
    packed = pack_json(content, DICTIONARY)
    assert unpack_json(packed, DICTIONARY) == content
    assert len(packed) < 0.6 * len(pack_json(content))


def test_another_dictionary_or_damaged_bytes_are_found_or_give_other_content() -> None:
    content = {"tokens_per_second": 1001.25, "reason": None, "steps": 40}
    packed = pack_json(content, DICTIONARY)
    for wrong in (packed[:-3], packed + b"x", b"", b"\xff" * 9):
        with pytest.raises(ValueError, match="damaged bytes"):
            unpack_json(wrong, DICTIONARY)
    with pytest.raises(ValueError):
        unpack_json(packed, DICTIONARY[::-1])
    for wrong in (b"x123", pack_numbers((1.0, 2.0))[:-2], pack_numbers((1.0, 2.0)) * 2):
        with pytest.raises(ValueError, match="damaged bytes"):
            unpack_numbers(wrong)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_json("0" * 100_000)
    monkeypatch.setattr("levelfield.store.compression.MAX_VALUE_BYTES", 10_000)
    with pytest.raises(ValueError, match="10,000 bytes"):
        unpack_json(packed)
