"""An output's error tells in which precision it was computed, and an update's what AdamW's formula gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.spot_check import (
    GELUS,
    KINDS,
    LIMITS,
    SampledOperation,
    SampledStep,
    SampleError,
    chain_errors,
    has_bf16_gradients,
    output_errors,
    precision_word,
    rounded,
    update_errors,
)
from levelfield.specs.case import Work
from levelfield.worker.job import Schedule
from levelfield.worker.schedule import learning_rate
from numpy.typing import NDArray
from plans import make_plan

Numbers = NDArray[np.float64]
FRACTION_BITS = {"fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}
RANDOM = np.random.default_rng(1)
X, W, B = RANDOM.normal(size=(16, 256)), 0.02 * RANDOM.normal(size=(16, 256)), 0.01 * RANDOM.normal(size=16)


@pytest.fixture(scope="module")
def work() -> Work:
    return make_plan(Registry(), "gpt3_6.7B_bf16:torch:cpu:1:1", scale="smoke").work


def round_to(numbers: Numbers, name: str) -> Numbers:
    """Rounded to nearest, without a smallest or largest number."""
    mantissa, exponent = np.frexp(numbers)
    scale = 2.0 ** (FRACTION_BITS[name] + 1)
    return np.ldexp(np.round(mantissa * scale) / scale, exponent)


def product_in(factors: str, output: str = "fp32", activations: str = "fp32") -> SampledOperation:
    """A linear layer whose input is in `activations`, whose product is of factors in a precision."""
    x = round_to(X, activations)
    y = round_to(x, factors) @ round_to(W, factors).T + round_to(B, activations)
    arrays = {"inputs": x, "weight": W, "bias": B, "output": round_to(y, output)}
    return SampledOperation("product", "layers.0.mlp.up", arrays)


def error_of(operation: SampledOperation, precision: str, work: Work) -> SampleError:
    (error,) = output_errors(SampledStep(0, 5, True, (operation,)), work.model, precision)
    return error


HONEST = {
    "fp32": product_in("fp32"),
    "bf16": product_in("bf16", "bf16", "bf16"),
    "fp16": product_in("fp16", "fp16", "fp16"),
    "fp8": product_in("e4m3", "bf16", "bf16"),
}


@pytest.mark.parametrize("precision", HONEST)
def test_a_product_in_the_planned_precision_is_within(precision: str, work: Work) -> None:
    error = error_of(HONEST[precision], precision, work)
    assert error.is_within, error


@pytest.mark.parametrize(
    ("planned", "operation", "word"),
    [
        ("fp32", product_in("tf32"), "TF32 or fp16"),
        ("fp32", product_in("bf16", "bf16"), "bf16"),
        ("fp32", product_in("e4m3"), "E4M3"),
        ("bf16", product_in("e4m3", "bf16", "bf16"), "E4M3"),
        ("fp16", product_in("bf16", "bf16", "fp16"), "bf16"),
        ("fp8", product_in("bf16", "bf16", "bf16"), "more than 8 bits"),
        ("fp8", product_in("e5m2", "bf16", "bf16"), "fewer bits"),
    ],
)
def test_another_precision_is_named(planned: str, operation: SampledOperation, word: str, work: Work) -> None:
    error = error_of(operation, planned, work)
    assert not error.is_within and precision_word(error).startswith(word), error


def changed(operation: SampledOperation, **arrays: Numbers) -> SampledOperation:
    return replace(operation, arrays={**operation.arrays, **arrays})


@pytest.mark.parametrize("precision", HONEST)
@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {"output": np.where(np.eye(16, dtype=bool), np.nan, arrays["output"])},
        lambda arrays: {"output": np.where(np.eye(16, dtype=bool), np.inf, arrays["output"])},
        lambda arrays: {"output": arrays["output"][::-1]},
        lambda arrays: {"output": arrays["output"] * 0},
        lambda arrays: {"output": arrays["output"] * 1.1},
        lambda arrays: {"weight": arrays["weight"] * 1000},
        lambda arrays: {"bias": arrays["bias"] + 0.1},
    ],
    ids=["nan", "inf", "swapped rows", "zeros", "a tenth more", "another unit", "another bias"],
)
def test_other_numbers_are_without(change: Any, precision: str, work: Work) -> None:
    operation = HONEST[precision]
    assert not error_of(changed(operation, **change(operation.arrays)), precision, work).is_within


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_one_per_cent_is_without(precision: str, work: Work) -> None:
    operation = HONEST[precision]
    assert not error_of(changed(operation, output=1.01 * operation.arrays["output"]), precision, work).is_within


def test_a_large_sum_of_equal_signs_hides_no_precision(work: Work) -> None:
    x, w = np.abs(X), np.abs(W)
    y = round_to(x, "e4m3") @ round_to(w, "e4m3").T
    operation = SampledOperation("product", "layers.0.mlp.up", {"inputs": x, "weight": w, "output": y})
    x_in_bf16 = changed(operation, inputs=round_to(x, "bf16"))
    assert error_of(changed(x_in_bf16, output=round_to(y, "bf16")), "fp8", work).is_within
    in_bf16 = round_to(x_in_bf16.arrays["inputs"] @ round_to(w, "bf16").T, "bf16")
    assert not error_of(changed(x_in_bf16, output=in_bf16), "fp8", work).is_within


def norm_of(x: Numbers, kind: str, epsilon: float) -> SampledOperation:
    centred = x - x.mean(-1, keepdims=True) if kind == "layernorm" else x
    y = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon) * W[0] + W[1]
    arrays = {"inputs": x, "weight": W[0], "bias": W[1], "output": y}
    return SampledOperation("norm", "final_norm", arrays)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_norm_is_that_of_the_model(kind: str, work: Work) -> None:
    model = work.model.model_copy(update={"norm": kind})
    step = lambda operation: SampledStep(0, 5, True, (operation,))  # noqa: E731
    right, other = norm_of(X + 1, kind, model.norm_eps), norm_of(X + 1, kind, 1e-2)
    assert output_errors(step(right), model, "fp32")[0].value < 1e-12
    assert not output_errors(step(other), model, "fp32")[0].is_within
    another = norm_of(X + 1, "rmsnorm" if kind == "layernorm" else "layernorm", model.norm_eps)
    assert not output_errors(step(another), model, "fp32")[0].is_within


def attention_of(window: int | None = None, scale: float = 1.0) -> SampledOperation:
    query, key, value = (RANDOM.normal(size=(24, 8)) for _ in range(3))
    places = (0, 5, 11, 23)
    mixed = []
    for place in places:
        first = 0 if window is None else max(0, place - window + 1)
        scores = key[first : place + 1] @ query[place] / 8**0.5 * scale
        shares = np.exp(scores) / np.exp(scores).sum()
        mixed.append(shares @ value[first : place + 1])
    arrays = {"query": query[list(places)], "key": key, "value": value, "output": np.array(mixed)}
    return SampledOperation("attention", "layers.0.attention", arrays, places)


def test_attention_is_causal_and_as_wide_as_the_window(work: Work) -> None:
    model = work.model
    narrow = model.model_copy(update={"sliding_window": 6})
    step = lambda operation: SampledStep(0, 5, True, (operation,))  # noqa: E731
    assert output_errors(step(attention_of()), model, "fp32")[0].value < 1e-12
    assert output_errors(step(attention_of(6)), narrow, "fp32")[0].value < 1e-12
    assert not output_errors(step(attention_of(6)), model, "fp32")[0].is_within
    assert not output_errors(step(attention_of(5)), narrow, "fp32")[0].is_within
    assert not output_errors(step(attention_of(scale=1.1)), model, "bf16")[0].is_within


def block_of(layer: int, x: Numbers, activation: Any) -> tuple[list[SampledOperation], Numbers]:
    """The operations of a GPT's block as they are sampled, and its output. A product shows its first 16 columns."""
    names, size = f"layers.{layer}", x.shape[1]
    operations: list[SampledOperation] = []

    def normed(name: str, rows: Numbers) -> Numbers:
        operations.append(replace(norm_of(rows, "rmsnorm", 1e-5), name=f"{names}.{name}"))
        return operations[-1].arrays["output"]

    def multiplied(name: str, rows: Numbers, width: int) -> Numbers:
        weight = 0.02 * RANDOM.normal(size=(width, rows.shape[1]))
        whole = rows @ weight.T
        arrays = {"inputs": rows, "weight": weight[:16], "output": whole[:, :16]}
        operations.append(SampledOperation("product", f"{names}.{name}", arrays, tuple(range(16))))
        return whole

    multiplied("attention.query", normed("attention_norm", x), 48)
    x = x + multiplied("attention.output", RANDOM.normal(size=x.shape), size)
    up = multiplied("mlp.up", normed("mlp_norm", x), 64)
    return operations, x + multiplied("mlp.down", activation(up), size)


