"""The training loop: what is recorded of a step, and when, with a trainer that runs ahead and with one that waits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from levelfield.worker import Recorder, loop
from levelfield.worker.batches import Batch
from worker_jobs import make_job

STEPS, DEVICE_MS, LAUNCH_MS, RECORD_MS = 8, 100, 10, 5


class SimulatedTrainer:
    """A device works through what is launched, one step after another, while the host's clock goes on."""

    def __init__(self, runs_ahead: bool) -> None:
        self.runs_ahead = runs_ahead
        self.host, self.idle = 0, 0
        self.ends: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []

    def launch(self, batch: Batch) -> None:
        self.calls.append(("launch", batch.step))
        before = max(self.ends.values(), default=0)
        self.host += LAUNCH_MS  # the first kernel arrives at once
        self.idle += max(0, self.host - before)
        self.ends[batch.step] = max(before, self.host) + DEVICE_MS

    def gradient_squares(self) -> list[tuple[str, float]]:
        self.calls.append(("squares", max(self.ends)))
        return [("weight", float(max(self.ends)))]

    def finish(self, batch: Batch) -> dict[str, Any]:
        self.calls.append(("finish", batch.step))
        self.host = max(self.host, self.ends[batch.step])
        return {"skipped": False, "loss": float(batch.step)}

    def weights(self) -> list[Any]:
        return []

    def expert_tokens(self) -> list[Any]:
        return []

    def save(self, folder: str) -> None: ...


class MemoryRecorder(Recorder):
    """A recorder that writes no file."""

    def __init__(self, trainer: SimulatedTrainer) -> None:
        self.trainer = trainer
        self.times: dict[int, int] = {}
        self.losses: dict[int, float] = {}
        self.squares: dict[int, dict[str, float]] = {}

    def begin(self) -> None: ...

    def step(self, step: int, **facts: Any) -> None:
        self.times[step], self.losses[step] = self.trainer.host, facts["loss"]
        self.trainer.host += RECORD_MS

    def gradients(self, step: int, squares: Iterable[tuple[str, float]]) -> None:
        self.squares[step] = dict(squares)

    def final_weights(self, parameters: Iterable[Any]) -> None: ...


def train(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs_ahead: bool,
    trainer_class: type[SimulatedTrainer] = SimulatedTrainer,
    **evidence: Any,
) -> tuple[SimulatedTrainer, MemoryRecorder]:
    batches = [SimpleNamespace(step=step) for step in range(1, STEPS + 1)]
    monkeypatch.setattr(loop, "Batches", lambda job, rank: batches)
    monkeypatch.setattr(loop, "coordinates", lambda job: SimpleNamespace(data=0))
    trainer = trainer_class(runs_ahead)
    recorder = MemoryRecorder(trainer)
    loop.train_steps(make_job(folder, training={"steps": STEPS}, **evidence), recorder, trainer)
    return trainer, recorder


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_step_is_recorded_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_ahead: bool) -> None:
    trainer, recorder = train(tmp_path, monkeypatch, runs_ahead)
    assert recorder.times == trainer.ends
    assert recorder.losses == {step: float(step) for step in range(1, STEPS + 1)}


def test_the_device_waits_for_the_host_only_around_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, _ = train(tmp_path, monkeypatch, runs_ahead=False)
    ahead, _ = train(tmp_path, monkeypatch, runs_ahead=True)
    assert waiting.idle == LAUNCH_MS + (STEPS - 1) * (LAUNCH_MS + RECORD_MS)
    assert ahead.idle == LAUNCH_MS + (LAUNCH_MS + RECORD_MS)


def test_a_trainer_that_waits_for_all_that_is_launched_shows_in_the_recorded_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(SimulatedTrainer):
        def finish(self, batch: Batch) -> dict[str, Any]:
            self.host = max(self.host, *self.ends.values())
            return super().finish(batch)

    trainer, recorder = train(tmp_path, monkeypatch, True, Waiting)
    assert recorder.times != trainer.ends


@pytest.mark.parametrize("evidence", [{"gradient_steps": [4]}, {"capture": {"step": 4, "folder": "unused"}}])
def test_a_step_with_evidence_ends_before_the_next_one_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: dict[str, Any]
) -> None:
    monkeypatch.setattr(loop, "_create_folder", str)
    trainer, recorder = train(tmp_path, monkeypatch, True, **evidence)
    order = [call for call in trainer.calls if call[1] in (4, 5) and call[0] != "squares"]
    assert order == [("launch", 4), ("finish", 4), ("launch", 5), ("finish", 5)]
    assert recorder.squares == ({4: {"weight": 4.0}} if evidence.get("gradient_steps") else {})
    assert recorder.times == trainer.ends
