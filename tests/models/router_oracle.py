"""The router of models/megatron against the definition of specs/architecture.py, in numpy and one token at a time.

Run by path in Megatron's environment. The variable PLANTED is a JSON list of statements that change the router `it`.
For each it prints a line, the list of what then differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "torch"))
sys.path.insert(0, str(Path(__file__).parents[2] / "models" / "megatron"))

import numpy as np
import torch
import torch.distributed as dist
from definite_router import DefiniteRouter

EXPERTS, CHOSEN, LENGTH, BATCH = 6, 2, 5, 2
ROUTERS: list[dict[str, Any]] = [
    {"scores": "softmax", "normalised": True, "scale": 1.0},
    {"scores": "softmax", "normalised": False, "scale": 1.5},
    {"scores": "sigmoid", "normalised": True, "scale": 2.5},
    {"scores": "sigmoid", "normalised": False, "scale": 1.0},
    {"scores": "sigmoid", "normalised": True, "scale": 1.0, "groups": SimpleNamespace(count=3, chosen=2)},
    {"scores": "softmax", "normalised": True, "scale": 1.0, "groups": SimpleNamespace(count=3, chosen=1)},
]


def define(logits: np.ndarray, router: SimpleNamespace, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """(gates, chosen, losses) of logits [sequence, batch, experts]."""
    raised = np.exp(logits)
    scores = raised / raised.sum(-1, keepdims=True) if router.scores == "softmax" else raised / (1 + raised)
    gates, chosen = np.zeros_like(scores), np.zeros(scores.shape, bool)
    for place in np.ndindex(LENGTH, BATCH):
        own, ranking = scores[place], scores[place] + bias
        best = best_of(ranking, within(ranking, router.groups), CHOSEN)
        gates[place][best] = own[best] * router.scale / (own[best].sum() if router.normalised else 1)
        chosen[place][best] = True
    return gates, chosen, losses_of(router, raised, scores / scores.sum(-1, keepdims=True), chosen)


def best_of(ranking: np.ndarray | list[float], those: Iterable[int], number: int) -> list[int]:
    return sorted(those, key=lambda expert: (-ranking[expert], expert))[:number]


def within(ranking: np.ndarray, groups: SimpleNamespace | None) -> Sequence[int]:
    """The experts that a token may choose: those of its best groups, by the sum of each one's best."""
    if groups is None:
        return range(EXPERTS)
    size = EXPERTS // groups.count
    members = [range(group * size, group * size + size) for group in range(groups.count)]
    strength = [sum(sorted(ranking[each], reverse=True)[: CHOSEN // groups.chosen]) for each in members]
    return [expert for group in best_of(strength, range(groups.count), groups.chosen) for expert in members[group]]


def losses_of(router: SimpleNamespace, raised: np.ndarray, shares: np.ndarray, chosen: np.ndarray) -> float:
    by_sequence = [
        EXPERTS * sum(chosen[:, each].sum(0) / (CHOSEN * LENGTH) * shares[:, each].mean(0)) for each in range(BATCH)
    ]
    return router.auxiliary_loss * np.mean(by_sequence) + router.z_loss * np.mean(np.log(raised.sum(-1)) ** 2)


def made(router: SimpleNamespace, bias: np.ndarray, fault: str) -> DefiniteRouter:
    it = DefiniteRouter.__new__(DefiniteRouter)
    torch.nn.Module.__init__(it)
    it.definition, it.topk, it.num_experts, it.tp_cp_group = router, CHOSEN, EXPERTS, dist.group.WORLD
    it.record = None
    it.expert_bias, it.local_tokens_per_expert = torch.from_numpy(bias), torch.zeros(EXPERTS)
    it.reset()
    exec(fault, {"it": it})
    return it


def compared(router: SimpleNamespace, bias: np.ndarray, logits: np.ndarray, fault: str) -> Iterator[str]:
    """The names of what differs."""
    it, given = made(router, bias, fault), torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    gates, chosen = it.routing(given)
    right, taken, losses = define(logits, router, bias.astype(float))
    if not (chosen.view(taken.shape).numpy() == taken).all():
        yield "choice"
    if not np.allclose(gates.detach().view(right.shape).numpy(), right, atol=1e-6):
        yield "gates"
    if not abs(float(it.loss) - losses) < 1e-6:
        yield "losses"
    if not it.tokens.tolist() == it.local_tokens_per_expert.tolist() == taken.sum((0, 1)).tolist():
        yield "counts"
    weights = np.random.default_rng(2).normal(size=right.shape)
    (gates.view(right.shape) * torch.tensor(weights)).sum().backward()
    assert given.grad is not None
    if not np.allclose(given.grad.numpy(), slopes(logits, router, taken, weights), atol=1e-5):
        yield "gradient"


def slopes(
    logits: np.ndarray, router: SimpleNamespace, chosen: np.ndarray, weights: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """The gradient of the weighted gates and the losses, by differences; the choice stays."""
    found = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        ends = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[place] += sign * step
            ends.append(value(moved, router, chosen, weights))
        found[place] = (ends[0] - ends[1]) / (2 * step)
    return found


def value(logits: np.ndarray, router: SimpleNamespace, chosen: np.ndarray, weights: np.ndarray) -> float:
    raised = np.exp(logits)
    scores = raised / raised.sum(-1, keepdims=True) if router.scores == "softmax" else raised / (1 + raised)
    gates = np.where(chosen, scores, 0) * router.scale
    gates = gates / np.where(chosen, scores, 0).sum(-1, keepdims=True) if router.normalised else gates
    return (gates * weights).sum() + losses_of(router, raised, scores / scores.sum(-1, keepdims=True), chosen)


def differing(fault: str) -> list[str]:
    rng = np.random.default_rng(5)
    found: set[str] = set()
    logits = np.round(rng.normal(size=(LENGTH, BATCH, EXPERTS)) * 2) / 2  # many of them are equal
    for given in ROUTERS:
        router = SimpleNamespace(**{"groups": None, **given}, auxiliary_loss=0.2, z_loss=0.03)
        for bias in (np.zeros(EXPERTS), np.round(rng.normal(size=EXPERTS), 1) / 4):
            found.update(compared(router, bias.astype(np.float32), logits, fault))
    return sorted(found)


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for planted in json.loads(os.environ["PLANTED"]):
    print("differs:", json.dumps(differing(planted)), flush=True)
os._exit(0)