@pytest.fixture
def chain(work: Work) -> tuple[dict[str, SampledOperation], Any]:
    model, x, operations = work.model.model_copy(update={"layers": 2}), X, []
    for layer in range(2):
        block, x = block_of(layer, x, GELUS[model.activation])
        operations += block
    operations.append(replace(norm_of(x, "rmsnorm", 1e-5), name="final_norm"))
    return {operation.name: operation for operation in operations}, model


def broken_places(operations: dict[str, SampledOperation], model: Any, precision: str = "fp32") -> list[str]:
    errors = chain_errors(SampledStep(0, 5, True, tuple(operations.values())), model, precision)
    return [error.name for error in errors if not error.is_within]


def test_operations_that_lead_to_each_other_are_within(chain: Any) -> None:
    operations, model = chain
    step = SampledStep(0, 5, True, tuple(operations.values()))
    errors = chain_errors(step, model, "fp32")
    assert len(errors) == 10 and max(error.value for error in errors) < 1e-12


@pytest.mark.parametrize(
    ("name", "array", "places"),
    [
        ("layers.0.attention.query", "inputs", ["layers.0.attention's input"]),
        ("layers.1.mlp.up", "inputs", ["layers.1.mlp's input"]),
        ("layers.1.mlp_norm", "inputs", ["layers.1.attention's sum", "layers.1.mlp's sum"]),
        ("final_norm", "inputs", ["layers.1.mlp's sum"]),
        ("layers.1.attention_norm", "inputs", ["layers.0.mlp's sum", "layers.1.attention's sum"]),
        ("layers.0.mlp.down", "inputs", ["layers.0.mlp.activation"]),
    ],
)
@pytest.mark.parametrize(
    "change", [lambda x: 1.01 * x, lambda x: x[::-1], lambda x: x * np.nan], ids=["one per cent", "swapped rows", "nan"]
)
def test_what_does_not_follow_from_the_operation_before_is_told(
    name: str, array: str, places: list[str], change: Any, chain: Any
) -> None:
    operations, model = chain
    operations[name] = changed(operations[name], **{array: change(operations[name].arrays[array])})
    assert sorted(broken_places(operations, model)) == sorted(places)


