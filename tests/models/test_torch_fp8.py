"""fp8 on a processor: scales from each tensor's largest value, E4M3 forward, E5M2 backward, and planted faults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from layouts import MODELS, SINGLE, Variant, compare, parsed_job, planted, small_job, train
from leaf_gradient import gradient_of
from levelfield.measure.sampled_operations import rounded_to_e4m3
from levelfield.worker import Unsupported

pytestmark = pytest.mark.torch


@pytest.fixture
def fp8() -> ModuleType:
    from step import fp8_rounded

    return fp8_rounded


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        # 448 is E4M3's largest number; between 16 and 32 its numbers are 2 apart, and halves go to the even one.
        (torch.float8_e4m3fn, [448.0, 17.0, 19.0, -(2.0**-9)], [448.0, 16.0, 20.0, -(2.0**-9)]),
        (torch.float8_e5m2, [57344.0, -9.0, 11.0, 2.0**-16], [57344.0, -8.0, 12.0, 2.0**-16]),
        (torch.float8_e5m2, [3 * 57344.0, -27.0, 33.0], [3 * 57344.0, -24.0, 36.0]),
        (torch.float8_e4m3fn, [4.48e-6, 1.65e-7, 1e-12], [4.48e-6, 1.6e-7, 0.0]),
        (torch.float8_e4m3fn, [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_numbers_of_8_bits_are_those_of_the_format(
    fp8: ModuleType, kind: torch.dtype, values: list[float], expected: list[float]
) -> None:
    found, factor = fp8.rounded(torch.tensor(values), kind)
    assert found.dtype == kind and torch.isfinite(found.float()).all()
    torch.testing.assert_close(found.float() * factor, torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_platform_rounds_to_the_same_numbers_of_8_bits(fp8: ModuleType, dtype: torch.dtype) -> None:
    tensor = (numbers(0, 4096) * numbers(1, 4096).exp()).to(dtype)
    in_8_bits, factor = fp8.rounded(tensor, torch.float8_e4m3fn)
    on_the_platform = rounded_to_e4m3(tensor.double().numpy(), float(tensor.abs().amax()))
    np.testing.assert_allclose(on_the_platform, in_8_bits.double() * factor.double(), rtol=1e-6)


def test_the_scale_of_a_tiny_tensor_is_the_largest_number_and_not_infinite(fp8: ModuleType) -> None:
    found, factor = fp8.rounded(torch.tensor([1e-41, 0.0]), torch.float8_e5m2)
    assert found.float()[0] > 0 == found.float()[1]
    assert float(factor) == pytest.approx(1 / torch.finfo(torch.float32).max, rel=1e-2)


@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_rounded_numbers(fp8: ModuleType, bias: bool) -> None:
    def exact(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        found, factor = fp8.rounded(tensor.detach(), kind)
        return found.double() * factor.double()

    layer = fp8.RoundedLinear(24, 40, bias=bias)
    x = numbers(1, 2, 7, 24).bfloat16().requires_grad_()
    upstream = numbers(2, 2, 7, 40).bfloat16() * 1e-7  # below the least number of E5M2 without a scale
    y = layer(x)
    y.backward(upstream)
    inputs, weights = exact(x, fp8.E4M3), exact(layer.weight, fp8.E4M3)
    steep = exact(upstream, fp8.E5M2)
    expected = inputs @ weights.T + (layer.bias.detach().bfloat16() if bias else 0)
    for found, of in (
        (y, expected),
        (gradient_of(x), steep @ weights),
        (layer.weight.grad, steep.flatten(0, 1).T @ inputs.flatten(0, 1)),
        *([(layer.bias.grad, upstream.double().flatten(0, 1).sum(0))] if bias else []),
    ):
        torch.testing.assert_close(found.detach().double(), of, rtol=2**-8, atol=2**-8 * of.abs().max().item())
        assert found.abs().min() > 0 or found.count_nonzero() > 0.9 * found.numel()
    assert y.dtype == gradient_of(x).dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    plain = torch.nn.functional.linear(x.detach().double(), layer.weight.detach().double())
    assert 0.005 < ((inputs @ weights.T - plain).norm() / plain.norm()).item() < 0.06  # it does round, to 3 bits


FIRST_SCALE_OF_1 = """
from step import fp8_rounded
import torch
right = fp8_rounded.rounded
def rounded(tensor, kind):
    return (tensor.float().to(kind), torch.tensor(1.0)) if kind == fp8_rounded.E5M2 else right(tensor, kind)
fp8_rounded.rounded = rounded
"""


def test_scales_of_steps_before_lose_the_first_gradients_and_the_comparison_sees_it(tmp_path: Path) -> None:
    """As transformer-engine's default did on an H200: the factor of the first step is 1."""
    job = small_job(MODELS["llama"], SINGLE, steps=3, precision="fp8")
    right, half = train(job), train(small_job(MODELS["llama"], SINGLE, steps=3, precision="bf16"))
    lost = train(job, planted(tmp_path, "torch", FIRST_SCALE_OF_1))
    found = compare(right, half)
    assert found.loss is not None and found.parameter_norm is not None
    assert found.is_within_limits("fp8") and found.loss > 0 and found.parameter_norm < 0.5
    assert compare(lost, half).parameter_norm == 1.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": "mlu"}, "needs an NVIDIA device and transformer-engine or torchao; this is 'mlu'"),
        ({"layout": {"tensor": 2}}, "not written"),
    ],
)
def test_fp8_elsewhere_is_refused(changed: dict[str, Any], words: str) -> None:
    from step.fp8 import check_fp8

    job = small_job(MODELS["llama"], Variant("elsewhere", changed.get("layout", {})), precision="fp8")
    with pytest.raises(Unsupported, match=words):
        check_fp8(parsed_job({**job, "device": changed.get("device", "cpu")}))


ENGINE, AO = (
    ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common.recipe"),
    ("torchao.float8",),
)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Sequence[str]], None]]:
    """Of both libraries only the given modules can be imported, with any name in them."""

    def pretended(modules: Sequence[str]) -> None:
        for name in ("transformer_engine", "torchao", *ENGINE, *AO, "torchao.float8.float8_linear"):
            module = None
            if any(each.startswith(name) or name.startswith(each) for each in modules):
                module = ModuleType(name)
                vars(module).update(__getattr__=lambda name: object(), __path__=[])
            monkeypatch.setitem(sys.modules, name, module)
        forget()

    def forget() -> None:
        import step

        for name in ("fp8_transformer_engine", "fp8_torchao"):
            sys.modules.pop(f"step.{name}", None)
            vars(step).pop(name, None)

    yield pretended
    forget()


@pytest.mark.parametrize(
    ("modules", "library"), [((*ENGINE, *AO), "transformer_engine"), (ENGINE, "transformer_engine"), (AO, "torchao")]
)
def test_transformer_engine_is_taken_before_torchao(
    modules: Sequence[str], library: str, pretend: Callable[[Sequence[str]], None]
) -> None:
    from step.fp8 import fp8_library

    pretend(modules)
    name, module = fp8_library.__wrapped__("cuda")
    assert name == library and module.replace_linears.__module__ == f"step.fp8_{library}"


def test_a_device_without_a_library_is_refused(pretend: Callable[[Sequence[str]], None]) -> None:
    from step.fp8 import fp8_library

    pretend(())
    words = r"neither transformer-engine nor torchao can be imported \(.*transformer_engine.*; .*torchao.*\); install"
    with pytest.raises(Unsupported, match=words):
        fp8_library.__wrapped__("cuda")
