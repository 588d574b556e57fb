"""Tokens, their embedding, and the loss with its gradient are held to the case's tokens and to the logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.sampled_operations import SampledOperation, SampledStep, SampleError, TokenChecksums
from levelfield.measure.sampled_tokens import loss_errors, mean_loss_error
from levelfield.measure.spot_check import output_errors
from levelfield.specs.case import Work
from numpy.typing import NDArray
from plans import make_plan

Numbers = NDArray[np.float64]
RANDOM = np.random.default_rng(2)
TOKENS, VOCABULARY, COLUMNS = 24, 50, 8


@pytest.fixture(scope="module")
def work() -> Work:
    return make_plan(Registry(), "gpt3_6.7B_bf16:torch:cpu:1:1", scale="smoke").work


def changed(operation: SampledOperation, **arrays: Numbers) -> SampledOperation:
    return replace(operation, arrays={**operation.arrays, **arrays})


def error_of(operation: SampledOperation, work: Work, **model: Any) -> SampleError:
    operation.check_shapes()
    settings = work.model.model_copy(update=model)
    (error,) = output_errors(SampledStep(0, 5, True, (operation,)), settings, "fp32")
    return error


TABLE, POSITIONS = RANDOM.normal(size=(16, 12)), RANDOM.normal(size=(16, 12))


def test_an_embedding_is_the_tables_row_with_its_position(work: Work) -> None:
    arrays = {"table": TABLE, "positions": POSITIONS, "output": TABLE + POSITIONS}
    operation = SampledOperation("embedding", "embedding", arrays)
    assert error_of(operation, work).value == 0
    for name, array in {
        "output": np.roll(arrays["output"], 1, 0),
        "positions": np.roll(POSITIONS, 1, 0),
        "table": TABLE * 1.01,
    }.items():
        assert not error_of(changed(operation, **{name: array}), work).is_within
    assert not error_of(changed(operation, output=TABLE * np.nan), work).is_within


def test_an_embedding_has_the_models_scale(work: Work) -> None:
    operation = SampledOperation("embedding", "embedding", {"table": TABLE, "output": 3 * TABLE})
    assert error_of(operation, work, embedding_scale=3.0).value == 0
    assert not error_of(operation, work).is_within


READ = RANDOM.integers(0, 5, TOKENS).astype(float)
HIDDEN, INPUTS = RANDOM.normal(size=(2, TOKENS, COLUMNS))
LOGITS = RANDOM.normal(size=(TOKENS, 3))
PLACES = (1, 3, 4)


def table_of(parts: str) -> SampledOperation:
    """The gradient of rows 1, 3 and 4: of the embedding's lookups, of the head, or of both."""
    arrays: dict[str, Numbers] = {}
    gradient = np.zeros((3, COLUMNS))
    if parts != "head":
        arrays |= {"hidden": HIDDEN, "read": READ}
        for row, token in enumerate(PLACES):
            for place in np.flatnonzero(token == READ):
                gradient[row] += HIDDEN[place]
    if parts != "embedding":
        arrays |= {"head_gradient": LOGITS, "head_inputs": INPUTS}
        for slope, inputs in zip(LOGITS, INPUTS, strict=True):
            gradient += np.outer(slope, inputs)
    return SampledOperation("table gradient", "embedding weights", {**arrays, "output": gradient}, PLACES)


@pytest.mark.parametrize("parts", ["embedding", "head", "both"])
def test_a_tables_gradient_is_the_sum_over_all_tokens(parts: str, work: Work) -> None:
    operation = table_of(parts)
    assert error_of(operation, work).value < 1e-12
    output = operation.arrays["output"]
    for other in (output[::-1], output * 1.01, np.where(np.eye(3, COLUMNS) > 0, np.nan, output), output * 0):
        assert not error_of(changed(operation, output=other), work).is_within


