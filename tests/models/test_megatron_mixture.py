"""Mixtures of experts in Megatron-Core: every layout trains what one process trains, and planted faults are seen.

One process of Megatron is the reference here; that it trains what torch trains is another test.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import (
    MODELS,
    ROOT,
    SINGLE,
    Curve,
    Variant,
    compare,
    compare_routing,
    planted,
    script_of,
    shallow,
    small_job,
    train,
)
from trainings.warm import run_ranks

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("megatron")
STEPS = 3
# the losses of its routers are no small part of its gradients, so that a fault in them is not
ROUTER = {"scores": "sigmoid", "normalised": True, "scale": 2.5, "groups": None, "auxiliary_loss": 0.1, "z_loss": 0.01,
          "bias_rate": 0.01}  # fmt: skip
MIXTURE = shallow(MODELS["mixture"])
EVERY_PART = {**MIXTURE, "query_key_norm": True, "head_dim": 12, "qkv_bias": True}
EVERY_PART["experts"] = {**EVERY_PART["experts"], "router": ROUTER}
QWEN = shallow(MODELS["qwen"])
EXPERT = {"data": 2, "expert": 2}
SEQUENCE = {"tensor": 2, "sequence_parallel": True}


FRAMEWORK = "megatron"


@pytest.fixture(scope="module")
def alone(python: Path) -> Callable[[dict[str, Any]], Curve]:
    """The curve of a model in one process, trained once."""
    curves: dict[str, Curve] = {}

    def of(model: dict[str, Any]) -> Curve:
        key = json.dumps(model, sort_keys=True)
        if key not in curves:
            curves[key] = train(small_job(model, SINGLE, STEPS), TRAIN, python)
        return curves[key]

    return of


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(Variant("EP2", EXPERT), marks=pytest.mark.thorough),
        Variant("ZeRO 1, DP2 x TP2 sequence parallel, EP2", {
            **EXPERT, **SEQUENCE, "sharding_stage": 1, "sharding_degree": 2}),
        pytest.param(Variant("PP2, recompute full", {"pipeline": 2}, recompute="full"), marks=pytest.mark.thorough),
        pytest.param(Variant("TP2 sequence parallel", SEQUENCE, micro_batch=1), marks=pytest.mark.thorough),
        pytest.param(Variant("DP4 EP2", {"data": 4, "expert": 2}), marks=pytest.mark.thorough),
        pytest.param(Variant("ZeRO 1, DP4 EP2", {
            "data": 4, "expert": 2, "sharding_stage": 1, "sharding_degree": 4}), marks=pytest.mark.thorough),
        pytest.param(Variant("EP2 x PP2", {**EXPERT, "pipeline": 2}), marks=pytest.mark.thorough),
        pytest.param(Variant("TP2 x PP2", {**SEQUENCE, "pipeline": 2}), marks=pytest.mark.thorough),
    ],
    ids=lambda variant: variant.name,
)  # fmt: skip
def test_every_layout_routes_and_trains_as_one_process(
    variant: Variant, alone: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    found = train(small_job(EVERY_PART, variant, STEPS), TRAIN, python)
    difference = compare(found, alone(EVERY_PART))
    assert difference.is_within_limits(), difference
    assert difference.parameter_norm is not None
    assert difference.parameter_norm < 1e-5
    auxiliary, moved = compare_routing(found, alone(EVERY_PART))
    assert auxiliary < 1e-6 and moved == 0


@pytest.mark.parametrize(
    "model", [EVERY_PART, pytest.param(MIXTURE, marks=pytest.mark.thorough)], ids=["every part", "mixture"]
)
def test_one_process_routes_and_trains_as_torch_does(
    model: dict[str, Any], alone: Callable[[dict[str, Any]], Curve], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    reference = torch_of(small_job(model, SINGLE, STEPS))
    difference = compare(alone(model), reference)
    assert difference.is_within_limits(), difference
    assert difference.parameter_norm is not None
    assert difference.parameter_norm < 1e-5
    auxiliary, moved = compare_routing(alone(model), reference)
    assert auxiliary < 1e-6 and moved == 0


@pytest.mark.parametrize(
    "changes",
    [{"sliding_window": 7}, {"rope_scaling": {**QWEN["rope_scaling"], "factor": 2.0, "kind": "linear",
                                              "original_length": None, "low_factor": None, "high_factor": None}}],
    ids=["window", "linear"],
)  # fmt: skip
def test_parts_of_attention_are_those_of_torch(
    changes: dict[str, Any], torch_of: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    model = {**QWEN, "layers": 1, **changes}
    found = compare(train(small_job(model, SINGLE, STEPS), TRAIN, python), torch_of(small_job(model, SINGLE, STEPS)))
    assert found.is_within_limits(), found


def test_a_window_that_is_one_token_longer_is_seen(
    tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    model = {**QWEN, "layers": 1, "sliding_window": 7}
    fault = """
        import model
        right = model.architecture
        model.architecture = lambda case: {**right(case), "window_size": (case.sliding_window, 0)}
    """
    found = compare(faulty(tmp_path, python, fault, model), torch_of(small_job(model, SINGLE, STEPS)))
    assert found.same_weights
    assert not found.is_within_limits()


def test_the_reported_loss_is_that_of_the_tokens_and_the_routers_loss_stands_beside_it(
    alone: Callable[[dict[str, Any]], Curve],
) -> None:
    """At step 1 all words are about equally probable; the routers' loss is about its coefficients in each layer."""
    found = alone(EVERY_PART)
    assert found.losses[0] == pytest.approx(4.86, abs=0.02)
    # balanced: 0.1 x 1, and 0.01 x (logarithm of the sum of four exponentials of about 0) squared
    assert found.auxiliary[0] == pytest.approx(0.1 + 0.01 * 1.386**2, abs=0.01)
    counts = found.experts[1][1]
    assert sum(counts) == 2 * found.tokens[0]
    assert len(counts) == 4


