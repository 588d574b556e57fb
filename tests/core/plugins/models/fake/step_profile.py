"""Recorded steps of the training that pretends: its sleep is the mlp of a layer."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from levelfield.worker.step_profile import replaced

if TYPE_CHECKING:
    from levelfield.worker import Batch
    from levelfield.worker.job import Job
    from levelfield.worker.loop import Trainer


def open_profile(job: Job, trainer: Trainer, scratch: str) -> Profile:
    return Profile(trainer)


class Profile:
    profiler = "a clock"

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.steps: list[tuple[int, list[dict[str, Any]]]] = []
        self.events: list[dict[str, Any]] = []

    def align(self) -> None:
        pass

    @contextlib.contextmanager
    def recording(self, number: int) -> Iterator[None]:
        original, self.events = self.trainer.launch, []

        def launch(batch: Batch) -> None:
            with self.span("mlp/layers.0.mlp"), self.event("fake::sleep"):
                original(batch)

        with replaced(self.trainer, "launch", launch):
            yield
        self.steps.append((number, self.events))

    def span(self, name: str) -> AbstractContextManager[None]:
        return self.event(f"lf/{name}")

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        at, ms = begin * 1e6, (time.perf_counter() - begin) * 1e6
        self.events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": ms, "tid": 1})

    def traces(self) -> Iterator[tuple[int, list[bytes]]]:
        for number, events in self.steps:
            yield number, [json.dumps({"traceEvents": events}).encode()]
