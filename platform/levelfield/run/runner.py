"""Runs one plan up to its result. Only this module defines the order of the phases.

    directory -> inputs written -> environment -> processes watched -> outcome -> result and report

A failure in any phase gives a result with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.catalog.machine import devices_of
from levelfield.contracts.execution import Launcher, NodesNotReady, Outcome, ReadyRuntime, Watch
from levelfield.contracts.vendor import Device, Vendor
from levelfield.errors import CorpusError, DocumentError, RunFailed, UsageError
from levelfield.judge.collector import collect
from levelfield.node.left_ranks import own_ranks
from levelfield.plan.choices import choices_for
from levelfield.plan.peak import with_peak
from levelfield.report.one_run import run_report
from levelfield.run import peak_probe
from levelfield.run.code_watch import CodeWatch
from levelfield.run.corpus_watch import CorpusWatch
from levelfield.run.device_locks import DeviceInUse, DeviceLocks, devices_locked
from levelfield.run.input_watch import InputWatch
from levelfield.run.interruption import interrupted_once
from levelfield.run.launchers import means, speaking
from levelfield.run.preflight_run import preflight_in
from levelfield.run.provenance import provenance
from levelfield.run.telemetry import watching
from levelfield.rundir import directory
from levelfield.rundir.follower import Follower, Progress
from levelfield.rundir.node_readings import read_nodes, read_software
from levelfield.rundir.preflight_events import sentence_of
from levelfield.rundir.seal import sealed
from levelfield.specs.base import Document, dump
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_of
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a run. say: for a sentence. step: for a finished step.

    recorded: for the files of a run that has its result.
    """

    say: Callable[[str], None]
    step: Callable[[Plan, Progress], None]
    recorded: Callable[[RunPaths], None] = lambda paths: None


def run(
    plan: Plan,
    vendor: Vendor,
    runs: Path,
    listener: Listener,
    machine: str,
    reference: Reference | None = None,
    certificate: Certificate | None = None,
) -> Result:
    """Run once and return the result, valid or not. The stored plan gets the measured peak.

    reference: what the run is compared with. certificate: the one that the plan names. The run directory gets copies.
    Raises UsageError when the run directory cannot be written before the training; every later error gives a result.
    """
    directory.settle(runs)
    paths = directory.create(runs, plan.run_id)
    plan = plan.model_copy(update={"choices": choices_for(plan, reference)})
    copies = {paths.reference: reference, paths.certificate: certificate}
    with directory.ending(paths), interrupted_once():
        outcome = _attempt(plan, vendor, paths, listener, machine, copies)
        result = _finished(paths, outcome)
    if plan.peak.tflops is None and any(each.is_above_peak for each in result.utilisation):
        peak_probe.forget_peaks(plan, machine)
        listener.say("the run was faster than the measured peak: that peak is deleted, and the next run measures it")
    listener.recorded(paths)
    return result


def attach(paths: RunPaths, vendor: Vendor, listener: Listener) -> Result:
    """Watch a run whose platform was killed and that an engine goes on with, until its end. Return its result.

    The window as the platform saw it is not known. Raises UsageError for a run that no engine has.
    """
    directory.refuse_running(paths)
    if paths.outcome.exists():
        return finish(paths)
    plan = directory.read_plan(paths)
    if plan.run_id != paths.root.name:  # by its name another run's job would be found
        raise UsageError(
            f"{paths.plan}: key 'run_id': found {plan.run_id}, expected {paths.root.name}, the name of its folder; put "
            "the plan of this run back, or give the folder its name again"
        )
    runtime, launcher = means(plan)
    again = getattr(speaking(launcher, listener.say), "attach", None)
    if again is None:
        raise UsageError(
            f"{plan.run_id}: its launcher '{launcher.name}' leaves nothing to attach to; `evidence collect` it"
        )
    with directory.ending(paths), interrupted_once():
        corpus, follower = CorpusWatch(plan.corpus), Follower(paths.events, plan)
        request = launcher.request(plan, paths, runtime)
        directory.write_status(paths, "running", "running")
        outcome = again(request, _watch(plan, follower, listener))
        _read_nodes(plan, vendor, paths)
        result = _finished(paths, corpus.judged(CodeWatch(plan, paths).judged(outcome), listener.say))
    listener.recorded(paths)
    return result


def refuse(plan: Plan, runs: Path, reason: str, listener: Listener) -> Result:
    """Write a run directory with the reason why this machine cannot run the plan. Return its result."""
    paths = directory.create(runs, plan.run_id)
    with _written_before_training(paths):
        directory.write_atomically(paths.plan, dump(plan))
    result = _finished(paths, Outcome("unsupported", (), " ".join(reason.split())))
    listener.recorded(paths)
    return result


