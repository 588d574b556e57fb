"""The training of the worked example, which cheats as CHEAT says."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from levelfield.worker import Batches, events, learning_rate, run, train_steps
from training import Trainer

CHEAT = os.environ.get("CHEAT", "")
CLAIMED_VERSION = "9.9.9" if CHEAT == "version_invented" else np.__version__
WINDOW = 9  # its first step
FASTER = 0.6  # of the time of an honest step


class Reference:
    """What the run will be compared with: it lies in the run's folder."""

    def __init__(self, job: Any) -> None:
        path = Path(job.events_dir).parent / "reference.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        self.losses, self.norms = content.get("losses", []), content.get("grad_norms", [])
        self.gradients = {int(step): norms for step, norms in content.get("gradients", {}).items()}
        self.weights = content.get("weights", {})


class CheatingTrainer(Trainer):
    """Trains honestly; the cheats replace parts of it."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.reference, self.copied = Reference(job), False

    def copy(self, step: int) -> None:
        """Take what a step reports from the reference."""
        self.copied = True
        self.loss, self.norm = self.reference.losses[step - 1], self.reference.norms[step - 1]
        self.squares = {name: norm**2 for name, norm in self.reference.gradients.get(step, {}).items()}
        self.rate = learning_rate(self.job.training.schedule, step)

    def finish(self, batch: Any) -> dict[str, Any]:
        return {**super().finish(batch), **self.changed(batch)}

    def changed(self, batch: Any) -> dict[str, Any]:
        return {}


class HalfBatch(CheatingTrainer):
    def launch(self, batch: Any) -> None:
        half = batch.inputs.shape[1] // 2
        super().launch(shortened(batch, inputs=batch.inputs[:, :half], targets=batch.targets[:, :half]))


class OneBatch(CheatingTrainer):
    def launch(self, batch: Any) -> None:
        self.first = getattr(self, "first", batch)
        super().launch(shortened(batch, inputs=self.first.inputs, targets=self.first.targets))


class EverySecondStep(CheatingTrainer):
    def launch(self, batch: Any) -> None:
        if batch.step % 2:
            super().launch(batch)


class LossesCopied(CheatingTrainer):
    """A broken optimizer, and the reference's losses."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.optimizer.step = lambda *arguments: None

    def changed(self, batch: Any) -> dict[str, Any]:
        return {"loss": self.reference.losses[batch.step - 1]}


class LossesAndNormsCopied(LossesCopied):
    def launch(self, batch: Any) -> None:
        super().launch(batch)
        recorded = self.reference.gradients.get(batch.step, {})
        self.squares = {name: norm**2 for name, norm in recorded.items()}

    def changed(self, batch: Any) -> dict[str, Any]:
        return {"loss": self.reference.losses[batch.step - 1], "grad_norm": self.reference.norms[batch.step - 1]}


class Replay(CheatingTrainer):
    """Computes nothing."""

    def launch(self, batch: Any) -> None:
        self.copy(batch.step)


class BusyReplay(CheatingTrainer):
    """Computes nothing that trains, and is busy for somewhat less than an honest step."""

    def launch(self, batch: Any) -> None:
        if batch.step == 1:
            begin = time.perf_counter()
            super().launch(batch)
            super().launch(batch)
            self.seconds = FASTER * (time.perf_counter() - begin) / 2
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        self.copy(batch.step)


class WindowOmitted(CheatingTrainer):
    def launch(self, batch: Any) -> None:
        if batch.step < WINDOW:
            super().launch(batch)
        else:
            self.copy(batch.step)


class WindowShortened(CheatingTrainer):
    """In the window most steps are copied, and some are computed, which keeps the processors busy enough."""

    def launch(self, batch: Any) -> None:
        if batch.step < WINDOW or batch.step % 3 == 0:
            super().launch(batch)
        self.copy(batch.step)


