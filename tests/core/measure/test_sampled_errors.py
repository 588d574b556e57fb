"""An output's error tells in which precision it was computed, and an update's what AdamW's formula gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.sampled_operations import (
    KINDS,
    LIMITS,
    SampledOperation,
    SampledStep,
    SampleError,
    precision_word,
    rounded,
    rounded_to_e4m3,
)
from levelfield.measure.sampled_updates import has_bf16_gradients, idle_change_errors, sum_errors, update_errors
from levelfield.measure.spot_check import (
    GELUS,
    chain_errors,
    exact_sum_errors,
    norm,
    norm_scale_errors,
    output_errors,
)
from levelfield.specs.architecture import RopeScaling
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
        ("fp8", product_in("bf16", "bf16", "bf16"), "more bits"),
        ("fp8", product_in("e5m2", "bf16", "bf16"), "fewer bits"),
    ],
)
def test_another_precision_is_named(planned: str, operation: SampledOperation, word: str, work: Work) -> None:
    error = error_of(operation, planned, work)
    assert not error.is_within and precision_word(error).startswith(word), error


def product_in_8_bits(scale: float = 1.0, sums: str = "fp32") -> SampledOperation:
    """Scales that make a tensor's largest value 448 times `scale`; sums in `sums`, four terms at a time."""
    x = round_to(X, "bf16")
    largest = [2 * np.abs(x).max(), np.abs(W).max()]  # another row of the input has twice the largest sampled value
    factors = [rounded_to_e4m3(x, largest[0] / scale), rounded_to_e4m3(W, largest[1] / scale)]
    total = np.zeros((16, 16))
    for start in range(0, 256, 4):
        total = round_to(total + factors[0][:, start : start + 4] @ factors[1][:, start : start + 4].T, sums)
    output = round_to(total + round_to(B, "bf16"), "bf16")
    arrays = {"inputs": x, "weight": W, "bias": B, "output": output, "largest": np.array(largest)}
    return SampledOperation("product", "layers.0.mlp.up", arrays)


def exact_sum_error(operation: SampledOperation, work: Work) -> SampleError:
    operation.check_shapes()
    (error,) = exact_sum_errors(SampledStep(0, 5, True, (operation,)), work.model, "fp8")
    return error


def test_a_right_product_in_8_bits_is_the_exact_sum(work: Work) -> None:
    assert exact_sum_error(product_in_8_bits(), work).value < 1e-8


@pytest.mark.parametrize(
    "operation",
    [
        product_in_8_bits(scale=1 / 16),
        product_in_8_bits(scale=0.99),
        product_in_8_bits(sums="fp16"),
        product_in_8_bits(sums="bf16"),
    ],
    ids=["scales 16 times too small", "scales 1 % too small", "sums in fp16", "sums in bf16"],
)
def test_other_scales_and_sums_are_not(operation: SampledOperation, work: Work) -> None:
    assert not exact_sum_error(operation, work).is_within


@pytest.mark.parametrize(
    "change",
    [
        {"output": np.full((16, 16), np.nan)},
        {"output": product_in_8_bits().arrays["output"][::-1]},
        {"largest": np.array([np.nan, 1.0])},
        {"largest": np.array([0.0, 0.0])},
        {"largest": product_in_8_bits().arrays["largest"][::-1]},
    ],
    ids=["nan", "swapped rows", "a largest value of nan", "largest values of 0", "swapped largest values"],
)
def test_damaged_samples_of_8_bits_are_not_within(change: dict[str, Numbers], work: Work) -> None:
    operation = product_in_8_bits()
    assert not exact_sum_error(replace(operation, arrays={**operation.arrays, **change}), work).is_within


def test_numbers_of_8_bits_go_to_the_nearest_and_halves_to_the_even_one() -> None:
    values = [448.0, 17.0, 19.0, -(2.0**-9), 2.0**-10, 500.0, 0.0]
    assert rounded_to_e4m3(np.array(values), 448.0).tolist() == [448.0, 16.0, 20.0, -(2.0**-9), 0.0, 448.0, 0.0]


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


