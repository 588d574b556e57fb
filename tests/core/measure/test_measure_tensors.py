"""One step of two trainings, tensor by tensor: the order, the limits, and damaged or missing tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from levelfield.errors import DocumentError
from levelfield.measure.tensors import Array, compare_step, computation_order, tensor_limit

PARAMETERS = ["embedding.weight", "layers.0.mlp.up.weight", "layers.0.attention.key.bias", "head.weight"]
Change = Callable[[Array], Array]
NAMES = ["embedding", "layers.0", "layers.1", "final_norm", "logits"]
RANDOM = np.random.default_rng(5)
RIGHT = {
    **{name: RANDOM.normal(size=(2, 3, 4)).astype(np.float32) for name in NAMES},
    **{f"gradient.{name}": RANDOM.normal(size=(4, 4)).astype(np.float32) for name in PARAMETERS},
    **{f"updated.{name}": RANDOM.normal(size=(4, 4)).astype(np.float32) for name in PARAMETERS},
}
RIGHT["gradient.layers.0.attention.key.bias"] *= np.float32(1e-9)  # rounding alone, as softmax leaves it


def keep(folder: Path, **changes: Change | None) -> Path:
    """A step's files; a change is a function of the tensor, None leaves the tensor out."""
    (folder / "updated").mkdir(parents=True)
    for name, array in RIGHT.items():
        change = changes.get(name.replace(".", "_"), lambda tensor: tensor)
        if change is not None:
            place = folder / "updated" / name.removeprefix("updated.") if name.startswith("updated.") else folder / name
            np.save(place.with_name(place.name + ".npy"), change(array))
    return folder


def differing(folder: Path, **changes: Change | None) -> list[str]:
    differences = compare_step(keep(folder / "ours", **changes), keep(folder / "theirs"), PARAMETERS, "fp32")
    return [tensor.name for tensor in differences if tensor.differs]


def test_equal_steps_agree_and_rounding_does(tmp_path: Path) -> None:
    assert differing(tmp_path / "equal") == []
    assert differing(tmp_path / "rounded", layers_1=lambda t: t * np.float32(1 + 5e-7)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t * np.float32(1.01),
        lambda t: -t,
        lambda t: np.full_like(t, np.nan),
        lambda t: np.where(t == t[0, 0, 0], np.inf, t),
        lambda t: t[:1],
        lambda t: t.swapaxes(0, 1),
        lambda t: t + np.float32(1e-4),
        None,
    ],
    ids=["1 %", "sign", "NaN", "one infinite", "truncated", "swapped", "shifted", "missing"],
)
def test_a_planted_difference_is_named(change: Change | None, tmp_path: Path) -> None:
    assert differing(tmp_path, layers_0=change) == ["layers.0"]


def test_gradients_and_updates_are_compared_but_not_what_is_rounding_alone(tmp_path: Path) -> None:
    twice = dict.fromkeys([name.replace(".", "_") for name in RIGHT if "." in name], lambda t: 2 * t)
    differences = differing(tmp_path, **twice)
    assert "gradient.layers.0.attention.key.bias" not in differences
    assert "updated.layers.0.attention.key.bias" not in differences
    assert differences[:3] == ["layers.0", "layers.1", "gradient.head.weight"]
    assert differences[-1] == "updated.head.weight"


def test_the_order_is_the_steps() -> None:
    names = {*RIGHT, "layers.10", "strange"}
    forward = ["embedding", "layers.0", "layers.1", "layers.10", "final_norm", "logits"]
    backward = [f"gradient.{name}" for name in reversed(PARAMETERS)]
    assert computation_order(names, PARAMETERS) == [
        *forward,
        *backward,
        *(f"updated.{n}" for n in PARAMETERS),
        "strange",
    ]


def test_the_largest_single_difference_is_shown(tmp_path: Path) -> None:
    def spoilt(tensor: Array) -> Array:
        tensor = tensor.copy()
        tensor[1, 2, 3] += 1
        return tensor

    differences = compare_step(keep(tmp_path / "a", logits=spoilt), keep(tmp_path / "b"), PARAMETERS, "fp32")
    detail = next(tensor.detail for tensor in differences if tensor.differs)
    assert "[1, 2, 3]: " in detail
    assert f"expected {RIGHT['logits'][1, 2, 3]:.8g}" in detail


def test_coarser_numbers_have_wider_limits() -> None:
    for name in ("logits", "gradient.head.weight", "updated.head.weight"):
        assert tensor_limit(name, "fp32") < tensor_limit(name, "fp16") < tensor_limit(name, "bf16") < 0.1


def test_nothing_captured_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=str(tmp_path)):
        list(compare_step(tmp_path, tmp_path, PARAMETERS, "fp32"))
    ours, theirs = keep(tmp_path / "a"), keep(tmp_path / "b")
    (ours / "layers.0.npy").write_bytes((ours / "layers.0.npy").read_bytes()[:90])
    with pytest.raises(DocumentError, match=r"layers\.0\.npy: "):
        list(compare_step(ours, theirs, PARAMETERS, "fp32"))