def _finished(paths: RunPaths, outcome: Outcome) -> Result:
    """Write the outcome and return the result. Raises RunFailed for a full disk; `evidence collect` continues later."""
    try:
        directory.write_status(paths, "collecting", "running")
        _keep_outcome(paths, outcome)
        paths.outcome_of_full_disk.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            paths.outcome_of_full_disk.replace(paths.outcome)  # needs no room
        raise RunFailed(
            f"failed (storage): {directory.write_error(error, paths.root)}. The finished steps are kept. "
            f"{directory.remedy(error)}, then run `evidence collect {paths.root}`"
        ) from None
    try:
        return finish(paths)
    except (OSError, DocumentError) as error:
        said = directory.write_error(error, paths.root) if isinstance(error, OSError) else error
        raise RunFailed(
            f"the run has ended and its raw files are kept, without a result: {said}. Mend that, then run "
            f"`evidence collect {paths.root}`"
        ) from None


def _keep_outcome(paths: RunPaths, outcome: Outcome) -> None:
    """Write the outcome with the seal over the raw files, in one step.

    An interrupt of the user's comes once (`interrupted_once`). It may fall into the reading of a long log, and the
    outcome is kept nevertheless.
    """
    try:
        directory.write_json(paths.outcome, sealed(paths, outcome.to_dict()))
    except KeyboardInterrupt:
        directory.write_json(paths.outcome, sealed(paths, outcome.to_dict()))
        raise


def finish(paths: RunPaths) -> Result:
    """Write result and report from the raw files. Return the result. A second call writes the same files."""
    result = collect(paths)
    directory.write_atomically(paths.result, dump(result))
    directory.write_atomically(paths.report, run_report(result, directory.read_plan(paths)))
    directory.write_status(paths, "done", result.status.word)
    return result


def _attempt(
    plan: Plan,
    vendor: Vendor,
    paths: RunPaths,
    listener: Listener,
    machine: str,
    copies: Mapping[Path, Document | None],
) -> Outcome:
    """copies: the documents that the run is judged by, and where they are written; None: there is none."""
    _write_inputs(plan, paths, copies)
    runtime, launcher = means(plan)
    try:
        with _locked_here(plan, listener.say) as locks, runtime.in_use(plan, listener.say) as ready:
            _before_training(plan, vendor, paths, listener, ready, launcher)
            plan = with_peak(plan, peak_probe.peaks_for(plan, machine, ready, listener.say))
            outcome = _execute(plan, vendor, paths, listener, ready, launcher, locks)
            locks.keep([end.process for end in outcome.ends if end.process is not None])
            return outcome
    except DeviceInUse as error:
        return Outcome("device-taken", (), str(error))
    except CorpusError as error:
        return Outcome("corpus", (), str(error))
    except PreflightFailed as error:
        return Outcome("preflight", (), str(error))
    except NodesNotReady as error:
        return Outcome(error.cause, (), " ".join(str(error).split()), nodes=error.nodes)
    except RunFailed as error:
        return Outcome("environment", (), " ".join(str(error).split()))
    except KeyboardInterrupt:
        return Outcome("interrupted", (), "interrupted before the training started")


def _write_inputs(plan: Plan, paths: RunPaths, copies: Mapping[Path, Document | None]) -> None:
    with _written_before_training(paths):
        for path, document in copies.items():
            if document is not None:
                directory.write_atomically(path, dump(document))
        directory.write_atomically(paths.plan, dump(plan))
        directory.write_status(paths, "environment", "running")


class PreflightFailed(RunFailed):
    """A rank or a node failed in the preflight. The training starts the same ranks on the same nodes."""


def _before_training(
    plan: Plan, vendor: Vendor, paths: RunPaths, listener: Listener, ready: ReadyRuntime, launcher: Launcher
) -> None:
    """Run the plan's preflight and write its report. Raises DeviceInUse for others where a quiet machine is asked for,
    PreflightFailed for a rank or a node that failed, and KeyboardInterrupt where the user interrupted it."""
    if plan.preflight is None:
        return
    report = preflight_in(plan, vendor, paths.root.parent, ready, launcher, listener.say)
    directory.write_atomically(paths.preflight, dump(report))
    if report.was_interrupted:
        raise KeyboardInterrupt
    if report.word == "failed":
        raise PreflightFailed(report.evidence or "nothing is known about it")
    listener.say(f"preflight: {sentence_of(report)}")
    for finding in report.findings:
        listener.say(finding.sentence)
    if plan.preflight.quiet and report.others:
        said = "; ".join(finding.sentence for finding in report.others)
        raise DeviceInUse(f"{said}; a quiet machine was asked for")


