"""Draws the step of the window that a rank of this node samples (worker/spot_check.py), and tells that rank of it."""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Sequence

from levelfield.node.regular_files import read_last, read_regular

TOLD = "rank{rank}.spot_check"  # below the events: the seed of what is sampled
_STEP = re.compile(rb'"event":"step","step":(\d{1,9})\b')
_LAST_BYTES = 2**12  # of a rank's events: a step is the last line that it writes of itself


class StepDraw:
    """The draw of one node. No file and no other process has it before the rank is told.

    A rank that is told samples its next two steps. The first rank of a node that is not told in time samples the
    window's last step.
    """

    def __init__(self, events: Path) -> None:
        self._events, self._random = events, random.SystemRandom()
        self._is_done, self._rank = False, None  # type: bool, int | None
        self._before = 0  # the rank is told after this step

    def look(self, ranks: Sequence[int]) -> None:
        """Tell the drawn rank as soon as the step before the drawn one is finished. ranks: those that run here."""
        if self._is_done or not ranks:
            return
        if self._rank is None:
            job = self._job()
            if job is None:
                return
            self._is_done = not job.get("spot_check") or not job.get("window")
            if self._is_done:
                return
            window = job["window"]
            first = window["first_step"]
            self._before = self._random.randint(first - 1, max(first, window["last_step"] - 1) - 1)
            self._rank = self._random.choice(ranks)
        with suppress(OSError):  # not there yet
            steps = _STEP.findall(read_last(self._events / f"rank{self._rank}.jsonl", _LAST_BYTES))
            if steps and int(steps[-1]) >= self._before:
                self._is_done = True
                part = self._events / f"{TOLD.format(rank=self._rank)}.part"
                part.write_text(os.urandom(16).hex(), encoding="ascii")
                part.replace(self._events / TOLD.format(rank=self._rank))

    def _job(self) -> dict[str, Any] | None:
        """Return the job of the ranks; None as long as it cannot be read."""
        try:
            job = json.loads(read_regular(self._events.parent / "job.json", "job"))
        except (OSError, ValueError):
            return None
        return job if isinstance(job, dict) else {}