HEADS = {
    "query": RANDOM.normal(size=(4, 8)),
    "key": RANDOM.normal(size=(2, 6, 8)),
    "value": RANDOM.normal(size=(2, 6, 5)),
}


def heads_of(window: int | None = None) -> SampledOperation:
    """Attention of 4 heads, two of which share keys and values, at position 5."""
    rows = []
    for head, query in enumerate(HEADS["query"]):
        key, value = HEADS["key"][head // 2], HEADS["value"][head // 2]
        weights = np.array([np.exp(query @ key[place] / 8**0.5) for place in range(6)])
        weights[: 6 - (window or 6)] = 0.0
        rows.append(weights @ value / weights.sum())
    return SampledOperation("heads", "layers.1.attention heads", {**HEADS, "output": np.stack(rows)})


@pytest.mark.parametrize("window", [None, 3])
def test_heads_attend_with_their_group_in_the_window(window: int | None, work: Work) -> None:
    model = work.model.model_copy(update={"sliding_window": window})
    operation = heads_of(window)
    (error,) = output_errors(SampledStep(0, 5, True, (operation,)), model, "fp32")
    assert error.value < 1e-12
    other = model.model_copy(update={"sliding_window": 4})
    (error,) = output_errors(SampledStep(0, 5, True, (operation,)), other, "fp32")
    assert not error.is_within


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {"output": a["output"] * np.array([1, 1, 0, 1])[:, None]},
        lambda a: {"output": a["output"][[1, 0, 2, 3]]},
        lambda a: {"output": np.where(np.eye(4, 5) > 0, np.nan, a["output"])},
        lambda a: {"key": a["key"][::-1]},
        lambda a: {"value": a["value"] * 1.01},
    ],
    ids=["a head of zeros", "swapped heads", "nan", "other keys", "one per cent"],
)
def test_other_heads_are_without(change: Any, work: Work) -> None:
    operation = heads_of()
    assert not error_of(changed(operation, **change(operation.arrays)), "fp32", work).is_within


def rotated_attention(base: float) -> SampledOperation:
    """`attention_of`, whose queries and keys are those that rotate by the angles of `base`."""
    operation = attention_of()
    places, arrays = list(operation.places), operation.arrays
    unrotated = []
    for rows in (arrays["query"], arrays["key"][places]):
        size = rows.shape[1] // 2
        turned = []
        for place, row in zip(places, rows, strict=True):
            turns = [np.exp(-1j * place * base ** (-pair / size)) for pair in range(size)]
            pairs = (row[:size] + 1j * row[size:]) * np.array(turns)
            turned.append(np.concatenate((pairs.real, pairs.imag)))
        unrotated.append(np.array(turned))
    return changed(operation, unrotated_query=unrotated[0], unrotated_key=unrotated[1])


@pytest.fixture
def rotary(work: Work) -> Work:
    model = work.model.model_copy(update={"positions": "rope", "rope_base": 10000.0})
    return work.model_copy(update={"model": model})


def rotation_of(operation: SampledOperation, work: Work) -> SampleError:
    operation.check_shapes()
    _, rotation = output_errors(SampledStep(0, 5, True, (operation,)), work.model, "fp32")
    return rotation


def test_queries_and_keys_are_rotated_by_their_positions(rotary: Work) -> None:
    assert rotation_of(rotated_attention(10000.0), rotary).value < 1e-12


@pytest.mark.parametrize(
    "change",
    [
        lambda o: rotated_attention(10100.0),
        lambda o: replace(o, places=(*o.places[:-1], o.places[-1] - 1)),
        lambda o: changed(o, unrotated_key=o.arrays["unrotated_key"][::-1]),
        lambda o: changed(o, unrotated_query=o.arrays["query"]),
        lambda o: changed(o, unrotated_query=o.arrays["unrotated_query"] * np.nan),
    ],
    ids=["base 1 % off", "a position off", "swapped", "not rotated", "nan"],
)
def test_another_rotation_is_without(change: Any, rotary: Work) -> None:
    assert not rotation_of(change(rotated_attention(10000.0)), rotary).is_within


