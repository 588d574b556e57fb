"""torch's router and experts against their definition, written in numpy one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from leaf_gradient import gradient_of
from levelfield.worker.architecture import Experts, Router, RouterGroups
from levelfield.worker.job import parse

if TYPE_CHECKING:
    from model.mixture import Mixture

pytestmark = pytest.mark.torch
BATCH, LENGTH, EXPERTS, CHOSEN = 2, 6, 6, 2


def experts_of(**router: Any) -> Experts:
    coefficients = {"auxiliary_loss": 0.2, "z_loss": 0.03}
    return Experts(EXPERTS, CHOSEN, 0, router=parse(Router, {**coefficients, **router}, "router"))


ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, not normalised": {"normalised": False, "scale": 1.5},
    "sigmoid": {"scores": "sigmoid", "scale": 2.5},
    "two of three groups": {"scores": "sigmoid", "groups": {"count": 3, "chosen": 2}},
    "one of three groups": {"groups": {"count": 3, "chosen": 1}},
}


def define(
    logits: np.ndarray, router: Router, bias: np.ndarray, capacity: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(chosen, gates, kept, loss), each token by itself; logits: [batch, sequence, experts]."""
    raised = np.exp(logits)
    scores = raised / raised.sum(-1, keepdims=True) if router.scores == "softmax" else raised / (1 + raised)
    chosen, gates = np.zeros((BATCH, LENGTH, CHOSEN), int), np.zeros((BATCH, LENGTH, CHOSEN))
    kept, room = np.zeros((BATCH, LENGTH, CHOSEN), bool), np.full((BATCH, EXPERTS), capacity or LENGTH)
    for row, place in np.ndindex(BATCH, LENGTH):
        own = scores[row, place]
        best = ranked(own + bias, open_experts(own + bias, router.groups))[:CHOSEN]
        chosen[row, place] = best
        gates[row, place] = own[best] * router.scale / (own[best].sum() if router.normalised else 1)
        kept[row, place] = room[row, best] > 0
        room[row, best] -= 1
    return chosen, gates, kept, loss_of(router, raised, scores, chosen)


def ranked(values: np.ndarray | list[float], those: Iterable[int]) -> list[int]:
    return sorted(those, key=lambda each: (-values[each], each))


