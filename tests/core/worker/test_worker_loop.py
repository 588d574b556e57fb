"""The training loop: what is recorded of a step, and when, with a trainer that runs ahead and with one that waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.worker import loop

STEPS, DEVICE_MS, LAUNCH_MS, RECORD_MS = 8, 100, 10, 5


class SimulatedTrainer:
    """A device works through what is launched, one step after another, while the host's clock goes on."""

    def __init__(self, runs_ahead: bool) -> None:
        self.runs_ahead = runs_ahead
        self.host, self.idle, self.ends, self.calls = 0, 0, {}, []

    def launch(self, batch: SimpleNamespace) -> None:
        self.calls.append(("launch", batch.step))
        before = max(self.ends.values(), default=0)
        self.host += LAUNCH_MS  # the first kernel arrives at once
        self.idle += max(0, self.host - before)
        self.ends[batch.step] = max(before, self.host) + DEVICE_MS

    def gradient_squares(self) -> list[tuple[str, float]]:
        self.calls.append(("squares", max(self.ends)))
        return [("weight", float(max(self.ends)))]

    def finish(self, batch: SimpleNamespace) -> dict[str, Any]:
        self.calls.append(("finish", batch.step))
        self.host = max(self.host, self.ends[batch.step])
        return {"skipped": False, "loss": float(batch.step)}

    def weights(self) -> list[Any]:
        return []


class Recorder:
    def __init__(self, trainer: SimulatedTrainer) -> None:
        self.trainer, self.times, self.losses, self.squares = trainer, {}, {}, {}

    def begin(self) -> None: ...

    def step(self, step: int, **facts: Any) -> None:
        self.times[step], self.losses[step] = self.trainer.host, facts["loss"]
        self.trainer.host += RECORD_MS

    def gradients(self, step: int, squares: list[tuple[str, float]]) -> None:
        self.squares[step] = dict(squares)

    def final_weights(self, weights: list[Any]) -> None: ...


def trained(
    monkeypatch: pytest.MonkeyPatch, runs_ahead: bool, trainer_class: type = SimulatedTrainer, **job: Any
) -> tuple[SimulatedTrainer, Recorder]:
    batches = [SimpleNamespace(step=step) for step in range(1, STEPS + 1)]
    monkeypatch.setattr(loop, "Batches", lambda job, rank: batches)
    monkeypatch.setattr(loop, "coordinates", lambda job: SimpleNamespace(data=0))
    model, training = SimpleNamespace(experts=None), SimpleNamespace(steps=STEPS)
    settings = {"gradient_steps": [], "capture": None, "save_weights_dir": None, "model": model, "training": training}
    trainer = trainer_class(runs_ahead)
    recorder = Recorder(trainer)
    loop.train_steps(SimpleNamespace(**{**settings, **job}), recorder, trainer)
    return trainer, recorder


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_step_is_recorded_when_it_ends(monkeypatch: pytest.MonkeyPatch, runs_ahead: bool):
    trainer, recorder = trained(monkeypatch, runs_ahead)
    assert recorder.times == trainer.ends
    assert recorder.losses == {step: float(step) for step in range(1, STEPS + 1)}


def test_the_device_waits_for_the_host_only_around_the_first_step(monkeypatch: pytest.MonkeyPatch):
    waiting, _ = trained(monkeypatch, runs_ahead=False)
    ahead, _ = trained(monkeypatch, runs_ahead=True)
    assert waiting.idle == LAUNCH_MS + (STEPS - 1) * (LAUNCH_MS + RECORD_MS)
    assert ahead.idle == LAUNCH_MS + (LAUNCH_MS + RECORD_MS)


def test_a_trainer_that_waits_for_all_that_is_launched_shows_in_the_recorded_times(monkeypatch: pytest.MonkeyPatch):
    class Waiting(SimulatedTrainer):
        def finish(self, batch: SimpleNamespace) -> dict[str, Any]:
            self.host = max(self.host, *self.ends.values())
            return super().finish(batch)

    trainer, recorder = trained(monkeypatch, True, Waiting)
    assert recorder.times != trainer.ends


@pytest.mark.parametrize("evidence", [{"gradient_steps": [4]}, {"capture": SimpleNamespace(step=4, folder="unused")}])
def test_a_step_with_evidence_ends_before_the_next_one_is_launched(
    monkeypatch: pytest.MonkeyPatch, evidence: dict[str, Any]
):
    monkeypatch.setattr(SimulatedTrainer, "save", lambda self, folder: None, raising=False)
    monkeypatch.setattr(loop, "_create_folder", str)
    trainer, recorder = trained(monkeypatch, True, **evidence)
    order = [call for call in trainer.calls if call[1] in (4, 5) and call[0] != "squares"]
    assert order == [("launch", 4), ("finish", 4), ("launch", 5), ("finish", 5)]
    assert recorder.squares == ({4: {"weight": 4.0}} if evidence.get("gradient_steps") else {})
    assert recorder.times == trainer.ends
