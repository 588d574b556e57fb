"""benchmarks/torch_step.py: its ratios and its peak, and what it does with a peer that fails or does not fit."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import pytest
from layouts import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import torch_step
import torch_trainers

SHAPE: dict[str, Any] = dict(zip(torch_step.FIELDS, ("llama", 128, 2, 128, 32, 2, "bf16", False, False), strict=True))
ARGUMENTS = Namespace(threads=1, device="cuda", quick=True, turns=3)


class FakeTrainer:
    """Answers as a trainer does. seconds: of each turn, by trainer; broken: who fails, and when."""

    seconds: dict[str, tuple[float, ...]]
    broken: dict[str, str]
    device_bytes: float = 10**12

    def __init__(self, task: dict[str, Any]) -> None:
        self.who, self.turns = task["who"], iter(self.seconds[task["who"]])
        self.steps = 0

    def tell(self, question: str) -> None:
        self.question = question

    def answer(self) -> Any:
        return self.ask(self.question)

    def ask(self, question: str) -> Any:
        if question != "step":
            return {"device_bytes": self.device_bytes, "peak_bytes": 2, "launches": 7, "product_rate": 1e12}[question]
        self.steps += 1
        if self.who in self.broken:
            raise torch_step.TrainerFailed(torch_step.reason_in(f"Traceback\n{self.broken[self.who]}\nSet LOGS=1\n"))
        seconds = 9.0 if self.steps <= torch_step.WARM_UP else next(self.turns)
        return {"seconds": seconds, "host_seconds": seconds / 2, "loss": 4.8, "norm": 1.0}

    def end(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeTrainer]:
    monkeypatch.setattr(torch_step, "Trainer", FakeTrainer)
    monkeypatch.setattr(torch_step, "why_not", lambda who, task: None)
    seconds = {
        "ours": (1.0, 2.0, 4.0),
        "transformers": (2.0, 2.0, 8.0),
        "plain": (1.1, 1.8, 8.0),
        "liger": (1.7, 1.7, 20.0),
    }
    monkeypatch.setattr(FakeTrainer, "seconds", seconds, raising=False)
    monkeypatch.setattr(FakeTrainer, "broken", {}, raising=False)
    return FakeTrainer


def test_a_ratio_is_taken_turn_by_turn_and_the_best_peer_has_the_least_median(fake: type[FakeTrainer]) -> None:
    row = torch_step.measure(SHAPE, ARGUMENTS)
    # transformers 2, 1, 2; plain 1.1, 0.9, 2; liger 1.7, 0.85, 5
    assert row["ratios"] == pytest.approx({"transformers": 2.0, "plain": 1.1, "liger": 1.7})
    assert row["best"] == {"peer": "liger", "ratio": pytest.approx(1.7)}  # 1.7 s, the others 1.8 and 2
    assert list(row["trainers"]) == ["ours", "transformers", "liger", "plain"]
    ours = row["trainers"]["ours"]
    assert (ours["ms"], ours["host_ms"], ours["first_step_seconds"], ours["launches"]) == (2000, 1000, 9.0, 7)
    assert row["of_peak"] == pytest.approx(torch_step.flops({**SHAPE, "device": "cuda"}) / 2.0 / 1e12)
    assert row["memory_ratio"] == 1.0 and "best" in "\n".join(torch_step.lines_of(row))


def test_a_peer_that_fails_is_left_out_with_its_last_words(fake: type[FakeTrainer]) -> None:
    fake.broken = {"transformers": "OutOfMemoryError: 7 GiB"}
    row = torch_step.measure(SHAPE, ARGUMENTS)
    assert row["left_out"] == {"transformers": "OutOfMemoryError: 7 GiB"} and set(row["ratios"]) == {"plain", "liger"}
    fake.broken = {"ours": "RuntimeError: no kernel"}
    row = torch_step.measure(SHAPE, ARGUMENTS)
    assert "no kernel" in row["failed"] and "failed: " in torch_step.lines_of(row)[-1] and row["best"] is None


def test_on_a_small_device_each_peer_steps_with_ours_alone(
    fake: type[FakeTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[str]] = []
    warm_up = torch_step.warm_up

    def listed(trainers: dict[str, Any], *more: Any) -> Any:
        groups.append(list(trainers))
        return warm_up(trainers, *more)

    monkeypatch.setattr(torch_step, "warm_up", listed)
    wanted = torch_step.expected_bytes({**SHAPE, "device": "cuda"})
    fake.device_bytes = 4 * wanted
    torch_step.measure(SHAPE, ARGUMENTS)
    fake.device_bytes = 3 * wanted - 1
    row = torch_step.measure(SHAPE, ARGUMENTS)
    alone = [["ours", who] for who in ("transformers", "liger", "plain")]
    assert groups == [["ours", "transformers", "liger", "plain"], *alone]
    assert row["ratios"] == pytest.approx({"transformers": 2.0, "plain": 1.1, "liger": 1.7})


def test_what_a_trainer_takes_grows_with_weights_and_logits() -> None:
    small = torch_step.expected_bytes(SHAPE)
    more = {key: torch_step.expected_bytes({**SHAPE, key: 2 * SHAPE[key]}) - small for key in ("vocabulary", "batch")}
    assert more["vocabulary"] == 128 * 16 * (2 * 128 + 64)  # embedding and head, and 64 tokens' logits
    assert more["batch"] == 64 * (16 * 128 + 40 * 2 * 128)


@pytest.fixture(scope="module")
def real() -> float:
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "models" / "torch"))
        rate = torch_trainers.product_rate("fp32", "cpu", 0.01)
    assert rate is not None
    return rate


@pytest.mark.parametrize("library", [pytest.param("torch.mm", marks=pytest.mark.thorough), "model.onednn.product"])
def test_the_peak_is_that_of_the_faster_library(monkeypatch: pytest.MonkeyPatch, library: str, real: float) -> None:
    """A library that takes no time is the faster one."""
    monkeypatch.syspath_prepend(str(ROOT / "models" / "torch"))
    monkeypatch.setattr(library, lambda *arguments, **named: None)
    fast = torch_trainers.product_rate("fp32", "cpu", 0.01)
    assert fast is not None and fast > 100 * real > 0


def test_a_trainer_that_cannot_run_says_why() -> None:
    task = {**SHAPE, "device": "cpu"}
    assert "accelerators" in (torch_trainers.why_not("liger", task) or "") or "has no" in (
        torch_trainers.why_not("liger", task) or ""
    )
    assert torch_trainers.why_not("plain", task) is None
