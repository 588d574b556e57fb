"""Initial weights: pinned, sliced, distributed as they should be, at a cost proportional to the slice."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.worker import Initializer, checksum_slice, hashing, normal
from levelfield.worker.faults import WorkerError
from levelfield.worker.init import normal_array
from levelfield.worker.parameters import list_parameters
from levelfield.worker.slices import Slices
from worker_jobs import LLAMA, PLATFORM, make_job


@pytest.fixture
def initializer(tmp_path: Path) -> Initializer:
    return Initializer(make_job(tmp_path))


def test_values_are_pinned(initializer: Initializer) -> None:
    values = initializer.array("layers.0.mlp.up.weight", (64, 16))
    assert (
        hashlib.sha256(values.tobytes()).hexdigest()
        == "c26880449bd980390abeaaa9103aa0dbc927e73392d786bf8ca7a1c2d512a08d"
    )
    assert values.dtype == np.float32


def test_values_by_the_definition_alone(initializer: Initializer) -> None:
    # written out in plain integers: what another implementation, in another language, would do
    values = initializer.array("x", (3, 7), std=0.5)
    table = [round(float(v) * 2**20) for v in normal.standard_normal_table()]
    key = int.from_bytes(hashlib.sha256(b"weights\x0042\x00x").digest()[:8], "little")
    for row, column in itertools.product(range(3), range(7)):
        row_key = hashing.mix((key + row * hashing.GAMMA) % 2**64)
        word = hashing.mix((row_key + column // 4 * hashing.GAMMA) % 2**64)
        level = word >> 16 * (column % 4) & 0xFFFF
        assert values[row, column] == np.float32(table[level] / 2**20) * np.float32(0.5)


def test_another_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    units = normal._quantile_units()
    units[40000] += 1
    monkeypatch.setattr(normal, "_quantile_units", lambda: units)
    with pytest.raises(WorkerError, match="expected " + normal.TABLE_SHA256):
        normal.standard_normal_table.__wrapped__()


def test_the_table_does_not_hang_on_rounding() -> None:
    # the nearest any entry comes to a rounding tie is far above what two mathematical libraries may differ by
    inverse = NormalDist().inv_cdf
    upper = np.array([inverse((k + 0.5) / normal.LEVELS) for k in range(normal.LEVELS // 2, normal.LEVELS)])
    scaled = upper * (normal.UNIT / math.sqrt(math.fsum(upper * upper) / len(upper)))
    assert np.abs(scaled - np.floor(scaled) - 0.5).min() > 1e-6


@given(data=st.data(), shape=st.lists(st.integers(1, 13), min_size=1, max_size=3))
def test_a_slice_is_the_slice_of_the_whole(data: st.DataObject, shape: Sequence[int]) -> None:
    slices = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        slices.append(data.draw(st.sampled_from([None, slice(start, data.draw(st.integers(start, size)))])))
    whole = normal_array(12345, shape, None, 0.02)
    part = normal_array(12345, shape, slices, 0.02)
    assert np.array_equal(part, whole[tuple(s or slice(None) for s in slices)])


def test_a_slice_across_blocks(initializer: Initializer) -> None:
    wide = initializer.array("wide", (3, 100_003), std=1.0)
    part = initializer.array("wide", (3, 100_003), (slice(1, 3), slice(30_001, 99_999)), std=1.0)
    assert np.array_equal(part, wide[1:3, 30_001:99_999])
    tall = initializer.array("tall", (20_000, 6), std=1.0)
    assert np.array_equal(initializer.array("tall", (20_000, 6), (slice(7, 19_000), None), std=1.0), tall[7:19_000])


def test_values_are_normal(initializer: Initializer) -> None:
    values = initializer.array("big", (1000, 1000), std=1.0).astype(np.float64)
    n = values.size
    assert abs(values.mean()) < 4 / math.sqrt(n)
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((values**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 4 * math.sqrt(96 / n)
    places = np.sort(values.reshape(-1))[:: n // 1000]
    expected = np.array([NormalDist().cdf(v) for v in places])
    # the Kolmogorov-Smirnov distance, at a level of about one in a million
    assert np.abs(expected - np.arange(len(places)) / len(places)).max() < 2.7 / math.sqrt(n) + 1e-5


def test_neighbours_are_independent(initializer: Initializer) -> None:
    values = initializer.array("big", (1000, 1000), std=1.0).astype(np.float64)
    for shift, axis in itertools.product((1, 2, 3, 4, 8), (0, 1)):
        assert abs((values * np.roll(values, shift, axis)).mean()) < 5 / 1000


def test_names_and_seeds_give_other_values(tmp_path: Path) -> None:
    first = Initializer(make_job(tmp_path))
    other = Initializer(make_job(tmp_path, training={"seed": 43}))
    arrays = [
        first.array("a", (100, 100), std=1.0),
        first.array("b", (100, 100), std=1.0),
        other.array("a", (100, 100), std=1.0),
    ]
    for one, two in itertools.combinations(arrays, 2):
        assert abs(float((one * two).mean())) < 0.05
        assert (one == two).mean() < 0.001


@pytest.mark.parametrize("slices", [(slice(0, 128), None), (None, slice(128, 256))])
def test_an_eighth_costs_an_eighth(initializer: Initializer, monkeypatch: pytest.MonkeyPatch, slices: Slices) -> None:
    sizes = []

    def mix_in_place(words: hashing.Words, scratch: hashing.Words) -> hashing.Words:
        sizes.append(words.size)
        return hashing.mix_in_place(words, scratch)

    monkeypatch.setattr(normal, "mix_in_place", mix_in_place)
    initializer.array("m", (1024, 1024), slices, std=1.0)
    assert sum(sizes) == 1024 * 1024 // 8 // 4


def test_constants_and_what_the_list_says(initializer: Initializer) -> None:
    assert (initializer.array("final_norm.weight", (16,)) == 1).all()
    assert (initializer.array("final_norm.bias", (16,), (slice(0, 4),)) == 0).all()
    up, down = (initializer.array(f"layers.1.mlp.{n}.weight", s) for n, s in (("up", (64, 16)), ("down", (16, 64))))
    assert up.std() == pytest.approx(0.02, rel=0.1)
    assert down.std() == pytest.approx(0.01, rel=0.1)  # 0.02 / sqrt(2 * 2 layers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(name="x", shape=(2, 2)), "not a parameter"),
        (dict(name="final_norm.weight", shape=(17,)), r"\(17,\), expected \(16,\)"),
        (dict(name="x", shape=(2, 2), std=1.0, fill=0.0), "expected one"),
        (dict(name="x", shape=(2, 2), slices=(None,), std=1.0), "found 1 slices"),
        (dict(name="x", shape=(9,), slices=(slice(0, 8, 2),), std=1.0), "step"),
    ],
)
def test_wrong_requests_are_refused(initializer: Initializer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        initializer.array(**arguments)


def test_the_list_of_parameters(tmp_path: Path) -> None:
    gpt = make_job(tmp_path).model
    parameters = list_parameters(gpt, 32)
    layer = 4 * (16 * 16 + 16) + 2 * 16 * 64 + 64 + 16 + 4 * 16
    assert sum(math.prod(spec.shape) for spec in parameters.values()) == 1000 * 16 + 32 * 16 + 2 * layer + 2 * 16
    assert list(parameters)[:3] == ["embedding.weight", "position.weight", "layers.0.attention_norm.weight"]
    assert "head.weight" not in parameters


def test_llama3_8b_has_its_published_number_of_parameters(tmp_path: Path) -> None:
    sizes = dict(layers=32, hidden_size=4096, ffn_hidden_size=14336, heads=32, kv_heads=8, vocab_size=128256)
    model = make_job(tmp_path, model={**LLAMA, **sizes}).model
    assert sum(math.prod(spec.shape) for spec in list_parameters(model, 8192).values()) == 8_030_261_248


def test_checksums_of_slices_add_up(initializer: Initializer) -> None:
    whole = initializer.array("m", (37, 53), std=1.0)
    total = checksum_slice("m", whole, (37, 53), None)
    rows = [(slice(0, 20), None), (slice(20, 37), slice(0, 9)), (slice(20, 37), slice(9, 53))]
    parts = [checksum_slice("m", initializer.array("m", (37, 53), s, std=1.0), (37, 53), s) for s in rows]
    assert sum(parts) % 2**64 == total
    assert total == 0xBD98FE971AC9C803


def test_a_checksum_sees_every_kind_of_change(initializer: Initializer) -> None:
    whole = initializer.array("m", (8, 8), std=1.0)
    bit, swapped, moved = whole.copy(), whole.copy(), whole.copy()
    bit.view(np.uint32)[3, 4] ^= 1
    swapped[[1, 2]] = swapped[[2, 1]]
    moved[0, [0, 1]] = moved[0, [1, 0]]
    zero, minus_zero = np.zeros((8, 8), np.float32), np.full((8, 8), -0.0, np.float32)
    sums = [
        checksum_slice("m", a, (8, 8), None) for a in (whole, bit, swapped, moved, whole.T.copy(), zero, minus_zero)
    ]
    sums += [checksum_slice("other", whole, (8, 8), None), checksum_slice("m", whole, (9, 8), (slice(1, 9), None))]
    sums += [checksum_slice("m", zero[:4], (8, 8), (slice(0, 4), None)), 0]
    assert len(set(sums)) == len(sums)


def test_a_checksum_refuses_another_dtype_or_shape(initializer: Initializer) -> None:
    with pytest.raises(ValueError, match="float64"):
        checksum_slice("m", np.zeros((2, 2)), (2, 2), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        checksum_slice("m", np.zeros((2, 3), np.float32), (2, 2), None)


def test_the_worker_needs_the_standard_library_and_numpy_only() -> None:
    code = (
        "import sys, json; before = set(sys.modules); import numpy; import levelfield.worker.interface;"
        "print(json.dumps(sorted({m.partition('.')[0] for m in set(sys.modules) - before})))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(PLATFORM)}, capture_output=True, check=True
    )
    loaded = set(json.loads(out.stdout)) - {"numpy", "levelfield"} - set(sys.stdlib_module_names)
    assert {name for name in loaded if not name.startswith("_")} == set()


@pytest.mark.parametrize("room", ["worker", "node"])
def test_what_runs_on_nodes_keeps_to_python_3_8(room: str) -> None:
    pytest.importorskip("vermin")
    main = "from vermin import main; main()"
    command = [sys.executable, "-c", main, "-t=3.8-", "--violations", "--no-tips", str(PLATFORM / "levelfield" / room)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
