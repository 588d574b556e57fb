"""What every framework writes: captured tensors and saved weights are torch's, and final weights are the saved ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import MODELS, SINGLE, Variant, events, launch, read_curve, script_of, shallow, small_job
from levelfield.catalog.registry import Registry
from levelfield.worker.sketch import sketch_slice
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]


def thorough(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


SAVED = (
    thorough("paddle", "gpt", SINGLE.name),
    ("paddle", "llama", "ZeRO 1, DP2 x TP2"),
    thorough("paddle", "gpt", "TP2 x PP2"),
    thorough("megatron", "gpt", "TP2 x PP2"),
    ("megatron", "llama", "ZeRO 1, DP2 x TP2 sequence parallel"),
    thorough("megatron", "llama", "ZeRO 1, DP2 x PP2 interleaved"),
    thorough("deepspeed", "gpt", SINGLE.name),
    ("deepspeed", "llama", "ZeRO 3, DP2"),
    thorough("oneflow", "llama", SINGLE.name),
    thorough("oneflow", "gpt", "DP2 x TP2"),
    ("oneflow", "llama", "TP2 x PP2"),
)
CAPTURED = (
    ("jax", "llama", "none"),
    thorough("paddle", "gpt", "none"),
    ("paddle", "llama", "full"),
    ("megatron", "gpt", "none"),
    thorough("megatron", "llama", "none"),
    thorough("deepspeed", "gpt", "none"),
    ("deepspeed", "llama", "none"),
    ("oneflow", "gpt", "full"),
    thorough("oneflow", "llama", "none"),
)


def written(folder: Path, framework: str, job: dict[str, Any], key: str, python: Path | None) -> dict[str, np.ndarray]:
    """The arrays that a run leaves where job[key] says, by name."""
    place = folder / framework
    place.mkdir()
    job = {**job, key: {"step": 2, "folder": str(place)} if key == "capture" else str(place)}
    ends = launch(job, folder, script_of(framework), python)
    assert not any(end.returncode for end in ends), ends[0].output[-2000:]
    if key == "save_weights_dir":
        assert_recorded([events(folder, rank) for rank in range(len(ends))], place)
    return {str(path.relative_to(place).with_suffix("")): np.load(path) for path in place.rglob("*.npy")}


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, str], dict[str, np.ndarray]]:
    """What torch writes: (family, layers, key) to its arrays, computed once for each."""

    @functools.cache
    def of(family: str, layers: int, key: str) -> dict[str, np.ndarray]:
        job = small_job({**MODELS[family], "layers": layers}, SINGLE, 3)
        return written(tmp_path_factory.mktemp("torch"), "torch", job, key, None)

    return of


def assert_recorded(ranks: list[list[dict[str, Any]]], saved: Path) -> None:
    """The final weights that the ranks recorded are those that they saved, in every layout."""
    recorded = read_curve(ranks).final
    assert set(recorded) == {path.stem for path in saved.glob("*.npy")}
    for name, (norm, *projections) in recorded.items():
        array = np.load(saved / f"{name}.npy")
        square, *right = sketch_slice(name, array, array.shape, None)
        assert norm == pytest.approx(square**0.5, rel=1e-9), name
        assert projections == pytest.approx(right, rel=1e-9, abs=1e-9 * norm), name


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], limit: float) -> None:
    assert set(found) == set(expected)
    for name, right in expected.items():
        assert found[name].shape == right.shape, name
        assert np.linalg.norm(found[name] - right) < limit * max(float(np.linalg.norm(right)), 1.0), name


@pytest.mark.parametrize(("framework", "family", "layout"), SAVED)
def test_saved_weights_are_torchs(
    framework: str,
    family: str,
    layout: str,
    tmp_path: Path,
    torchs: Callable[[str, int, str], dict[str, np.ndarray]],
    interpreter_of: Callable[[str], Path],
) -> None:
    variant = VARIANTS[layout]
    model = MODELS[family] if variant.virtual_pipeline > 1 else shallow(MODELS[family])
    right, job = torchs(family, model["layers"], "save_weights_dir"), small_job(model, variant, 3)
    assert_same(written(tmp_path, framework, job, "save_weights_dir", interpreter_of(framework)), right, 2e-5)


@pytest.mark.parametrize(("framework", "family", "recompute"), CAPTURED)
def test_captured_tensors_are_torchs(
    framework: str,
    family: str,
    recompute: str,
    tmp_path: Path,
    torchs: Callable[[str, int, str], dict[str, np.ndarray]],
    interpreter_of: Callable[[str], Path],
) -> None:
    model = shallow(MODELS[family])
    right = torchs(family, model["layers"], "capture")
    assert {"embedding", "layers.1", "final_norm", "logits", "updated/embedding.weight"} < set(right)
    variant: Variant = dataclasses.replace(SINGLE, recompute=recompute)
    found = written(tmp_path, framework, small_job(model, variant, 3), "capture", interpreter_of(framework))
    assert_same(found, right, 1e-4)


@pytest.mark.parametrize("framework", ["paddle", "oneflow", "megatron"])
def test_each_framework_says_what_it_is(framework: str, tmp_path: Path, interpreter_of: Callable[[str], Path]) -> None:
    launch(small_job(MODELS["gpt"], SINGLE, 2), tmp_path, script_of(framework), interpreter_of(framework))
    said = next(event for event in events(tmp_path, 0) if event["event"] == "framework")
    assert (said["name"], said["version"]) == (framework, Registry().implementation(framework)[0].version)
    assert said["device"].startswith("cpu") and said["details"].get("layers") in (None, "local")


@pytest.mark.parametrize("fault", ["missing", "another shape", "1 % larger"])
def test_the_comparison_sees_a_planted_fault(fault: str) -> None:
    right = {"embedding": np.ones((4, 4)), "logits": np.ones((4, 8))}
    wrong = {
        "missing": {"embedding": right["embedding"]},
        "another shape": {**right, "logits": np.ones((8, 4))},
        "1 % larger": {**right, "logits": right["logits"] * 1.01},
    }
    assert_same(dict(right), right, 1e-4)
    with pytest.raises(AssertionError):
        assert_same(wrong[fault], right, 1e-4)
