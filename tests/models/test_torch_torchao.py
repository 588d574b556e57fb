"""fp8 by torchao, whose products run on a processor too: the numbers of fp8_rounded, in one process and under FSDP2."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import MODELS, SINGLE, Curve, compare, planted, shallow, small_job, train
from leaf_gradient import gradient_of
from matrix import VARIANTS
from torch import nn

pytest.importorskip("torchao")
pytestmark = pytest.mark.torch

BY_TORCHAO = """
import torch
torch.compiler.set_stance("force_eager")  # compiling takes longer than these trainings
from step import fp8, fp8_torchao
fp8.LIBRARIES = {"cpu": ("torchao",)}
"""
SCALES_ARE_CURRENT = """
import torch.distributed as dist
from training import Trainer
gradients = Trainer.gradients
def checked(self, *inputs):
    weights = [each._local_tensor for each in self.model.parameters() if hasattr(each._local_tensor, "_tensor")]
    assert len(weights) == 7 * len(self.model.layers)
    for weight in weights:
        largest = weight._tensor.abs().max()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        torch.testing.assert_close(weight._precomputed_scale, 448 / largest)
    return gradients(self, *inputs)
Trainer.gradients = checked
"""
OLD_SCALES = """
renew, calls = fp8_torchao.renew_scales, []
def renew_once(model):
    calls or renew(model)
    calls.append(1)
