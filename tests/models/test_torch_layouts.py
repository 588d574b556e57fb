"""Every layout trains the same curve as one process; minutes, in many processes over gloo."""

from __future__ import annotations

import pytest
from layouts import MODELS, MORE, SINGLE, VARIANTS, Curve, compare, job_of, train

pytestmark = [pytest.mark.layouts, pytest.mark.torch]


@pytest.fixture(scope="module")
def reference():
    curves: dict[str, Curve] = {}

    def of(family: str) -> Curve:
        if family not in curves:
            curves[family] = train(job_of(MODELS[family], SINGLE))
        return curves[family]

    return of


@pytest.mark.parametrize("variant", [*VARIANTS, *MORE], ids=lambda variant: variant.name)
@pytest.mark.parametrize("family", sorted(MODELS))
def test_same_curve_as_one_process(family, variant, reference):
    found = compare(train(job_of(MODELS[family], variant)), reference(family))
    assert found.within(), found


@pytest.mark.parametrize("layout", ["DP2", "TP2", "TP2 x PP2"])
def test_untied_biased_and_learned_positions_in_llama(layout):
    """What FlagPerf's command trains: Llama's norms and SwiGLU with learned positions, biases and a tied head."""
    changes = {"positions": "learned", "rope_base": None, "bias": True, "tied_embeddings": True}
    model = {**MODELS["llama"], **changes}
    variant = next(variant for variant in VARIANTS if variant.name == layout)
    found = compare(train(job_of(model, variant, steps=10)), train(job_of(model, SINGLE, steps=10)))
    assert found.within(), found


@pytest.mark.parametrize("layout", ["TP2", "recompute full", "recompute selective"])
def test_hidden_dropout_is_the_same_on_tensor_ranks_and_in_recomputation(layout):
    model = {**MODELS["gpt"], "hidden_dropout": 0.2}
    variant = next(variant for variant in VARIANTS if variant.name == layout)
    found = compare(train(job_of(model, variant, steps=10)), train(job_of(model, SINGLE, steps=10)))
    assert found.within(), found
