"""The progress of a running training, read from its events while they grow."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from levelfield.node.regular_files import open_regular
from levelfield.rundir.event_lines import DAMAGE_ERRORS, JsonObject, parse_object, truncated_number
from levelfield.specs.plan import Plan

_MAX_READ_BYTES = 2**26  # bytes of a rank's events in one look; the next look goes on from there
_SPEED_STEPS = 10  # steps over which the speed is shown


@dataclass(frozen=True)
class StepProgress:
    """One finished step."""

    step: int
    steps: int  # of the whole training
    loss: float | None
    tokens_per_second_per_device: float | None  # over the recent steps, only for the display
    memory_bytes: int | None
    seconds_left: float | None


class Follower:
    """Follows the events of a run's ranks, and keeps the newest values of each step.

    Of a run that a launcher starts it follows the first and the last rank alone: thousands of files may grow on a file
    server. Both record the loss in every layout.
    """

    def __init__(self, events: Path, plan: Plan) -> None:
        self._plan, ranks = plan, range(plan.world_size)
        self._files = [events / f"rank{rank}.jsonl" for rank in ({0, ranks[-1]} if plan.launch else ranks)]
        self._offsets: dict[Path, int] = {}
        self._ends: dict[int, int] = {}
        self._losses: dict[int, float] = {}
        self._memory: int | None = None
        window = plan.work.window
        self._bounds = {window.first_step - 1: "begin", window.last_step: "end"}
        self._last_look_ns = time.monotonic_ns()
        self.seen: dict[str, dict[str, tuple[int, int]]] = {}

    def read(self) -> list[StepProgress]:
        """Return the steps that finished since the last call, in order.

        `seen` then has, by rank, when the two ends of the window arrived: between the last look before that had not
        shown them and the one that did, on this process's monotonic clock.
        """
        last_step, looking_ns = max(self._ends, default=-1), time.monotonic_ns()
        for path in self._files:
            offset, lines, newline = self._offsets.get(path, 0), b"", b""
            with suppress(FileNotFoundError), open_regular(path) as file:
                file.seek(offset)
                lines, newline, _ = file.read(_MAX_READ_BYTES).rpartition(b"\n")
            if newline:
                self._offsets[path] = offset + len(lines) + 1
                for line in lines.split(b"\n"):
                    with suppress(ValueError):
                        self._store(parse_object(line), path)
        self._last_look_ns = looking_ns
        training, ends, finished = self._plan.work.training, self._ends, []
        for step in sorted(step for step in ends if step > max(last_step, 0)):
            first, rate, seconds_left = max(0, step - _SPEED_STEPS), None, None
            if first in ends and step > first and ends[step] > ends[first]:
                seconds = (ends[step] - ends[first]) / 1e9 / (step - first)
                rate = training.tokens_per_step / seconds / self._plan.world_size
                seconds_left = seconds * (training.steps - step)
            finished.append(
                StepProgress(step, training.steps, self._losses.get(step), rate, self._memory, seconds_left)
            )
        return finished

    def _store(self, event: JsonObject, path: Path) -> None:
        """Keep what an event shows. A damaged one shows nothing; the collector reports it."""
        with suppress(*DAMAGE_ERRORS):
            if event.get("event") == "begin" and path.stem == "rank0":
                self._ends[0] = truncated_number(event["end_ns"])
            if event.get("event") != "step":
                return
            step = truncated_number(event["step"])
            if bound := self._bounds.get(step):
                sighting = (self._last_look_ns, time.monotonic_ns())
                self.seen.setdefault(path.stem.removeprefix("rank"), {}).setdefault(bound, sighting)
            if path.stem == "rank0":
                self._ends[step] = truncated_number(event["end_ns"])
            if isinstance(event.get("loss"), float):
                self._losses[step] = event["loss"]
            for name in ("process_peak_bytes", "reserved_peak_bytes"):
                if peak := (event.get("memory") or {}).get(name):
                    self._memory = max(self._memory or 0, truncated_number(peak))
