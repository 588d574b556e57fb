"""Further steps after a training, every second one recorded by the framework's own profiler, for `--explain-step`.

A rank is then started as `python -m levelfield.worker.step_profile TRAIN.PY`. The steps follow the final weights. So no
figure of the run changes, and an ordinary training has none of this code. A framework takes part by a module
`step_profile` beside its train.py.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import importlib
import runpy
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterable, Iterator, Protocol

from .batches import Batch, Batches
from .events import Recorder
from .faults import JobError, StorageError
from .job import ExplainedSteps, Job, coordinates
from .loop import Trainer

STEP, PROFILE, ALONE = "profiled_step", "step_profile", "step_alone"  # the names of the events
WARM_UP = 1  # pairs of steps that nobody counts: a profiler's first start is slow


class StepProfile(Protocol):
    """What the module `step_profile` of a framework returns from `open_profile(job, trainer, scratch)`.

    scratch: an empty folder for files on the way, which is removed afterwards. profiler: its name and version. It may
    have a method `alone(step)`, which runs one step more and returns what its operations take alone (models/torch).
    """

    profiler: str

    def align(self) -> None:
        """Wait until the device is idle and every rank is here."""

    def recording(self, number: int) -> ContextManager[Any]:
        """Record one step while the context lasts, and keep it under `number`. It adds nothing to other steps."""

    def span(self, name: str) -> ContextManager[Any]:
        """Write into the record what the host does while the context lasts."""

    def traces(self) -> Iterator[tuple[int, Iterable[bytes]]]:
        """Yield each recorded step: its number, and its record in Chrome's trace format, in one part or many."""


def run_script(path: str) -> None:
    """Run a framework's train.py as a program. When its training has ended, the further steps follow."""
    loop = importlib.import_module("levelfield.worker.loop")  # `from . import` would ask `interface` for the name
    train = loop.train_steps

    def train_steps(job: Job, recorder: Recorder, trainer: Trainer) -> None:
        train(job, recorder, trainer)
        profile_steps(job, recorder, trainer)

    loop.train_steps = train_steps  # type: ignore[attr-defined]  # before `interface` has the name
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def profile_steps(job: Job, recorder: Recorder, trainer: Trainer) -> None:
    """Run the further steps and write their records. An error is recorded, and the training counts nevertheless."""
    name, request = PROFILE, job.explain_step
    if request is None:
        raise JobError("key 'explain_step': missing; a rank whose steps are recorded needs it")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            profile = importlib.import_module("step_profile").open_profile(job, trainer, Path(scratch))
            _suspend_choices(job.training.steps)
            last = _run_steps(job, recorder, trainer, profile, WARM_UP + request.steps)
            recorder.measured(name, {**_saved(request, job.rank, profile), "profiler": profile.profiler})
            name, alone = ALONE, getattr(profile, "alone", None)
            if alone is not None:
                recorder.measured(name, alone(last))
    except StorageError:
        raise
    except Exception as error:
        recorder.measured(name, {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _run_steps(job: Job, recorder: Recorder, trainer: Trainer, profile: StepProfile, pairs: int) -> Callable[[], Any]:
    """Run pairs of steps, the second of each recorded. They go on with the data and the numbers of the training. Return
    what runs one step more."""
    batches = Batches(job, coordinates(job).data)
    batch = batches.batch(job.training.steps + 1)
    for number in range(2 * pairs):
        profile.align()
        if number % 2:
            with profile.recording(number // 2), _collections(profile):
                upcoming, ends = _step(batches, batch, trainer, profile)
        else:
            upcoming, ends = _step(batches, batch, trainer, None)
        facts = {"number": number // 2, "recorded": bool(number % 2), "counted": number // 2 >= WARM_UP}
        recorder.measured(STEP, {**facts, "begin_ns": ends[0], "end_ns": ends[1]})
        batch = upcoming
    return lambda: _step(batches, batch, trainer, None)


def _step(batches: Batches, batch: Batch, trainer: Trainer, profile: StepProfile | None) -> tuple[Batch, list[int]]:
    """Run one step as the training's loop does. Return the next batch, and when the step began and ended."""
    begin = time.monotonic_ns()
    with _span(profile, "step"):
        with _span(profile, "launch"):
            trainer.launch(batch)
        with _span(profile, "input"):
            upcoming = batches.batch(batch.step + 1)
        with _span(profile, "finish"):
            trainer.finish(batch)
    return upcoming, [begin, time.monotonic_ns()]


def _saved(request: ExplainedSteps, rank: int, profile: StepProfile) -> dict[str, Any]:
    """Write each record to <folder>/rank<rank>.step<number>.json.gz. Return `files`, the sha256 of each by name, and
    `left_out`, those that were too large."""
    folder, files, left_out = Path(request.folder), {}, []
    folder.mkdir(parents=True, exist_ok=True)
    for number, parts in profile.traces():
        path = folder / f"rank{rank}.step{number}.json.gz"
        with gzip.open(path, "wb", compresslevel=3) as target:
            target.writelines(parts)
        if path.stat().st_size > request.most_bytes:
            path.unlink()
            left_out.append(path.name)
        else:
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"files": files, "left_out": left_out}


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """While the context lasts, an attribute of an object, a class or a module has another value."""
    had, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original) if had else delattr(owner, name)


@contextmanager
def _span(profile: StepProfile | None, name: str) -> Iterator[None]:
    if profile is None:
        yield
    else:
        with profile.span(name):
            yield


@contextmanager
def _collections(profile: StepProfile) -> Iterator[None]:
    """While the context lasts, write into the record when Python collects garbage."""
    open_spans = []

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            span = profile.span("garbage collection")
            span.__enter__()
            open_spans.append(span)
        elif open_spans:
            open_spans.pop().__exit__(None, None, None)

    gc.callbacks.append(seen)
    try:
        yield
    finally:
        gc.callbacks.remove(seen)


def _suspend_choices(last: int) -> None:
    """Have a mixture record no further choices, and follow the known ones of the training's last step where it does."""
    choices = sys.modules.get("levelfield.worker.choices")
    if choices is not None:
        record: Any = choices.ChoiceRecord
        follow = record.known
        record.known = lambda self, step, layer: follow(self, min(step, last), layer)
        record.compared = record.chosen = lambda *_args, **_options: None


if __name__ == "__main__":
    # not this copy of the module, which no import would find: what a rank imported is listed by its modules' names
    importlib.import_module("levelfield.worker.step_profile").run_script(sys.argv[1])
