"""The operations that replace torch's own give the same values and the same gradients; and a planted fault is seen."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest
import torch
from layouts import MODELS, parsed_model
from leaf_gradient import gradient_of

pytestmark = pytest.mark.torch


def linear(monkeypatch: pytest.MonkeyPatch, onednn: bool, bias: bool, scale: float = 1.0) -> list[torch.Tensor]:
    """(output, gradients of input, weight and bias) of one layer, with oneDNN's products or torch's own."""
    from model import layers

    monkeypatch.setattr(layers, "applies", lambda x, weight: onednn)
    generator = torch.Generator().manual_seed(3)
    layer = layers.Linear(24, 40, bias=bias)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(2, 7, 24, generator=generator).requires_grad_()
    y = layer(x)
    (y * torch.randn(y.shape, generator=generator) * scale).sum().backward()
    return [y.detach(), gradient_of(x), *map(gradient_of, layer.parameters())]


def differences(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True)]


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_by_onednn_is_the_layer_of_torch(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    found, expected = linear(monkeypatch, True, bias), linear(monkeypatch, False, bias)
    assert all(difference < 1e-6 for difference in differences(found, expected))


def test_a_gradient_that_is_off_by_one_percent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = linear(monkeypatch, True, True, scale=1.01), linear(monkeypatch, False, True)
    assert all(difference > 5e-3 for difference in differences(found, expected)[1:])


def test_onednn_is_left_alone_where_it_does_not_apply() -> None:
    from model.onednn import applies

    x, weight = torch.zeros(1, 4), torch.zeros(4, 4)
    assert applies(x, weight) is torch.backends.mkldnn.is_available()
    assert not applies(x.bfloat16(), weight)
    assert not applies(x.to("meta"), weight)


@pytest.mark.parametrize(("products", "by_onednn"), [("onednn", True), ("mkl", False), (None, True)])
def test_the_job_chooses_the_library(products: str | None, by_onednn: bool) -> None:
    from model import onednn

    onednn.choose(products)
    try:
        expected = by_onednn and torch.backends.mkldnn.is_available()
        assert onednn.uses_onednn() is expected
        assert onednn.applies(torch.zeros(1, 4), torch.zeros(4, 4)) is expected
    finally:
        onednn.choose(None)


def test_the_probe_compares_the_libraries() -> None:
    peak: Any = importlib.import_module("peak")  # a test's plugin has another peak.py, which mypy would take

    ratio = peak.onednn_over_mkl(0.0)
    assert 0.05 < ratio < 20


def test_one_slow_product_does_not_choose_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    peak: Any = importlib.import_module("peak")

    rounds = [(9.0, 9.0), (1.0, 2.0), (30.0, 2.0), (30.0, 2.0)]  # (by MKL, by oneDNN); two of them in a busy moment
    times = iter([seconds for each in rounds for _ in range(2 * len(peak.LAYERS)) for seconds in each])
    monkeypatch.setattr(peak, "duration", lambda run: next(times))
    clock = iter([0.0, 0.0, 0.0, 0.0, 0.0, 9.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert peak.onednn_over_mkl(1.0) == 0.5


def test_the_peak_counts_both_libraries_where_both_train() -> None:
    peak: Any = importlib.import_module("peak")

    for dtype, ways in ((torch.float32, 1 + torch.backends.mkldnn.is_available()), (torch.bfloat16, 1)):
        products = [multiply() for multiply in peak.ways("cpu", dtype, 8, 16, 24)]
        assert [product.shape for product in products] == [(8, 24)] * ways
        assert all(torch.allclose(product, products[0], rtol=1e-5, atol=1e-5) for product in products)


def test_both_libraries_compute_the_same_products() -> None:
    peak: Any = importlib.import_module("peak")

    for by_mkl, by_onednn in peak.layer_products(8, 16, 24):
        assert torch.allclose(by_mkl(), by_onednn(), rtol=1e-5, atol=1e-5)


def gradients(tied: bool) -> dict[str, torch.Tensor]:
    """Name to gradient of a GPT with a tied head, by one table of gradients or by autograd's sum of two."""
    from model.attention import choose_attention
    from model.decoder import Decoder, stage_of

    torch.manual_seed(5)
    attend = choose_attention("sdpa", 0.0, None)
    model = Decoder(parsed_model(MODELS["gpt"]), 16, torch.float32, stage_of(4, 1, 0), lambda _: attend)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.prepare(torch.device("cpu"))
    if not tied:
        model.tied = None
    tokens = torch.randint(0, 16, (2, 17))  # few, so that many rows are used more than once
    for _ in range(2):  # accumulated over two micro-batches
        model(tokens[:, :-1], tokens[:, 1:], 0.5).backward()
    return {name: gradient_of(parameter) for name, parameter in model.named_parameters()}


def test_one_table_of_gradients_is_the_sum_of_both() -> None:
    found, expected = gradients(tied=True), gradients(tied=False)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-5, atol=1e-7), name
    rows = expected["embedding.weight"].abs().sum(1)
    assert (rows > 0).all() and rows[:16].mean() > rows[16:].mean()