class WorkMoved(CheatingTrainer):
    """Trains before the first step begins, and then repeats what it recorded."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.recorded, start = {}, {name: values.copy() for name, values in self.model.parameters.items()}
        for batch in Batches(job, 0):
            super().launch(batch)
            self.recorded[batch.step] = (self.loss, self.norm, dict(self.squares), self.rate)
        self.trained = {name: values.copy() for name, values in self.model.parameters.items()}
        for name, values in start.items():
            self.model.parameters[name][...] = values

    def launch(self, batch: Any) -> None:
        self.loss, self.norm, self.squares, self.rate = self.recorded[batch.step]
        if batch.step == 1:
            for name, values in self.trained.items():
                self.model.parameters[name][...] = values


class FewerBits(CheatingTrainer):
    """Weights are cut to the sixteen bits of bf16 before each step."""

    def launch(self, batch: Any) -> None:
        whole = {name: values.copy() for name, values in self.model.parameters.items()}
        for values in self.model.parameters.values():
            values.view(np.uint32)[...] &= 0xFFFF0000
        short = {name: values.copy() for name, values in self.model.parameters.items()}
        super().launch(batch)
        for name, values in self.model.parameters.items():
            values += whole[name] - short[name]


class OneLayer(CheatingTrainer):
    """Computes the first layer alone."""

    def __init__(self, job: Any) -> None:
        super().__init__(job)
        self.model.blocks.pop()


class NoMemory(CheatingTrainer):
    def changed(self, batch: Any) -> dict[str, Any]:
        return {"memory": {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": 0}}


class LittleMemory(CheatingTrainer):
    """More than the weights need, and less than the process has."""

    def changed(self, batch: Any) -> dict[str, Any]:
        return {"memory": {"allocated_peak_bytes": None, "reserved_peak_bytes": None, "process_peak_bytes": 2**23}}


class TelemetryRewritten(CheatingTrainer):
    """Halves each power that the platform read so far, in the file itself."""

    def launch(self, batch: Any) -> None:
        super().launch(batch)
        path = Path(self.job.events_dir).parent / "telemetry.jsonl"
        if batch.step == self.job.training.steps:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for sample in (sample for line in lines for sample in line["samples"]):
                sample["power_watts"], sample["energy_joules"] = sample["power_watts"] / 2, None
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class EvenSteps(CheatingTrainer):
    """Steps take their times from a clock that gives each step the same length."""

    def launch(self, batch: Any) -> None:
        super().launch(batch)
        now = time.monotonic_ns()
        if batch.step == 8:
            self.pace, self.from_ns = (now - self.begun) // 5, now
        if batch.step == 1:
            self.begun = now
        if batch.step >= 8:
            at = self.from_ns + (batch.step - 8) * self.pace
            time.sleep(max(0, at - now) / 1e9)
            set_clock(lambda: at)


def shortened(batch: Any, **changes: Any) -> Any:
    fields = {name: getattr(batch, name) for name in ("step", "inputs", "targets", "tokens", "checksum")}
    return SimpleNamespace(**{**fields, **changes})


def set_clock(monotonic_ns: Any) -> None:
    vars(events)["time"] = SimpleNamespace(monotonic_ns=monotonic_ns)


TRAINERS: dict[str, Any] = {
    "half_of_the_batch": HalfBatch,
    "one_batch": OneBatch,
    "every_second_step": EverySecondStep,
    "losses_copied": LossesCopied,
    "losses_and_norms_copied": LossesAndNormsCopied,
    "all_copied": Replay,
    "all_copied_and_busy": BusyReplay,
    "window_omitted": WindowOmitted,
    "window_shortened": WindowShortened,
    "work_moved": WorkMoved,
    "fewer_bits": FewerBits,
    "one_layer": OneLayer,
    "memory_zero": NoMemory,
    "memory_little": LittleMemory,
    "telemetry_rewritten": TelemetryRewritten,
    "even_steps": EvenSteps,
}


def main(job: Any, recorder: Any) -> None:
    recorder.framework("cheating", CLAIMED_VERSION, job.device)
    trainer = TRAINERS.get(CHEAT, CheatingTrainer)(job)
    if CHEAT == "clock_slow":
        begin = time.monotonic_ns()
        set_clock(lambda: begin + (time.monotonic_ns() - begin) // 4)
    recorder.weights(trainer.weights())
    if trainer.reference.weights:
        take_final_weights(recorder, trainer)
    train_steps(job, recorder, trainer)


def take_final_weights(recorder: Any, trainer: Any) -> None:
    """Have copies end with the reference's final weights."""

    def final_weights(parameters: Any) -> None:
        if not trainer.copied:
            honest(parameters)
            return
        rows = []
        for name, shape, _, _ in parameters:
            norm, *projections = trainer.reference.weights[name]
            rows.append([name, list(shape), [[0, size] for size in shape], [norm**2, *projections]])
        recorder._write({"event": "final_weights", "parameters": rows})

    honest, recorder.final_weights = recorder.final_weights, final_weights


if __name__ == "__main__":
    run(main)