fp8_torchao.renew_scales = renew_once
"""
ONE, ZERO = (
    small_job(shallow(MODELS["llama"]), each, steps=2, precision="fp8") for each in (SINGLE, VARIANTS["ZeRO 2, DP2"])
)

Scale = Callable[..., torch.Tensor]  # takes a tensor and a type of 8 bits


def job(compiled: bool = False, recompute: str = "none") -> Any:
    layout, tuning = SimpleNamespace(sharding_degree=1), SimpleNamespace(compile=compiled, recompute=recompute)
    return SimpleNamespace(layout=layout, tuning=tuning)


def by_torchao(layer: nn.Linear, **choices: Any) -> Any:
    """The layer, of the same weights, as torchao computes it in a block."""
    from step.fp8_torchao import replace_linears

    model: Any = nn.Module()
    block = nn.Sequential(nn.Linear(64, 128, bias=layer.bias is not None, device="meta"))
    model.layers = nn.ModuleDict({"0": block})
    replace_linears(model, job(**choices))
    block.to_empty(device="cpu")[0].load_state_dict(layer.state_dict())
    return block[0]


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def largest_differences(one: nn.Linear, other: nn.Linear, steps: Sequence[float] = (1e-7,)) -> list[float]:
    """Of output and gradients, as parts of the largest value. steps: the size of the last step's gradients, and those
    before."""
    results = []
    for layer in (one, other):
        for seed, size in enumerate(steps):
            layer.zero_grad()
            x = numbers(seed, 2, 16, 64).requires_grad_()
            y = layer(x)
            y.backward(numbers(seed + 10, 2, 16, 128) * size)
        results.append((y, gradient_of(x), gradient_of(layer.weight)))
    return [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results, strict=True)]


@pytest.fixture
def rounded() -> nn.Linear:
    from step.fp8_rounded import RoundedLinear

    return RoundedLinear(64, 128, bias=False)


def test_products_are_those_of_the_rounded_numbers(rounded: nn.Linear) -> None:
    """Gradients of 1e-7 would be 0 with a scale of 1; the sums differ in their order."""
    layer = by_torchao(rounded, compiled=True)
    assert max(largest_differences(layer, rounded, (1e-7, 1e-3))) < 2**-8
    assert layer.weight.grad.dtype == torch.float32 and layer.weight.grad.count_nonzero() > 0.9 * 64 * 128


def scale_of_1(right: Scale) -> Scale:
    return lambda tensor, kind, *rest: torch.ones(()) if kind == torch.float8_e5m2 else right(tensor, kind, *rest)


def scale_of_the_last_step(right: Scale) -> Scale:
    last: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def scale(tensor: torch.Tensor, kind: torch.dtype, *rest: Any) -> torch.Tensor:
        now = right(tensor, kind, *rest)
        before, last[tensor.shape, kind] = last.get((tensor.shape, kind), now), now
        return before

    return scale


@pytest.mark.parametrize("fault", [scale_of_1, scale_of_the_last_step])
def test_other_scales_are_seen(
    fault: Callable[[Scale], Scale], rounded: nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    float8_scaling_utils = importlib.import_module("torchao.float8.float8_scaling_utils")  # it has no types

    monkeypatch.setattr(float8_scaling_utils, "tensor_to_scale", fault(float8_scaling_utils.tensor_to_scale))
    found = largest_differences(by_torchao(rounded, compiled=True), rounded, (1e-7, 1e-9))
    assert max(found) > 0.02


def test_gradients_in_e4m3_are_seen(rounded: nn.Linear, monkeypatch: pytest.MonkeyPatch) -> None:
    from step import fp8_torchao
    from torchao.float8 import CastConfig, Float8LinearConfig

    cast = CastConfig(target_dtype=torch.float8_e4m3fn)
    wrong = Float8LinearConfig(cast_config_grad_output=cast)
    monkeypatch.setattr(fp8_torchao, "Float8LinearConfig", lambda **_options: wrong)
    output, *gradients = largest_differences(by_torchao(rounded, compiled=True), rounded)
    assert output < 2**-8 and min(gradients) > 0.02


def test_layers_or_their_casts_are_compiled_alone_where_nothing_else_would_compile_them(
    rounded: nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Selective recomputation keeps the results of products, which it does not see inside of a compiled layer."""
    from torchao.float8 import float8_linear

    cast = float8_linear.hp_tensor_to_float8_dynamic
    monkeypatch.setattr(float8_linear, "hp_tensor_to_float8_dynamic", cast)  # restored at the end
    assert "forward" in vars(by_torchao(rounded)) and "forward" in vars(by_torchao(rounded, recompute="full"))
    assert "forward" not in vars(by_torchao(rounded, compiled=True))
    assert float8_linear.hp_tensor_to_float8_dynamic is cast
    assert "forward" not in vars(by_torchao(rounded, recompute="selective"))
    assert float8_linear.hp_tensor_to_float8_dynamic is not cast


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Curve, Curve, Curve]:
    """In one process: by torchao, by rounded numbers, and in bf16."""
    one = train(ONE, planted(tmp_path_factory.mktemp("one"), "torch", BY_TORCHAO))
    return one, train(ONE), train({**ONE, "training": {**ONE["training"], "precision": "bf16"}})


def test_a_training_is_that_of_the_rounded_numbers(curves: tuple[Curve, Curve, Curve]) -> None:
    one, rounded, half = curves
    found, apart = compare(one, rounded), compare(half, rounded)
    assert found.is_within_limits("fp8") and found.same_weights
    assert found.first_loss is not None and apart.first_loss is not None
    assert found.first_loss < 0.2 * apart.first_loss


@pytest.mark.layouts
def test_fsdp_gathers_in_8_bits_with_the_scales_of_one_process(
    curves: tuple[Curve, Curve, Curve], tmp_path: Path
) -> None:
    sharded = compare(train(ZERO, planted(tmp_path, "torch", BY_TORCHAO + SCALES_ARE_CURRENT)), curves[0])
    assert sharded.first_loss is not None
    assert sharded.same_weights and sharded.is_within_limits("fp8") and sharded.first_loss < 1e-7


@pytest.mark.thorough
@pytest.mark.layouts
def test_gathered_weights_with_the_scales_of_the_first_step_are_seen(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Scalars are not close"):
        train(ZERO, planted(tmp_path, "torch", BY_TORCHAO + OLD_SCALES + SCALES_ARE_CURRENT))
