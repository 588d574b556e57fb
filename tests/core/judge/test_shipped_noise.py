"""The shipped references: other frameworks' rows hold against limits that were learned without them."""

from __future__ import annotations

import pytest
from levelfield.catalog.registry import Registry
from levelfield.judge.noise import limits_from, noise_of
from levelfield.measure.alignment import AlignmentLimits
from levelfield.measure.calibration import Noise
from levelfield.specs.reference import NoiseRow, Reference
from limit_rates import exceeds

REGISTRY = Registry()
FOREIGN = [
    (reference, row)
    for reference in map(REGISTRY.reference, sorted(REGISTRY.references))
    for row in reference.noise
    if row.changed.split()[0] != reference.framework
]


def learned_without_others(reference: Reference) -> AlignmentLimits:
    rows = [row for row in reference.noise if row.changed.split()[0] == reference.framework]
    return limits_from(reference.model_copy(update={"noise": tuple(rows)}))


@pytest.mark.parametrize(
    ("reference", "row"), [pytest.param(*pair, id=f"{pair[0].name} {pair[1].changed}") for pair in FOREIGN]
)
def test_a_framework_without_a_row_is_not_refused(reference: Reference, row: NoiseRow) -> None:
    limits, noise = learned_without_others(reference), noise_of(row, reference)
    assert not exceeds(noise, limits)
    assert exceeds(noise._replace(first_step=1e-4), limits), "a first loss that is shifted by 0.01 %"
    assert exceeds(noise._replace(curve={**noise.curve, 2: 1e-2}), limits), "a second loss that is shifted by 1 %"


def test_references_in_16_bits_have_rows_of_other_frameworks() -> None:
    rows = {(reference.name, row.changed.split()[0]) for reference, row in FOREIGN if reference.precision == "bf16"}
    assert {framework for _, framework in rows} == {"deepspeed", "jax", "megatron"} and len(rows) == 6


def test_a_key_bias_without_a_gradient_has_no_limit() -> None:
    """An H100's norm of one was 12 times the reference's in a training that agreed to 1e-5 everywhere else."""
    reference = REGISTRY.reference("gpt3_6.7B_smoke_fp32")
    limits, noise = limits_from(reference), noise_of(reference.noise[0], reference)
    assert noise.weights

    def changed(place: tuple[str, str], value: float) -> Noise:
        return noise._replace(weights={**(noise.weights or {}), place: value})

    assert not exceeds(changed(("attention.key.bias", "norm"), 12.0), limits)
    assert exceeds(changed(("attention.query.bias", "norm"), 1e-3), limits)
    assert exceeds(changed(("attention.key.weight", "norm"), 1e-3), limits)


def test_a_key_bias_with_a_gradient_keeps_its_limit() -> None:
    """With rotary positions it is trained as any other parameter."""
    reference = REGISTRY.reference("qwen2.5_7b_smoke_fp32")
    weights = limits_from(reference).weights
    assert isinstance(weights, dict) and 0 < weights["attention.key.bias", "norm"] < 1e-2