def test_a_tables_gradient_without_a_part_or_a_token_is_without(work: Work) -> None:
    both = table_of("both")
    for part in ("embedding", "head"):
        assert not error_of(changed(both, output=table_of(part).arrays["output"]), work).is_within
    assert not error_of(changed(both, read=np.roll(READ, 1)), work).is_within
    assert not error_of(both, work, embedding_scale=2.0).is_within


def test_a_tables_arrays_fit_together(work: Work) -> None:
    for operation in (table_of("embedding"), table_of("head"), table_of("both")):
        for name, array in operation.arrays.items():
            for other in (array[:-1], array[..., None], array[:0]):
                with pytest.raises(ValueError, match="found shapes"):
                    changed(operation, **{name: other}).check_shapes()
    both = table_of("both")
    for missing in ("hidden", "read", "head_gradient", "head_inputs"):
        arrays = {name: array for name, array in both.arrays.items() if name != missing}
        with pytest.raises(ValueError, match="found shapes"):
            replace(both, arrays=arrays).check_shapes()
    with pytest.raises(ValueError, match="found shapes"):
        replace(both, places=(1, 3)).check_shapes()


TARGETS = RANDOM.integers(0, VOCABULARY, TOKENS)


def loss_of(gradient: Any = None, spread: float = 2.0) -> SampledOperation:
    """Cross-entropy of random logits. gradient: of the summed loss, changed from softmax less one-hot [tokens, all]."""
    logits = spread * RANDOM.normal(size=(TOKENS, VOCABULARY))
    normaliser = np.log(np.exp(logits).sum(1))
    right = np.exp(logits - normaliser[:, None]) - np.eye(VOCABULARY)[TARGETS]
    slope = right if gradient is None else gradient(right, logits)
    tokens = np.arange(TOKENS)
    arrays = {
        "normaliser": normaliser,
        "target_logit": logits[tokens, TARGETS],
        "target_gradient": slope[tokens, TARGETS],
        "logits": logits[:4],
        "gradient": slope[:4],
        "targets": TARGETS[:4].astype(float),
    }
    return SampledOperation("loss", "loss", arrays)


def failed(step: SampledStep, precision: str = "fp32") -> list[str]:
    return [error.name for error in loss_errors(step, precision, 2) if not error.is_within]


def round_to_bf16(numbers: Numbers) -> Numbers:
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def test_the_gradient_of_cross_entropy_is_within() -> None:
    operation = loss_of()
    operation.check_shapes()
    assert failed(SampledStep(0, 5, True, (operation,))) == []
    coarse = loss_of(lambda right, _: round_to_bf16(right))
    assert failed(SampledStep(0, 5, True, (coarse,)), "bf16") == []
    assert failed(SampledStep(0, 5, True, (coarse,)))[:2] == ["gradient of the targets", "gradient of the other logits"]


def drop_a_token(right: Numbers, _logits: Numbers) -> Numbers:
    return right * (np.arange(TOKENS) != 17)[:, None]


def smooth_labels(right: Numbers, _logits: Numbers) -> Numbers:
    return right + 0.1 * (np.eye(VOCABULARY)[TARGETS] - 1 / VOCABULARY)


def add_z_loss(right: Numbers, logits: Numbers) -> Numbers:
    normaliser = np.log(np.exp(logits).sum(1, keepdims=True))
    return right + 0.02 * normaliser * np.exp(logits - normaliser)


def rotate_targets(right: Numbers, _logits: Numbers) -> Numbers:
    return right + np.eye(VOCABULARY)[TARGETS] - np.eye(VOCABULARY)[np.roll(TARGETS, 1)]


@pytest.mark.parametrize(
    "gradient",
    [
        *(drop_a_token, smooth_labels, add_z_loss, rotate_targets),
        lambda right, _: 1.01 * right,
        lambda right, _: np.full_like(right, np.nan),
    ],
    ids=["a token left out", "label smoothing", "z-loss", "other targets", "one per cent", "nan"],
)
def test_another_gradient_of_the_loss_is_without(gradient: Any) -> None:
    assert failed(SampledStep(0, 5, True, (loss_of(gradient),)), "bf16")