def _execute(
    plan: Plan,
    vendor: Vendor,
    paths: RunPaths,
    listener: Listener,
    runtime: ReadyRuntime,
    launcher: Launcher,
    locks: DeviceLocks,
) -> Outcome:
    request = launcher.request(plan, paths, runtime)
    with _written_before_training(paths):
        directory.write_atomically(paths.plan, dump(plan))
        runtime.keep(plan, paths)
        directory.write_json(paths.job, job_of(plan, paths))
        directory.write_json(paths.request, request.to_dict())
        directory.write_json(paths.provenance, provenance(plan, vendor, runtime))
        directory.write_json(paths.outcome_of_full_disk, Outcome("storage", (), "the disk was full").to_dict())
        directory.write_status(paths, "running", "running")
        inputs = InputWatch(paths)
    corpus, code = CorpusWatch(plan.corpus), CodeWatch(plan, paths)
    if refused := code.refusal():
        return refused
    listener.say(f"training {plan.work.training.steps} steps on {plan.world_size} device(s)")
    follower = Follower(paths.events, plan)
    try:
        with _sampled_here(plan, vendor, paths):
            watch = _keeping(locks, _watch(plan, follower, listener))
            outcome = speaking(launcher, listener.say).execute(request, watch)
        outcome = inputs.judged(outcome)
    except OSError as error:
        outcome = Outcome("storage", (), directory.write_error(error, paths.root))
    _read_nodes(plan, vendor, paths)
    return corpus.judged(code.judged(replace(outcome, seen=_seen(plan, follower))), listener.say)


def _read_nodes(plan: Plan, vendor: Vendor, paths: RunPaths) -> None:
    """Read what the nodes recorded. On a full disk that stays, and the result says which node was not read."""
    with suppress(OSError):
        read_nodes(paths, plan, vendor)
        read_software(paths, plan, vendor)


def _keeping(locks: DeviceLocks, watch: Watch) -> Watch:
    """Return the same watch, which at its first call names the ranks in the locks: this process may be killed."""
    is_kept = False

    def watching_and_keeping() -> None:
        nonlocal is_kept
        if not is_kept:
            is_kept = True
            locks.keep(own_ranks())
        watch()

    return watching_and_keeping


def _watch(plan: Plan, follower: Follower, listener: Listener) -> Watch:
    """Return what a launcher calls again and again: it passes finished steps to the listener."""

    def watch() -> None:
        for progress in follower.read():
            listener.step(plan, progress)

    return watch


def _seen(plan: Plan, follower: Follower) -> dict[str, dict[str, tuple[int, int]]]:
    """Return when the window's ends arrived. A file server or a connection may deliver an event much later: nothing."""
    return {} if plan.launch else follower.seen


def _locked_here(plan: Plan, say: Callable[[str], None]) -> AbstractContextManager[DeviceLocks]:
    """Lock the devices of this machine. Where a launcher reaches other nodes, each node locks its own."""
    return nullcontext(DeviceLocks(())) if plan.launch else devices_locked(plan, say)


def _sampled_here(plan: Plan, vendor: Vendor, paths: RunPaths) -> AbstractContextManager[None]:
    """Sample the devices of this machine. Where a launcher reaches other nodes, each node samples its own."""
    if plan.launch:
        return nullcontext()
    return watching(vendor, _devices(plan, vendor), paths.telemetry, are_children=plan.runtime != "docker")


@contextmanager
def _written_before_training(paths: RunPaths) -> Iterator[None]:
    """Raises UsageError where the block cannot write, for example on a full disk: nothing was trained by then."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"not-run: {directory.write_error(error, paths.root)}. Nothing was trained. "
            f"{directory.remedy(error)}, or name another folder with --runs"
        ) from None


def _devices(plan: Plan, vendor: Vendor) -> list[Device]:
    """Return the devices to sample: those of the plan, or the host where it is divided into shares.

    A device that the tool no longer shows is sampled as well: its samples then hold the reasons.
    """
    found, hardware = {device.index: device for device in devices_of(vendor)}, plan.hardware
    lost = (hardware.chip.name, hardware.description, hardware.memory_bytes_per_device)
    return [found.get(index) or Device(index, *lost) for index in hardware.device_indices] or list(found.values())