def test_what_is_not_known_is_left_out(chain: Any) -> None:
    operations, model = chain
    operations["layers.0.mlp.down"] = replace(operations["layers.0.mlp.down"], places=())
    operations["layers.1.mlp_norm"] = changed(operations["layers.1.mlp_norm"], inputs=X[:3])
    assert broken_places(operations, model) == []
    for update in ({"hidden_dropout": 0.1}, {"norm_place": "after"}):
        assert chain_errors(SampledStep(0, 5, True, ()), model.model_copy(update=update), "bf16") == []
    operations.pop("layers.0.mlp.up")
    assert broken_places(operations, model) == []


def update_of(work: Work, step: int, norm: float, rate: float = 1.0, dimensions: int = 2) -> SampledOperation:
    """AdamW's update of some numbers, computed one by one."""
    training, settings = work.training, work.training.optimizer
    gradients, values = 0.1 * RANDOM.normal(size=16), RANDOM.normal(size=16)
    means, squares = 0.1 * RANDOM.normal(size=16), np.square(0.1 * RANDOM.normal(size=16))
    rate *= learning_rate(Schedule(**training.schedule.model_dump()), step)
    clip = training.gradient_clip / max(norm, training.gradient_clip)
    new: dict[str, list[float]] = {"new_value": [], "new_mean": [], "new_square": []}
    for value, gradient, mean, square in zip(values, gradients * clip, means, squares, strict=True):
        m = settings.beta1 * mean + (1 - settings.beta1) * gradient
        v = settings.beta2 * square + (1 - settings.beta2) * gradient**2
        direction = m / (1 - settings.beta1**step) / ((v / (1 - settings.beta2**step)) ** 0.5 + settings.eps)
        decay = settings.weight_decay * value if dimensions >= 2 else 0.0
        for name, number in zip(new, (value - rate * (direction + decay), m, v), strict=True):
            new[name].append(number)
    arrays = {"value": values, "gradient": gradients, "mean": means, "square": squares}
    arrays.update({name: np.array(numbers) for name, numbers in new.items()})
    return SampledOperation("update", "layers.0.mlp.up.weight", arrays, dimensions=dimensions)


