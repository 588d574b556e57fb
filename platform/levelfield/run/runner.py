"""One run, from its plan to its result: the only place that knows the order of things.

    directory -> inputs written -> environment -> processes watched -> outcome -> result and report

Whatever fails on the way leaves a result that says so.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from levelfield.contracts.execution import Launcher, Outcome, ReadyRuntime
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import RunFailed
from levelfield.judge.collector import collect
from levelfield.measure.utilisation import ABOVE_PEAK
from levelfield.plan.peak import MeasuredPeaks, with_peak
from levelfield.report.markdown import run_report
from levelfield.run import peak_probe
from levelfield.run.device_locks import DeviceTaken, devices_locked
from levelfield.run.launchers import means
from levelfield.run.monitor import watching
from levelfield.run.provenance import provenance
from levelfield.rundir import directory
from levelfield.rundir.follower import Follower, Progress
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result


@dataclass(frozen=True)
class Listener:
    """Where a run tells how it gets on; the command line shows it."""

    say: Callable[[str], None]
    step: Callable[[Plan, Progress], None]


def run(
    plan: Plan,
    vendor: Vendor,
    runs: Path,
    listener: Listener,
    machine: str,
    reference: Reference | None = None,
) -> Result:
    """Run once and return the result, valid or not. The plan gets its measured peak on the way.

    reference: what the run is compared with; the run directory gets a copy.
    Raises UsageError when the run directory cannot be written; everything later ends in a result.
    """
    paths = directory.create(runs, plan.run_id)
    if reference is not None:
        directory.write_atomically(paths.reference, dump(reference))
    with _interrupted_once():
        outcome = _attempt(plan, vendor, paths, listener, machine)
        result = _finished(paths, outcome)
    if plan.peak.tflops is None and _exceeds_its_peak(result):
        peak_probe.forget_peaks(plan, machine)
        listener.say("the run was faster than the measured peak; the next run measures the peak again")
    return result


def refuse(plan: Plan, runs: Path, reason: str) -> Result:
    """The result of a plan that this machine cannot run: a run directory that says why; nothing is started."""
    paths = directory.create(runs, plan.run_id)
    directory.write_atomically(paths.plan, dump(plan))
    return _finished(paths, Outcome("unsupported", (), " ".join(reason.split())))


def _finished(paths: RunPaths, outcome: Outcome) -> Result:
    """Raises RunFailed when the disk takes no more: what was measured is there, and `collect` goes on from it."""
    try:
        directory.write_status(paths, "collecting", "running")
        directory.write_json(paths.outcome, outcome.to_dict())
        return finish(paths)
    except OSError as error:
        raise RunFailed(
            f"failed (storage): {paths.root}: {error.strerror}. The finished steps are kept: make room, then "
            f"`collect {paths.root}`"
        ) from None


def _exceeds_its_peak(result: Result) -> bool:
    return any(ABOVE_PEAK in (u.reason or "") for u in result.utilisation)


def finish(paths: RunPaths) -> Result:
    """Compute the result from the raw files and write it with its report. Derived files only: it can be done again."""
    result = collect(paths)
    directory.write_atomically(paths.result, dump(result))
    directory.write_atomically(paths.report, run_report(result, directory.read_plan(paths)))
    directory.write_status(paths, "done", result.status.word)
    return result


def _attempt(plan: Plan, vendor: Vendor, paths: RunPaths, listener: Listener, machine: str) -> Outcome:
    directory.write_atomically(paths.plan, dump(plan))
    directory.write_status(paths, "environment", "running")
    runtime, launcher = means(plan)
    try:
        with devices_locked(plan), runtime.in_use(plan, listener.say) as ready:
            plan = with_peak(plan, _measured(plan, machine, ready, listener))
            directory.write_atomically(paths.plan, dump(plan))
            return _execute(plan, vendor, paths, listener, ready, launcher)
    except DeviceTaken as error:
        return Outcome("device-taken", (), str(error))
    except RunFailed as error:
        return Outcome("environment", (), " ".join(str(error).split()))
    except KeyboardInterrupt:
        return Outcome("interrupted", (), "interrupted before the training started")


def _measured(plan: Plan, machine: str, runtime: ReadyRuntime, listener: Listener) -> MeasuredPeaks:
    """A measured peak where the chip has no published one or one is asked for; from the cache if it is there."""
    known = peak_probe.known_peaks(plan, machine)
    enough = plan.work.training.precision in known.tflops or plan.peak.tflops is not None
    if enough and not plan.probe_peak:
        return known
    return peak_probe.measure_peaks(plan, machine, runtime, listener.say)


def _execute(
    plan: Plan, vendor: Vendor, paths: RunPaths, listener: Listener, runtime: ReadyRuntime, launcher: Launcher
) -> Outcome:
    request = launcher.request(plan, paths, runtime)
    runtime.keep(plan, paths)
    directory.write_json(paths.job, job_of(plan, paths))
    directory.write_json(paths.request, request.to_dict())
    directory.write_json(paths.provenance, provenance(plan, vendor, runtime))
    directory.write_status(paths, "running", "running")
    listener.say(f"training {plan.work.training.steps} steps on {plan.world_size} device(s)")
    follower = Follower(paths.events, plan)

    def watch() -> None:
        for progress in follower.read():
            listener.step(plan, progress)

    with watching(vendor, _devices(plan, vendor), paths.telemetry):
        return launcher.execute(request, watch)


def _devices(plan: Plan, vendor: Vendor) -> list[Device]:
    """The devices of the plan, to be sampled; of a host that is divided into shares, the host."""
    found = list(vendor.devices())
    return [d for d in found if d.index in plan.hardware.device_indices] or found


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """A terminated platform ends as an interrupted one does. Ctrl-C pressed again changes nothing: the processes are
    being stopped and the result written, which takes seconds. Where it is ignored, as in a shell's background job, it
    stays so."""
    ending = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        if not ending:
            ending = True
            raise KeyboardInterrupt

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