def test_a_scaled_rotation_is_another_one(rotary: Work) -> None:
    scaling = RopeScaling(kind="linear", factor=4.0)
    stretched = rotary.model_copy(update={"model": rotary.model.model_copy(update={"rope_scaling": scaling})})
    assert not rotation_of(rotated_attention(10000.0), stretched).is_within
    quarter = rotated_attention(10000.0)
    arrays, places = quarter.arrays, list(quarter.places)
    keys = arrays["key"].copy()
    rows = {"query": arrays["unrotated_query"], "key": arrays["unrotated_key"]}
    turned = {name: turn(array, [place / 4 for place in places], 10000.0) for name, array in rows.items()}
    keys[places] = turned["key"]
    assert rotation_of(changed(quarter, query=turned["query"], key=keys), stretched).value < 1e-6


def turn(rows: Numbers, angles: list[float], base: float) -> Numbers:
    size = rows.shape[1] // 2
    turns = np.exp(1j * np.outer(angles, base ** -(np.arange(size) / size)))
    pairs = (rows[:, :size] + 1j * rows[:, size:]) * turns
    return np.concatenate((pairs.real, pairs.imag), 1)


def norm_scale(operation: SampledOperation, work: Work, precision: str) -> SampleError:
    (error,) = norm_scale_errors(SampledStep(0, 5, True, (operation,)), work.model, precision)
    return error


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_rounding_of_its_numbers_leaves_a_norms_scale(weights: str, work: Work) -> None:
    near_one = changed(norm_of(X, "layernorm", work.model.norm_eps), weight=np.full(256, 1.003), bias=np.zeros(256))
    _, expected, _ = norm(changed(near_one, weight=round_to(near_one.arrays["weight"], weights)), work.model)
    honest = changed(near_one, output=round_to(expected, "bf16"))
    assert norm_scale(honest, work, "bf16").is_within
    factors = 1 + 2e-3 * RANDOM.normal(size=(16, 1))
    coarse = changed(near_one, output=round_to(expected * factors, "bf16"))
    assert not norm_scale(coarse, work, "bf16").is_within and error_of(coarse, "bf16", work).is_within


def weight_gradients(outputs: str, inputs: str, count: int) -> list[SampledOperation]:
    operations = []
    for number in range(count):
        y, x = RANDOM.normal(size=(2, 8, 64))
        arrays = {"inputs": y, "weight": x, "output": round_to(y, outputs) @ round_to(x, inputs).T}
        operations.append(SampledOperation("weight gradient", f"layers.{number}.mlp.up weights", arrays))
    return operations


@pytest.mark.parametrize(
    ("outputs", "inputs", "is_within"),
    [("e5m2", "e4m3", True), ("e4m3", "e4m3", False), ("fp32", "e4m3", False)],
)
def test_gradients_in_fp8_are_judged_together(outputs: str, inputs: str, is_within: bool, work: Work) -> None:
    step = SampledStep(0, 5, True, tuple(weight_gradients(outputs, inputs, 60)))
    *_, together = output_errors(step, work.model, "fp8")
    assert together.name == "60 weight gradients together" and together.is_within is is_within, together
    few = output_errors(replace(step, operations=step.operations[:3]), work.model, "fp8")
    assert len(few) == 3


def test_zeros_have_no_scale(work: Work) -> None:
    zeros = changed(norm_of(X, "layernorm", work.model.norm_eps), output=0 * X, weight=0 * W[0], bias=0 * W[0])
    assert norm_scale(zeros, work, "bf16").value == 0