def worst_update(operation: SampledOperation, work: Work, norm: float = 2.0, updates: int = 9) -> SampleError:
    errors = update_errors(SampledStep(0, 9, True, (operation,)), work.training, norm, updates)
    return max(errors, key=lambda error: error.value / error.limit)


@pytest.mark.parametrize("norm", [0.5, 2.0])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_adamws_update_is_within(norm: float, dimensions: int, work: Work) -> None:
    assert worst_update(update_of(work, 9, norm, dimensions=dimensions), work, norm).value < 1e-9


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {"new_value": a["value"] + 1.01 * (a["new_value"] - a["value"])},
        lambda a: {"new_mean": rounded(a["new_mean"], "bf16")},
        lambda a: {"new_square": rounded(a["new_square"], "bf16")},
        lambda a: {"gradient": a["gradient"] * 1.01},
        lambda a: {"new_value": a["new_value"][::-1]},
        lambda a: {"new_value": np.full(16, np.nan)},
        lambda a: {"new_mean": np.where(np.arange(16) == 3, np.inf, a["new_mean"])},
        lambda a: {"new_value": a["value"]},
    ],
    ids=[
        *("one per cent more", "mean in bf16", "square in bf16", "another gradient", "swapped", "nan", "inf"),
        "no step",
    ],
)
def test_another_update_is_without(change: Any, work: Work) -> None:
    operation = update_of(work, 9, 2.0)
    assert not worst_update(changed(operation, **change(operation.arrays)), work).is_within


def test_a_missing_clip_or_another_number_of_updates_is_without(work: Work) -> None:
    assert not worst_update(update_of(work, 9, 0.5), work, norm=2.0).is_within
    assert not worst_update(update_of(work, 9, 2.0), work, norm=2.1).is_within
    assert not worst_update(update_of(work, 8, 2.0), work, updates=9).is_within


def test_a_small_step_of_a_large_float32_number_is_within(work: Work) -> None:
    operation = update_of(work, 9, 2.0, dimensions=1)
    large = operation.arrays["value"] + 100
    new = large + (operation.arrays["new_value"] - operation.arrays["value"])
    in_float32 = {"value": large.astype(np.float32).astype(float), "new_value": new.astype(np.float32).astype(float)}
    assert worst_update(changed(operation, **in_float32), work).is_within


def test_gradients_that_are_all_bf16_numbers_are_told(work: Work) -> None:
    operation = update_of(work, 9, 2.0)
    in_bf16 = changed(operation, gradient=rounded(operation.arrays["gradient"], "bf16"))
    step = lambda *operations: SampledStep(0, 9, True, operations)  # noqa: E731
    assert has_bf16_gradients(step(in_bf16)) and not has_bf16_gradients(step(in_bf16, operation))
    assert not has_bf16_gradients(step(replace(in_bf16, dimensions=1))) and not has_bf16_gradients(step())
    assert not has_bf16_gradients(step(changed(operation, gradient=np.zeros(16))))


@pytest.mark.parametrize(
    "operation", [HONEST["fp32"], norm_of(X, "rmsnorm", 1e-5), attention_of()], ids=lambda o: o.kind
)
def test_arrays_that_do_not_fit_together_are_refused(operation: SampledOperation, work: Work) -> None:
    operation.check_shapes()
    update_of(work, 9, 2.0).check_shapes()
    for name, array in operation.arrays.items():
        for other in (array[:-1], array[..., None], array[:0]):
            with pytest.raises(ValueError, match="found shapes"):
                changed(operation, **{name: other}).check_shapes()
    with pytest.raises(ValueError, match="found shapes"):
        replace(operation, kind="unknown").check_shapes()


def test_places_of_attention_lie_in_the_sequence() -> None:
    for places in ((0, 5, 11, 24), (0, 5, 11), (-1, 5, 11, 23)):
        with pytest.raises(ValueError, match="found shapes"):
            replace(attention_of(), places=places).check_shapes()


def test_each_kind_names_its_arrays() -> None:
    assert {kind: len(required) for kind, (required, _) in KINDS.items()} == {
        "product": 3,
        "input gradient": 3,
        "norm": 3,
        "attention": 4,
        "update": 7,
    }
    assert list(LIMITS.values()) == sorted(LIMITS.values())