def test_shares_below_fp16s_smallest_number_are_within() -> None:
    logits = RANDOM.normal(size=(4, 128000))
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    targets = np.array([3, 5, 7, 9])
    gradient = share.copy()
    gradient[np.arange(4), targets] -= 1
    normaliser = np.log(np.exp(logits).sum(1))
    arrays = {
        "normaliser": normaliser,
        "target_logit": logits[np.arange(4), targets],
        "target_gradient": gradient[np.arange(4), targets],
        "logits": logits,
        "gradient": gradient.astype(np.float16).astype(float),
        "targets": targets.astype(float),
    }
    operation = SampledOperation("loss", "loss", arrays)
    assert failed(SampledStep(0, 5, True, (operation,)), "fp16") == []
    tenth = changed(operation, gradient=arrays["gradient"] * 1.1)
    assert failed(SampledStep(0, 5, True, (tenth,)), "fp16")[0] == "gradient of the other logits"


def test_a_rows_common_factor_is_told_though_its_numbers_are_coarse() -> None:
    def coarse(right: Numbers, _logits: Numbers) -> Numbers:
        onehot = np.eye(VOCABULARY)[TARGETS]
        return round_to_bf16((right + onehot) * 1.004) - onehot

    operation = loss_of(coarse, 0.1)
    assert failed(SampledStep(0, 5, True, (operation,)), "bf16") == ["scale of the logits' gradients"]


@pytest.mark.parametrize(
    ("factors", "precision", "is_within"),
    [
        ((0.5, 0.5), "bf16", True),
        ((0.5, 1.0), "bf16", False),
        ((1.0, 1.0), "fp32", False),
        ((1024.0, 1024.0), "fp16", True),
        ((1024.0, 512.0), "fp16", False),
        ((float("nan"), 0.5), "bf16", False),
    ],
)
def test_each_micro_batch_has_its_share_of_the_loss(factors: Any, precision: str, is_within: bool) -> None:
    step = SampledStep(0, 5, True, (), loss_factors=factors)
    (error,) = loss_errors(step, precision, 2)
    assert error.is_within is is_within


def test_a_losss_arrays_fit_together() -> None:
    operation = loss_of()
    for name, array in operation.arrays.items():
        for other in (array[:-1], array[..., None], array[:0]):
            with pytest.raises(ValueError, match="found shapes"):
                changed(operation, **{name: other}).check_shapes()


@pytest.mark.parametrize("target", [-1.0, VOCABULARY, 2.5, np.nan, np.inf])
def test_a_target_is_a_token_of_the_vocabulary(target: float) -> None:
    targets = np.array([target, 0, 1, 2])
    with pytest.raises(ValueError, match="loss of loss"):
        changed(loss_of(), targets=targets).check_shapes()
    changed(loss_of(), targets=np.array([VOCABULARY - 1, 0, 1, 2.0])).check_shapes()


@pytest.mark.parametrize(
    ("read", "wrong"), [((1, 2, 3), 0), ((1, 2, 2), 1), ((2, 1, 3), 2), ((1, 2), 1), ((1, 2, 3, 3), 1), ((), 3)]
)
def test_tokens_that_are_not_the_cases_are_counted(read: tuple[int, ...], wrong: int) -> None:
    step = SampledStep(0, 5, True, (), (TokenChecksums("targets", read, (1, 2, 3)),))
    (error,) = loss_errors(step, "fp32", 2)
    assert (error.name, error.value, error.is_within) == ("targets", wrong, wrong == 0)


@pytest.mark.parametrize(
    ("loss", "is_within"), [(3.0, True), (3.00001, True), (3.03, False), (6.0, False), (float("nan"), False)]
)
def test_a_steps_loss_is_the_mean_of_its_micro_batches(loss: float, is_within: bool) -> None:
    step = SampledStep(0, 5, True, (), micro_batch_losses=(2.0, 4.0))
    assert mean_loss_error(step, loss).is_within is is_within