def test_in_16_bits_an_expert_layout_stays_near_and_starts_from_the_same_weights(
    alone: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    variant = Variant("EP2", {**EXPERT, "sharding_stage": 1, "sharding_degree": 2})
    found = compare(train(small_job(MIXTURE, variant, STEPS, precision="bf16"), TRAIN, python), alone(MIXTURE))
    assert found.same_weights and found.same_tokens
    assert found.loss is not None
    assert 0 < found.loss < 5e-3
    assert found.grad_norm is not None
    assert 0 < found.grad_norm < 0.1


# ---- the router against the definition, without a training

ORACLE = Path(__file__).with_name("router_oracle.py")
# what is changed in the router `it`, and what then differs from the definition
ROUTER_FAULTS = {
    "nothing": ("", None),
    "ties to the higher index": (
        "it.choose = lambda scores: scores.flip(-1).sort(descending=True, stable=True).indices.mul(-1)[:, :2] + 5",
        "choice",
    ),
    "second and third": (
        "it.choose = lambda scores: scores.sort(descending=True, stable=True).indices[:, 1:3]", "choice"),
    "no bias": ("it.expert_bias = None", "choice"),
    "no groups": ("it.within_groups = lambda ranking: ranking", "choice"),
    "plain gates": ("it.gates = lambda scores: scores", "gates"),
    "no scale": ("it.gates = lambda scores: scores / scores.sum(-1, keepdim=True)", "gates"),
    "loss times k": ("loss = it.auxiliary_loss; it.auxiliary_loss = lambda *given: loss(*given) * it.topk", "losses"),
    "loss of a micro-batch": ("loss = it.losses; it.losses = lambda *given: loss(*given[:3], 1)", "losses"),
    "loss without gradient": (
        "it.attach = lambda gates, loss: setattr(it, 'loss', loss.detach()) or gates", "gradient"),
    "counts": ("it.tokens += 1", "counts"),
}  # fmt: skip


@pytest.fixture(scope="module")
def differing(tmp_path_factory: pytest.TempPathFactory, python: Path) -> dict[str, list[str]]:
    """What router_oracle.py says of each fault."""
    faults = json.dumps([fault for fault, _ in ROUTER_FAULTS.values()])
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform"), "OMP_NUM_THREADS": "1", "PLANTED": faults}
    (end,) = run_ranks(str(python), str(ORACLE), [environment], tmp_path_factory.mktemp("oracle"))
    lines = [line.split(":", 1)[1] for line in end.output.splitlines() if line.startswith("differs:")]
    assert len(lines) == len(ROUTER_FAULTS), end.output
    return dict(zip(ROUTER_FAULTS, map(json.loads, lines), strict=True))


def test_the_router_is_as_defined_ties_included(differing: dict[str, list[str]]) -> None:
    assert differing["nothing"] == []


@pytest.mark.parametrize("name", list(ROUTER_FAULTS)[1:])
def test_a_fault_in_the_router_is_seen(name: str, differing: dict[str, list[str]]) -> None:
    assert ROUTER_FAULTS[name][1] in differing[name]


# ---- context parallelism


@pytest.mark.parametrize(
    ("model", "variant"),
    [
        ({**EVERY_PART, "sliding_window": 5}, Variant("CP2 EP2", {"context": 2, "expert": 2})),
        pytest.param(shallow(MODELS["gpt"]), Variant("CP2, ZeRO 1", {
            "context": 2, "sharding_stage": 1, "sharding_degree": 2}), marks=pytest.mark.thorough),
        pytest.param(EVERY_PART, Variant("DP2 CP2 EP4", {"data": 2, "context": 2, "expert": 4}),
                     marks=pytest.mark.thorough),
        pytest.param(EVERY_PART, Variant("CP2 EP2 x TP2", {"context": 2, "expert": 2, **SEQUENCE}),
                     marks=pytest.mark.thorough),
        pytest.param(EVERY_PART, Variant("CP2 x PP2", {"context": 2, "pipeline": 2}), marks=pytest.mark.thorough),
    ],
    ids=["CP2 EP2", "CP2, ZeRO 1, GPT", "DP2 CP2 EP4", "CP2 EP2 x TP2", "CP2 x PP2"],
)  # fmt: skip
def test_context_ranks_train_as_one_process(
    model: dict[str, Any], variant: Variant, alone: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    curve = train(small_job(model, variant, STEPS), TRAIN, python)
    found = compare(curve, alone(model))
    assert found.is_within_limits(), found
    if curve.experts:
        auxiliary, moved = compare_routing(curve, alone(model))
        assert auxiliary < 1e-6 and moved == 0


def test_a_loss_that_is_not_divided_over_the_context_ranks_is_seen(
    tmp_path: Path, alone: Callable[[dict[str, Any]], Curve], python: Path
) -> None:
    fault = "import training\nright = training.mean_loss\ntraining.mean_loss = lambda losses, ranks: right(losses)"
    model = shallow(MODELS["gpt"])
    found = compare(faulty(tmp_path, python, fault, model, Variant("CP2", {"context": 2})), alone(model))
    assert not found.is_within_limits()


# ---- planted faults of trainings


def faulty(folder: Path, python: Path, fault: str, model: dict[str, Any], variant: Variant = SINGLE) -> Curve:
    return train(small_job(model, variant, STEPS), planted(folder, "megatron", textwrap.dedent(fault)), python)


def test_two_experts_that_are_exchanged_are_seen(
    tmp_path: Path, python: Path, alone: Callable[[dict[str, Any]], Curve]
) -> None:
    """All weights are there, and those of the first two experts in each other's place."""
    fault = """
        import canonical
        right = canonical.Correspondence.expert
        def exchanged(self, module):
            name, expert = right(self, module)
            return name, {0: 1, 1: 0}.get(expert, expert)
        canonical.Correspondence.expert = exchanged
    """
    found = compare(faulty(tmp_path, python, fault, MIXTURE, Variant("EP2", EXPERT)), alone(MIXTURE))
    assert found.same_weights
    assert not found.is_within_limits()


def test_gradients_of_query_norms_that_are_not_summed_are_seen(
    tmp_path: Path, python: Path, alone: Callable[[dict[str, Any]], Curve]
) -> None:
    fault = """
        import sys
        import megatron.core.distributed
        summing = sys.modules["megatron.core.distributed.finalize_model_grads"]
        summing._allreduce_non_tensor_model_parallel_grads = lambda *given, **named: None
    """
    found = compare(faulty(tmp_path, python, fault, QWEN, Variant("TP2", {"tensor": 2})), alone(QWEN))
    assert found.parameter_norm is not None
    assert found.parameter_norm > 0.1
    assert not found.is_within_limits()


def test_an_auxiliary_loss_that_is_not_divided_by_the_choices_is_seen(
    tmp_path: Path, python: Path, alone: Callable[[dict[str, Any]], Curve]
) -> None:
    fault = """
        import definite_router
        right = definite_router.DefiniteRouter.auxiliary_loss
        definite_router.DefiniteRouter.auxiliary_loss = lambda self, *given: right(self, *given) * self.topk
    """
    curve = faulty(tmp_path, python, fault, MIXTURE)
    found = compare(curve, alone(MIXTURE))
    assert found.first_loss is not None
    assert found.same_weights and found.first_loss < 1e-6  # it is not in the loss of the tokens
    assert not found.is_within_limits()
    assert compare_routing(curve, alone(MIXTURE))[0] > 0.5


@pytest.mark.thorough
def test_an_experts_gradient_that_counts_a_replica_twice_is_seen(
    tmp_path: Path, python: Path, alone: Callable[[dict[str, Any]], Curve]
) -> None:
    fault = """
        import weights
        from megatron.core import parallel_state
        weights.LocalParameter.replicas = property(lambda self: parallel_state.get_data_parallel_group())
    """
    found = compare(faulty(tmp_path, python, fault, MIXTURE, Variant("EP2", EXPERT)), alone(MIXTURE))
    assert found.parameter_norm is not None
    assert found.parameter_norm > 0.1
    assert not found.is_within_limits()
