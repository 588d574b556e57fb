"""Gradients between a step's products, held to numerical derivatives and to planted faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.sampled_gradients import SLOPES, gradient_errors, norm_gradient
from levelfield.measure.sampled_operations import SampledOperation, SampledStep
from levelfield.specs.architecture import Model
from numpy.typing import NDArray
from plans import make_plan

Numbers = NDArray[np.float64]
RANDOM = np.random.default_rng(3)
ROWS, HIDDEN, LENGTH, SIZE, GROUP = 5, 12, 9, 8, 2


@pytest.fixture(scope="module")
def model() -> Model:
    """Four layers."""
    return make_plan(Registry(), "gpt3_6.7B_bf16:torch:cpu:1:1", scale="smoke").work.model


def errors_of(operations: Any, model: Model, precision: str = "fp32") -> dict[str, float]:
    for operation in operations:
        operation.check_shapes()
    errors = gradient_errors(SampledStep(0, 5, True, tuple(operations)), model, precision)
    return {error.name.removesuffix(" gradient"): error.value / error.limit for error in errors}


def changed(operation: SampledOperation, **arrays: Numbers) -> SampledOperation:
    return replace(operation, arrays={**operation.arrays, **arrays})


def slope(function: Callable[[Numbers], Numbers], x: Numbers, gradient: Numbers) -> Numbers:
    """The gradient of x by that of function(x), from differences."""
    result = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        result[place] = ((function(x + step) - function(x - step)) * gradient).sum() / 2e-5
    return result


X, DY, WEIGHT = RANDOM.normal(size=(ROWS, HIDDEN)), RANDOM.normal(size=(ROWS, HIDDEN)), RANDOM.normal(size=HIDDEN)


def layernorm(x: Numbers) -> Numbers:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-5) * WEIGHT


def rmsnorm(x: Numbers) -> Numbers:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * WEIGHT


@pytest.mark.parametrize(("kind", "function"), [("layernorm", layernorm), ("rmsnorm", rmsnorm)])
def test_a_norms_gradient_is_its_derivative(kind: str, function: Any, model: Model) -> None:
    settings = model.model_copy(update={"norm": kind, "norm_eps": 1e-5})
    expected = slope(function, X, DY)
    assert np.abs(norm_gradient({"inputs": X, "weight": WEIGHT}, DY, settings) - expected).max() < 1e-7


def block_of(model: Model, layer: int = 1) -> dict[str, SampledOperation]:
    """The norms of a block and the one after it, with right gradients; every branch adds to the hidden state."""
    operations = {}
    after = RANDOM.normal(size=(ROWS, HIDDEN))
    following = "final_norm" if layer + 1 == model.layers else f"layers.{layer + 1}.attention_norm"
    x = RANDOM.normal(size=(ROWS, HIDDEN))
    operations[f"{following} backward"] = norm_gradient_of(following, RANDOM.normal(size=x.shape), after)
    for name, product in (("mlp_norm", "mlp.down"), ("attention_norm", "attention.output")):
        norm, dy = f"layers.{layer}.{name}", RANDOM.normal(size=x.shape)
        arrays = {"inputs": RANDOM.normal(size=x.shape), "weight": WEIGHT, "bias": WEIGHT, "output": x}
        operations[norm] = SampledOperation("norm", norm, arrays)
        added = {"inputs": after, "weight": RANDOM.normal(size=(3, HIDDEN)), "output": np.ones((ROWS, 3))}
        key = f"layers.{layer}.{product} backward"
        operations[key] = SampledOperation("input gradient", key, added)
        after = after + norm_gradient(arrays, dy, model)
        operations[f"{norm} backward"] = norm_gradient_of(norm, dy, after)
    return operations


def norm_gradient_of(name: str, output: Numbers, inputs: Numbers) -> SampledOperation:
    return SampledOperation("norm gradient", f"{name} backward", {"output": output, "inputs": inputs})


PARTS = ["layers.1.attention.output", "layers.1.attention_norm", "layers.1.mlp.down", "layers.1.mlp_norm"]


def test_a_blocks_gradients_add_up(model: Model) -> None:
    errors = errors_of(block_of(model).values(), model)
    assert sorted(errors) == PARTS and max(errors.values()) < 1e-6
    last = errors_of(block_of(model, model.layers - 1).values(), model)
    assert len(last) == 4 and max(last.values()) < 1e-6


@pytest.mark.parametrize(
    ("name", "change", "broken"),
    [
        ("mlp_norm backward", lambda a: {"inputs": a["inputs"] - 1}, [*PARTS[:2], PARTS[3]]),
        ("mlp_norm backward", lambda a: {"output": a["output"] * 1.01}, [PARTS[3]]),
        ("attention_norm backward", lambda a: {"inputs": a["inputs"][::-1]}, [PARTS[1]]),
        ("attention_norm backward", lambda a: {"inputs": a["inputs"] * np.nan}, [PARTS[1]]),
        ("attention.output backward", lambda a: {"inputs": a["inputs"] * 1.01}, [PARTS[0]]),
        ("mlp.down backward", lambda a: {"inputs": 0 * a["inputs"]}, [PARTS[2]]),
    ],
)
def test_a_gradient_that_does_not_follow_is_named(name: str, change: Any, broken: list[str], model: Model) -> None:
    operations = block_of(model)
    key = f"layers.1.{name}"
    operations[key] = changed(operations[key], **change(operations[key].arrays))
    errors = errors_of(operations.values(), model)
    assert sorted(part for part, error in errors.items() if not error <= 1) == broken


def test_a_residual_that_is_cut_is_named(model: Model) -> None:
    operations = block_of(model)
    norm, key = operations["layers.1.mlp_norm"], "layers.1.mlp_norm backward"
    branch = norm_gradient(norm.arrays, operations[key].arrays["output"], model)
    operations[key] = changed(operations[key], inputs=branch)
    assert errors_of(operations.values(), model)["layers.1.mlp_norm"] > 1


@pytest.mark.parametrize("update", [{"hidden_dropout": 0.1}, {"norm_place": "after"}])
def test_what_is_not_known_of_a_block_is_left_out(update: dict[str, Any], model: Model) -> None:
    assert errors_of(block_of(model).values(), model.model_copy(update=update)) == {}


def test_the_last_norm_has_the_gradient_of_the_head_alone(model: Model) -> None:
    arrays = {"inputs": X, "weight": WEIGHT, "bias": WEIGHT, "output": X}
    norm = SampledOperation("norm", "final_norm", arrays)
    right = norm_gradient(arrays, DY, model)
    assert errors_of([norm, norm_gradient_of("final_norm", DY, right)], model)["final_norm"] < 1e-6
    assert errors_of([norm, norm_gradient_of("final_norm", DY, right * 1.01)], model)["final_norm"] > 1


def activation_of(activation: str) -> SampledOperation:
    gate, up = RANDOM.normal(size=(2, ROWS, 6))
    output, function = RANDOM.normal(size=(ROWS, 6)), SLOPES[activation]
    if activation in ("gelu", "gelu_tanh"):
        arrays = {"output": output, "up": up, "up_gradient": slope(lambda x: function(x)[0], up, output)}
    else:
        gradients = {
            "up_gradient": slope(lambda x: function(gate)[0] * x, up, output),
            "gate_gradient": slope(lambda x: function(x)[0] * up, gate, output),
        }
        arrays = {"output": output, "up": up, "gate": gate, **gradients}
    return SampledOperation("activation gradient", "layers.0.mlp.activation", arrays)


@pytest.mark.parametrize("activation", SLOPES)
def test_an_activations_gradient_is_its_derivative(activation: str, model: Model) -> None:
    settings = model.model_copy(update={"activation": activation})
    operation = activation_of(activation)
    assert errors_of([operation], settings)["layers.0.mlp.activation"] < 1
    for name in operation.arrays.keys() - {"output", "up", "gate"}:
        right = operation.arrays[name]
        for other in (right * 1.01, right[::-1], right * np.nan, right * 0):
            assert not errors_of([changed(operation, **{name: other})], settings)["layers.0.mlp.activation"] <= 1
    for other_activation in SLOPES.keys() - {activation}:
        if (other_activation in ("gelu", "gelu_tanh")) == ("gate" not in operation.arrays):
            others = model.model_copy(update={"activation": other_activation})
            assert errors_of([operation], others)["layers.0.mlp.activation"] > 1


PLACES = (1, 4, 7, 8)


def attend(query: Numbers, key: Numbers, value: Numbers, places: Any, window: int | None) -> Numbers:
    rows = []
    for row, place in zip(query, places, strict=True):
        first = 0 if window is None else max(0, place - window + 1)
        weights = np.exp(key[first : place + 1] @ row / SIZE**0.5)
        rows.append(weights @ value[first : place + 1] / weights.sum())
    return np.stack(rows)


def attention_with_gradients(window: int | None = None) -> list[SampledOperation]:
    query, key, value = RANDOM.normal(size=(len(PLACES), SIZE)), *RANDOM.normal(size=(2, LENGTH, SIZE))
    output = RANDOM.normal(size=query.shape)
    forward = {"query": query, "key": key, "value": value, "output": attend(query, key, value, PLACES, window)}
    last_query, last_output = RANDOM.normal(size=(2, GROUP, SIZE))
    last = [LENGTH - 1] * GROUP

    def attend_to_last(part: str) -> Callable[[Numbers], Numbers]:
        def function(row: Numbers) -> Numbers:
            arrays = {"key": key.copy(), "value": value.copy()}
            arrays[part][-1] = row
            return attend(last_query, arrays["key"], arrays["value"], last, window)

        return function

    gradients = {
        "output": output,
        "query_gradient": slope(lambda x: attend(x, key, value, PLACES, window), query, output),
        "last_query": last_query,
        "last_output": last_output,
        "key_gradient": slope(attend_to_last("key"), key[-1], last_output),
        "value_gradient": slope(attend_to_last("value"), value[-1], last_output),
    }
    return [
        SampledOperation("attention", "layers.0.attention", forward, PLACES),
        SampledOperation("attention gradient", "layers.0.attention backward", gradients),
    ]


@pytest.mark.parametrize("window", [None, 3])
def test_attentions_gradients_are_its_derivatives(window: int | None, model: Model) -> None:
    settings = model.model_copy(update={"sliding_window": window})
    errors = errors_of(attention_with_gradients(window), settings)
    parts = ["last key", "last value", "queries"]
    assert sorted(errors) == [f"layers.0.attention's {part}" for part in parts] and max(errors.values()) < 1


@pytest.mark.parametrize(
    ("array", "part"), [("query_gradient", "queries"), ("key_gradient", "last key"), ("value_gradient", "last value")]
)
def test_other_gradients_of_attention_are_named(array: str, part: str, model: Model) -> None:
    forward, backward = attention_with_gradients()
    right = backward.arrays[array]
    for other in (right * 1.01, right[::-1], right * np.nan, right * 0):
        errors = errors_of([forward, changed(backward, **{array: other})], model)
        assert [name for name, error in errors.items() if not error <= 1] == [f"layers.0.attention's {part}"]


def test_one_query_of_a_group_is_not_all(model: Model) -> None:
    forward, backward = attention_with_gradients()
    one = {name: backward.arrays[name][:1] for name in ("last_query", "last_output")}
    errors = errors_of([forward, changed(backward, **one)], model)
    assert errors["layers.0.attention's last key"] > 1 and errors["layers.0.attention's last value"] > 1


def test_one_keys_gradient_is_not_judged_in_fp16(model: Model) -> None:
    assert "layers.0.attention's last key" not in errors_of(attention_with_gradients(), model, "fp16")


def test_gradients_turn_back(model: Model) -> None:
    rotary = model.model_copy(update={"positions": "rope", "rope_base": 10000.0})
    forward, backward = attention_with_gradients()
    right = backward.arrays["query_gradient"]
    pairs = right[:, : SIZE // 2] + 1j * right[:, SIZE // 2 :]
    angles = np.outer(PLACES, 10000.0 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
    for sign, is_right in ((-1, True), (1, False)):
        turned = pairs * np.exp(sign * 1j * angles)
        unrotated = np.concatenate((turned.real, turned.imag), 1)
        errors = errors_of([forward, changed(backward, unrotated_gradient=unrotated)], rotary)
        assert (errors["layers.0.attention's unrotated queries"] < 1) is is_right


def test_shapes_of_attention_and_its_gradient_fit(model: Model) -> None:
    forward, backward = attention_with_gradients()
    fewer = {name: backward.arrays[name][:2] for name in ("output", "query_gradient")}
    assert errors_of([forward, changed(backward, **fewer)], model) == {"layers.0.attention's queries": np.inf}
    shorter = {name: forward.arrays[name][:, :4] for name in ("value", "output")}
    rows = changed(backward, output=backward.arrays["output"][:, :4])
    with pytest.raises(ValueError, match="found shapes"):
        rows.check_shapes()
    assert np.inf in errors_of([changed(forward, **shorter), backward], model).values()


def test_a_biases_gradient_is_the_sum_over_tokens(model: Model) -> None:
    outputs, inputs = RANDOM.normal(size=(4, 32)), RANDOM.normal(size=(3, 32))
    arrays = {"inputs": outputs, "weight": inputs, "output": outputs @ inputs.T, "bias_gradient": outputs.sum(1)}
    operation = SampledOperation("weight gradient", "layers.0.mlp.up weights", arrays)
    assert errors_of([operation], model) == {"layers.0.mlp.up bias": 0.0}
    for other in (outputs[:, :16].sum(1), outputs.sum(1) * 1.01, outputs.sum(1)[::-1], outputs.sum(1) * np.nan):
        assert not errors_of([changed(operation, bias_gradient=other)], model)["layers.0.mlp.up bias"] <= 1


def test_arrays_that_do_not_fit_are_refused(model: Model) -> None:
    norm = norm_gradient_of("final_norm", DY, X)
    for operation in (norm, activation_of("gelu"), activation_of("swiglu"), attention_with_gradients()[1]):
        arrays: Mapping[str, Numbers] = operation.arrays
        for name, array in arrays.items():
            for other in (array[..., :-1], array[..., None], array[:0]):
                with pytest.raises(ValueError, match="found shapes"):
                    changed(operation, **{name: other}).check_shapes()
