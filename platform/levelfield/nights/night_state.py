"""The state of one nightly: what was planned, done and left out. It is written before and after each run.

A nightly that was killed continues from it: a run that has ended is not made again.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from levelfield.errors import DocumentError, UsageError
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import Document, Value, dump, load

NIGHTS_REMEMBERED = 10
Progress = Literal["waiting", "started", "done", "left out"]


class NightEntry(Value):
    """One entry of the suite. seconds: expected or, once done, measured. reason: why it was left out, or not valid."""

    name: str
    series: str | None = None
    state: Progress = "waiting"
    run_id: str | None = None
    seconds: float | None = None
    reason: str | None = None


class PairRun(Value):
    """One run of a confirmation. arm: `a` is the accepted build, `b` tonight's."""

    series: str
    arm: Literal["a", "b"]
    run_id: str


class NightState(Document):
    """A nightly of one suite. began: UTC, ISO 8601. used_seconds: of the budget, by earlier starts."""

    KIND: ClassVar[str] = "night"

    night: str
    suite: str
    began: str
    used_seconds: float = 0.0
    entries: tuple[NightEntry, ...]
    confirmations: tuple[PairRun, ...] = Field(default=())

    def with_entry(self, name: str, **change: object) -> NightState:
        """Return the state with changed fields of one entry."""
        entries = tuple(e.model_copy(update=change) if e.name == name else e for e in self.entries)
        return self.model_copy(update={"entries": entries})

    def with_confirmation(self, run: PairRun) -> NightState:
        """Return the state with one more run of a confirmation."""
        return self.model_copy(update={"confirmations": (*self.confirmations, run)})


def state_path(runs: Path, night: str, suite: str) -> Path:
    """Return the file of a nightly's state, beside its runs."""
    return runs / f"nightly_{suite}_{night}.json"


def read_state(path: Path) -> NightState | None:
    """Return the state; None without a file. Raises UsageError for a damaged one, which names what to do."""
    if not path.exists():
        return None
    try:
        return load(NightState, path)
    except DocumentError as error:
        raise UsageError(f"{error}\nremove {path} to begin this night again; its finished runs are kept") from None


def write_state(path: Path, state: NightState) -> None:
    """Replace the state in one step. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump(state))


def durations(runs: Path, suite: str) -> dict[str, list[float]]:
    """Return the seconds of each entry's runs in the newest nights of the suite. A damaged state counts for nothing."""
    found: dict[str, list[float]] = {}
    for path in sorted(runs.glob(f"nightly_{suite}_*.json"))[-NIGHTS_REMEMBERED:]:
        with suppress(DocumentError):
            for entry in load(NightState, path).entries:
                if entry.state == "done" and entry.seconds:
                    found.setdefault(entry.name, []).append(entry.seconds)
    return found