def open_experts(values: np.ndarray, groups: RouterGroups | None) -> Sequence[int]:
    if groups is None:
        return range(EXPERTS)
    size = EXPERTS // groups.count
    members = [range(group * size, (group + 1) * size) for group in range(groups.count)]
    strength = [sum(sorted(values[each], reverse=True)[: CHOSEN // groups.chosen]) for each in members]
    return [expert for group in ranked(strength, range(groups.count))[: groups.chosen] for expert in members[group]]


def loss_of(router: Router, raised: np.ndarray, scores: np.ndarray, chosen: np.ndarray) -> float:
    probabilities = scores / scores.sum(-1, keepdims=True)
    counts = np.stack([np.bincount(row.ravel(), minlength=EXPERTS) for row in chosen])
    balance = (EXPERTS * counts / (CHOSEN * LENGTH) * probabilities.mean(1)).sum(-1).mean()
    return router.auxiliary_loss * balance + router.z_loss * (np.log(raised.sum(-1)) ** 2).mean()


def differences(router: dict[str, Any], bias: np.ndarray, capacity: int | None, logits: np.ndarray) -> set[str]:
    """What differs from the definition."""
    import routing

    experts, given = experts_of(**router), torch.tensor(logits, dtype=torch.float32)
    scores = routing.scores_of(given, experts.router)
    choice = routing.choose(scores, torch.from_numpy(bias).float(), experts, capacity)
    loss = routing.router_loss(given, scores, choice.counts, experts)
    chosen, gates, kept, right = define(logits, experts.router, bias, capacity)
    found = {"chosen"} if not (choice.experts.numpy() == chosen).all() else set()
    found |= {"gates"} if not np.allclose(choice.gates.numpy(), gates, atol=1e-6) else set()
    found |= {"kept"} if not (choice.kept is None or (choice.kept.numpy() == kept).all()) else set()
    found |= {"loss"} if not abs(float(loss) - right) < 1e-6 else set()
    return found | ({"counts"} if int(choice.counts.sum()) != BATCH * LENGTH * CHOSEN else set())


def tied_logits() -> np.ndarray:
    return np.round(np.random.default_rng(5).normal(size=(BATCH, LENGTH, EXPERTS)) * 2) / 2  # many are equal


BIASES = (np.zeros(EXPERTS), np.array([0.25, -0.25, 0, 0.125, 0, -0.125]))


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("capacity", [None, 2])
def test_routing_is_as_defined_ties_included(name: str, capacity: int | None) -> None:
    for bias in BIASES:
        assert differences(ROUTERS[name], bias, capacity, tied_logits()) == set()


RIGHT = SimpleNamespace()
PLANTED = {
    "ties to the higher expert": ("best", lambda scores, number: scores.topk(number).indices.flip(-1), "chosen"),
    "the worst experts": ("best", lambda scores, number: scores.sort(stable=True).indices[..., :number], "chosen"),
    "one token more": (
        "with_room",
        lambda chosen, count, capacity: RIGHT.with_room(chosen, count, capacity + 1),
        "kept",
    ),
    "the last tokens first": (
        "with_room",
        lambda chosen, count, capacity: RIGHT.with_room(chosen.flip(1), count, capacity).flip(1),
        "kept",
    ),
    "an auxiliary loss of the whole micro-batch": (
        "balance_loss",
        lambda scores, counts, experts: RIGHT.balance_loss(
            scores.flatten(0, 1)[None], counts.sum(0, keepdim=True), experts
        ),
        "loss",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_differs_from_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import routing

    function, fault, shown = PLANTED[name]
    vars(RIGHT).update({each: getattr(routing, each) for each in ("with_room", "balance_loss")})
    monkeypatch.setattr(routing, function, fault)
    assert shown in differences({}, BIASES[0], 2, tied_logits())


# ---- the experts


def mixed(sizes: tuple[int, int], kept: bool, dtype: torch.dtype = torch.float32) -> tuple[Mixture, torch.Tensor]:
    """(outputs and gradients of a mixture's layer, those of a sum over every token's experts)."""
    from model.mixture import Mixture

    hidden, inner = sizes
    capacity = 0.8 if kept else None
    experts = replace(experts_of(), ffn_hidden_size=inner, capacity_factor=capacity)
    model: Any = SimpleNamespace(hidden_size=hidden, activation="swiglu", experts=experts)
    layer = Mixture(model, 0, LENGTH, None)
    layer.prepare(torch.device("cpu"))
    generator = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    layer.router.weight.data[5] -= 100 * layer.router.weight.data[5]  # hardly a token chooses it
    x = torch.randn(BATCH, LENGTH, hidden, generator=generator)
    return layer, x.to(dtype)


def by_token(layer: Mixture, x: torch.Tensor) -> torch.Tensor:
    import routing

    scores = routing.scores_of(layer.router(x), layer.settings.router)
    choice = routing.choose(scores, layer.tally.bias, layer.settings, layer.capacity)
    out = torch.zeros(x.shape)
    for place in np.ndindex(BATCH, LENGTH):
        for slot in range(CHOSEN):
            if choice.kept is None or choice.kept[place][slot]:
                expert = choice.experts[place][slot]
                gate, up, down = (getattr(layer.experts, name).weight[expert] for name in ("gate", "up", "down"))
                inner = torch.nn.functional.silu(gate @ x[place]) * (up @ x[place])
                out[place] = out[place] + choice.gates[place][slot] * (down @ inner)
    return out


@pytest.mark.parametrize("sizes", [(16, 12), (10, 7)], ids=["grouped", "one after another"])
@pytest.mark.parametrize("kept", [False, True], ids=["dropless", "capacity"])
def test_a_layer_is_the_sum_over_each_tokens_experts(sizes: tuple[int, int], kept: bool) -> None:
    layer, x = mixed(sizes, kept)
    router = replace(layer.settings.router, auxiliary_loss=0.0, z_loss=0.0)
    layer.settings = replace(layer.settings, router=router)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(8))
    found = []
    runs: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (layer, lambda given: by_token(layer, given))
    for run in runs:
        layer.zero_grad()
        given = x.clone().requires_grad_()
        output = run(given)
        (output * weight).sum().backward()
        found.append([output.detach(), gradient_of(given), *(gradient_of(p).clone() for p in layer.parameters())])
    for ours, right in zip(*found, strict=True):
        assert torch.allclose(ours, right, rtol=1e-5, atol=1e-6)
    assert kept == (layer.capacity is not None and layer.capacity == math.ceil(0.8 * LENGTH * CHOSEN / EXPERTS))


def test_an_expert_without_tokens_has_a_gradient_of_zeros() -> None:
    layer, x = mixed((16, 12), False)
    layer.router.weight.data.zero_()  # equal scores: all tokens take experts 0 and 1
    (layer(x) ** 2).sum().backward()
    gradient = gradient_of(layer.experts.down.weight)
    assert layer.tally.counts.tolist() == [BATCH * LENGTH, BATCH * LENGTH, 0, 0, 0, 0]
    assert gradient[:2].abs().amax((1, 2)).min() > 0 and gradient[2:].abs().max() == 0


def test_a_tokens_choices_are_counted_once_when_its_layer_is_computed_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = mixed((16, 12), False)
    for _ in range(2):  # micro-batches
        (checkpoint(layer, x.clone().requires_grad_(), use_reentrant=False) ** 2).sum().backward()
    assert int(layer.tally.counts.sum()) == 2 * BATCH * LENGTH * CHOSEN