def test_a_weight_gradient_is_a_product_over_tokens(work: Work) -> None:
    outputs, inputs = round_to(X, "bf16"), round_to(50 * W, "bf16")  # [rows, tokens], [columns, tokens]
    operation = SampledOperation(
        "weight gradient",
        "layers.0.mlp.up weights",
        {"inputs": outputs, "weight": inputs, "output": outputs @ inputs.T},
    )
    operation.check_shapes()
    assert error_of(operation, "bf16", work).value < 1e-12
    for others in (
        {"output": round_to(operation.arrays["output"], "e4m3")},
        {"output": operation.arrays["output"].T},
        {"output": round_to(outputs, "e4m3") @ round_to(inputs, "e4m3").T},
        {"inputs": np.roll(outputs, 1, 1)},
        {"inputs": np.where(np.arange(256) < 64, 0.0, outputs)},
    ):
        assert not error_of(changed(operation, **others), "bf16", work).is_within
    assert not error_of(operation, "fp8", work).is_within


def sums_of(work: Work, **arrays: Numbers) -> SampledStep:
    parts = RANDOM.normal(size=(4, 16))
    operation = changed(update_of(work, 9, 2.0), micro_batches=parts, gradient=parts.sum(0))
    operation = changed(operation, **arrays)
    operation.check_shapes()
    return SampledStep(0, 9, True, (operation,))


def test_a_gradient_is_the_sum_of_its_micro_batches(work: Work) -> None:
    (error,) = sum_errors(sums_of(work), 4)
    assert error.value < 1e-12 and not list(sum_errors(SampledStep(0, 9, True, (update_of(work, 9, 2.0),)), 4))
    for accumulation in (3, 5):
        (error,) = sum_errors(sums_of(work), accumulation)
        assert error.value == np.inf
    parts = RANDOM.normal(size=(4, 16))
    for gradient in (parts.sum(0) / 4, parts[:3].sum(0), round_to(parts.sum(0), "fp16"), parts.sum(0) * np.nan):
        (error,) = sum_errors(sums_of(work, micro_batches=parts, gradient=gradient), 4)
        assert not error.is_within


def two_steps(work: Work, rank: int = 0, step: int = 10, **arrays: Numbers) -> tuple[SampledStep, SampledStep]:
    first = update_of(work, 9, 2.0)
    left = {name: first.arrays[f"new_{name}"] for name in ("value", "mean", "square")}
    second = changed(first, **left, **arrays)
    return SampledStep(0, 9, True, (first,)), SampledStep(rank, step, True, (second,))


def test_nothing_changes_from_one_step_to_the_next(work: Work) -> None:
    errors = [error for _, error in idle_change_errors(two_steps(work))]
    assert [error.name.split()[0] for error in errors] == ["value", "mean", "square"]
    assert all(error.is_within for error in errors)
    before, after = two_steps(work)
    for name in ("value", "mean", "square"):
        numbers = after.operations[0].arrays[name]
        for change in (numbers * 1.01, numbers[::-1], numbers * 0, rounded(numbers, "bf16"), numbers * np.nan):
            broken = replace(after, operations=(changed(after.operations[0], **{name: change}),))
            errors = [error for _, error in idle_change_errors((before, broken))]
            assert [error.name.split()[0] for error in errors if not error.is_within] == [name]


def test_steps_of_other_ranks_or_farther_apart_are_not_compared(work: Work) -> None:
    assert not list(idle_change_errors(two_steps(work, rank=1))) and not list(
        idle_change_errors(two_steps(work, step=11))
    )


def test_arrays_of_ends_and_sums_that_do_not_fit_are_refused(work: Work) -> None:
    for operation in (heads_of(), rotated_attention(10000.0), sums_of(work).operations[0]):
        operation.check_shapes()
        for name, array in operation.arrays.items():
            for other in (array[..., :-1], array[..., None], array[:0]):
                with pytest.raises(ValueError, match="found shapes"):
                    changed(operation, **{name: other}).check_shapes()


def test_each_kind_names_its_arrays() -> None:
    assert {kind: len(required) for kind, (required, _) in KINDS.items()} == {
        "product": 3,
        "input gradient": 3,
        "weight gradient": 3,
        "norm": 3,
        "attention": 4,
        "heads": 4,
        "norm gradient": 2,
        "activation gradient": 3,
        "attention gradient": 6,
        "embedding": 2,
        "table gradient": 1,
        "loss": 6,
        "update": 7,
    }
    assert list(LIMITS.values()) == sorted(LIMITS.values())
