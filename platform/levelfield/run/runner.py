"""Runs one plan up to its result. Only this module defines the order of the phases.

    directory -> inputs written -> environment -> features before -> processes watched -> outcome -> result and report
    -> features after

A failure in any phase gives a result with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.contracts.execution import Launcher, NodesNotReady, Outcome, ReadyRuntime, Request, Watch
from levelfield.contracts.phases import PreparedRun, RunFeature
from levelfield.contracts.vendor import Vendor
from levelfield.errors import (
    CorpusError,
    DocumentError,
    RunFailed,
    UsageError,
    write_failure_remedy,
    write_failure_text,
)
from levelfield.explain.explanation import Explanation
from levelfield.judge.collector import collect
from levelfield.judge.node_figures import use_by_others
from levelfield.measure.other_use import HOST_LIMIT, use_beyond_limits
from levelfield.node.device_files import DeviceInUse, DeviceLocks
from levelfield.node.process_identity import end_leftover_ranks, live_rank_processes
from levelfield.plan.peak import set_measured_peak
from levelfield.plan.resolution import routing_choices_for
from levelfield.preflight.preflight_run import Preflight, failed_preflight, run_preflight
from levelfield.report.one_run import run_report
from levelfield.run import measurement
from levelfield.run.input_watch import CodeWatch, CorpusWatch, InputWatch
from levelfield.run.interruption import interrupt_once, leave_at_interrupt, was_interrupted
from levelfield.run.launchers import bind_say, runtime_and_launcher
from levelfield.run.launchers.node_records import node_remarks
from levelfield.run.node_power import sample_node_power
from levelfield.run.provenance import collect_provenance
from levelfield.run.run_devices import lock_devices, sample_devices
from levelfield.rundir import directory, run_state
from levelfield.rundir.detached_calls import add_run
from levelfield.rundir.follower import Follower, StepProgress
from levelfield.rundir.node_parts import node_parts
from levelfield.rundir.node_readings import write_node_readings, write_node_software
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.seal import add_seal
from levelfield.specs.base import Document, dump
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan, job_content
from levelfield.specs.preflight_report import PreflightReport
from levelfield.specs.reference import Reference
from levelfield.specs.result import DISTURBED, Result

FEATURES: tuple[RunFeature, ...] = (Preflight(), Explanation())


@dataclass(frozen=True)
class Listener:
    """Callbacks for the progress of a run."""

    say: Callable[[str], None]  # called with a sentence for the user
    report_step: Callable[[Plan, StepProgress], None]  # called for each finished step
    record_run: Callable[[RunPaths], None] = lambda paths: None  # called with the files of a run that has its result


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

    machine: this machine's name, by which peaks are stored. reference: what the run is compared with. certificate: the
    one that the plan names. The run directory gets copies of both.
    Raises UsageError when the run directory cannot be written before the training; every later error gives a result.
    """
    directory.correct_stale_statuses(runs)
    paths = directory.create_run(runs, plan.run_id, plan.save_weights)
    add_run(plan.run_id)
    plan = plan.model_copy(update={"choices": routing_choices_for(plan, reference)})
    copies = {paths.reference: reference, paths.certificate: certificate}
    with directory.status_ended_on_error(paths), run_state.beating(paths), interrupt_once():
        outcome = _prepare_and_execute(plan, vendor, paths, listener, machine, copies)
        result = _store_and_finish(paths, outcome)
        is_late_interrupt = was_interrupted() and not result.status.is_interrupted
    if plan.peak.tflops is None and any(peak_share.is_above_peak for peak_share in result.utilisation):
        measurement.delete_peaks(plan, machine)
        listener.say("the run was faster than the measured peak: that peak is deleted, and the next run measures it")
    for hint in filter(None, (feature.hint(paths) for feature in FEATURES)):
        listener.say(hint)
    listener.record_run(paths)
    if is_late_interrupt:  # it ends the command, not the run
        listener.say(f"interrupted after the run had ended: it is {result.status.word}")
        raise KeyboardInterrupt
    return result


def preflight(plan: Plan, vendor: Vendor, runs: Path, say: Callable[[str], None]) -> PreflightReport:
    """Prepare the plan's environment, run its preflight and return the report, also when the launch failed."""
    runtime, launcher = runtime_and_launcher(plan)
    try:
        with lock_devices(plan), runtime.in_use(plan, say) as ready:
            return run_preflight(plan, vendor, runs, ready, bind_say(launcher, say), say)
    except (DeviceInUse, RunFailed) as error:
        return failed_preflight(plan, launcher, " ".join(str(error).split()))


def check_request(plan: Plan, runs: Path) -> None:
    """Raise UsageError for what the launcher of many machines refuses to request."""
    if plan.launch and not plan.refusal:
        runtime, launcher = runtime_and_launcher(plan)
        launcher.request(plan, RunPaths(runs.absolute() / plan.run_id), runtime)


def remaining_work(paths: RunPaths) -> str | None:
    """Return what of a run still lives after its platform was killed; None where nothing does, and where the training
    ends with the platform."""
    plan = directory.read_plan(paths)
    runtime, launcher = runtime_and_launcher(plan)
    describe: Callable[[Request], str | None] | None = getattr(launcher, "remaining_work", None)
    return describe(launcher.request(plan, paths, runtime)) if describe and not paths.outcome.exists() else None


def attach(paths: RunPaths, vendor: Vendor, listener: Listener, cancels: bool = False) -> Result:
    """Take up a run whose platform was killed, and return its result.

    Where an engine continues it, watch it until its end, or end it if `cancels`. Else its end is that of its platform,
    and the result is what was measured until then. The times at which the platform saw the window's ends are not
    known. Raises WatchLeft at an interrupt: an engine's job goes on. Raises UsageError where the engine has no job.
    """
    run_state.refuse_running(paths)
    if paths.outcome.exists():
        return finish(paths)
    plan = directory.read_plan(paths)
    if plan.run_id != paths.root.name:  # its name would find another run's job
        raise UsageError(
            f"{paths.plan}: key 'run_id': found {plan.run_id}, expected {paths.root.name}, the name of its folder; put "
            "the plan of this run back, or give the folder its name again"
        )
    runtime, launcher = runtime_and_launcher(plan)
    attach_to_run = getattr(bind_say(launcher, listener.say), "attach", None)
    if attach_to_run is None:
        for sentence in end_leftover_ranks():
            listener.say(sentence)
        if remove_leftovers := getattr(launcher, "remove_leftovers", None):
            remove_leftovers(listener.say)
        listener.say(f"with launcher {launcher.name} a training ends with its platform; judging what it recorded")
        result = finish(paths)
        listener.record_run(paths)
        return result
    context = interrupt_once() if cancels else leave_at_interrupt()
    with directory.status_ended_on_error(paths), run_state.beating(paths), context:
        corpus, follower = CorpusWatch(plan.corpus), Follower(paths.events, plan)
        request = launcher.request(plan, paths, runtime)
        directory.write_status(paths, "running", "running")
        watch = _make_watch(plan, follower, listener)
        outcome = attach_to_run(request, _interrupting_watch(watch) if cancels else watch)
        _read_nodes(plan, vendor, paths)
        result = _store_and_finish(
            paths, corpus.revise_outcome(CodeWatch(plan, paths).revise_outcome(outcome), listener.say)
        )
    listener.record_run(paths)
    return result


def refuse(plan: Plan, runs: Path, reason: str, listener: Listener) -> Result:
    """Write a run directory with the reason why this machine cannot run the plan. Return its result."""
    paths = directory.create_run(runs, plan.run_id)
    add_run(plan.run_id)
    with _usage_error_if_unwritable(paths):
        directory.write_atomically(paths.plan, dump(plan))
    result = _store_and_finish(paths, Outcome("unsupported", (), " ".join(reason.split())))
    listener.record_run(paths)
    return result


def _store_and_finish(paths: RunPaths, outcome: Outcome) -> Result:
    """Write the outcome and return the result. Raises RunFailed for a full disk; `evidence collect` continues later."""
    try:
        directory.write_status(paths, "collecting", "running")
        try:
            directory.write_json(paths.outcome, add_seal(paths, outcome.to_dict()))
        except KeyboardInterrupt:  # comes once (`interrupt_once`), maybe while a long log is read for the seal
            directory.write_json(paths.outcome, add_seal(paths, outcome.to_dict()))
            raise
        paths.outcome_of_full_disk.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            paths.outcome_of_full_disk.replace(paths.outcome)  # needs no room
        if not paths.root.is_dir():
            raise RunFailed(
                f"failed (storage): {paths.root}: the folder was removed while the run wrote to it, and its steps are "
                "lost. Find out what removes it, then run it again"
            ) from None
        raise RunFailed(
            f"failed (storage): {write_failure_text(error, paths.root)}. The finished steps are kept. "
            f"{write_failure_remedy(error)}, then run `evidence collect {paths.root}`"
        ) from None
    try:
        return finish(paths)
    except (OSError, DocumentError) as error:
        reason = write_failure_text(error, paths.root) if isinstance(error, OSError) else error
        raise RunFailed(
            f"the run has ended and its raw files are kept, without a result: {reason}. Mend that, then run "
            f"`evidence collect {paths.root}`"
        ) from None


def finish(paths: RunPaths) -> Result:
    """Write result and report from the raw files. Return the result. A second call writes the same files."""
    result = collect(paths)
    directory.write_atomically(paths.result, dump(result))
    plan = directory.read_plan(paths)
    directory.write_atomically(paths.report, run_report(result, plan))
    for feature in FEATURES:
        feature.after_run(plan, paths)
    directory.write_status(paths, "done", result.status.word)
    return result


def _prepare_and_execute(
    plan: Plan,
    vendor: Vendor,
    paths: RunPaths,
    listener: Listener,
    machine: str,
    copies: Mapping[Path, Document | None],
) -> Outcome:
    """Prepare and run the plan, and return how it ended.

    copies: by path, the documents that the run is judged by; None where there is none.
    """
    documents = {path: document for path, document in {**copies, paths.plan: plan}.items() if document is not None}
    with _usage_error_if_unwritable(paths):
        for path, document in documents.items():
            directory.write_atomically(path, dump(document))
        directory.write_status(paths, "environment", "running")
    runtime, launcher = runtime_and_launcher(plan)
    check_request(plan, runs=paths.root.parent)  # before anything starts
    try:
        with lock_devices(plan, listener.say) as locks, runtime.in_use(plan, listener.say) as ready:
            prepared = PreparedRun(plan, vendor, paths, ready, bind_say(launcher, listener.say), listener.say)
            for refusal in filter(None, (feature.before_training(prepared) for feature in FEATURES)):
                return refusal
            plan = set_measured_peak(plan, measurement.load_or_measure_peaks(plan, machine, ready, listener.say))
            outcome = _execute(plan, vendor, paths, listener, ready, launcher, locks)
            locks.hold_for([end.process for end in outcome.ends if end.process is not None])
            return outcome
    except DeviceInUse as error:
        return Outcome("device-taken", (), str(error))
    except CorpusError as error:
        return Outcome("corpus", (), str(error))
    except NodesNotReady as error:
        return Outcome(error.cause, (), " ".join(str(error).split()), nodes=error.nodes)
    except RunFailed as error:
        return Outcome("environment", (), " ".join(str(error).split()))
    except KeyboardInterrupt:
        return Outcome("interrupted", (), "interrupted before the training started")


def _execute(
    plan: Plan,
    vendor: Vendor,
    paths: RunPaths,
    listener: Listener,
    runtime: ReadyRuntime,
    launcher: Launcher,
    locks: DeviceLocks,
) -> Outcome:
    """Write the run's files, start the ranks and return how the run ended. The environment is ready."""
    request = launcher.request(plan, paths, runtime)
    with _usage_error_if_unwritable(paths):
        directory.write_atomically(paths.plan, dump(plan))
        runtime.write_files(plan, paths)
        directory.write_json(paths.job, job_content(plan, paths))
        directory.write_json(paths.request, request.to_dict())
        directory.write_json(paths.provenance, collect_provenance(plan, vendor, runtime))
        directory.write_json(paths.outcome_of_full_disk, Outcome("storage", (), "the disk was full").to_dict())
        directory.write_status(paths, "running", "running")
        inputs = InputWatch(paths)
    corpus, code = CorpusWatch(plan.corpus), CodeWatch(plan, paths)
    if refusal := code.refusal():
        return refusal
    listener.say(f"training {plan.work.training.steps} steps on {plan.world_size} device(s)")
    follower = Follower(paths.events, plan)
    try:
        with sample_node_power(plan, paths), sample_devices(plan, vendor, paths) as sampler:
            if load_sentence := describe_host_load(plan, paths):
                listener.say(load_sentence)
            outcome = bind_say(launcher, listener.say).execute(request, _make_watch(plan, follower, listener, locks))
        outcome = inputs.revise_outcome(outcome)
        outcome = sampler.revise_outcome(outcome) if sampler else outcome
    except OSError as error:
        outcome = Outcome("storage", (), write_failure_text(error, paths.root))
    _read_nodes(plan, vendor, paths)
    # `seen` has no value for nodes: a file server or a connection may deliver an event much later
    outcome = replace(outcome, seen={} if plan.launch else follower.seen)
    if plan.launch:
        remarks = node_remarks(paths.root, plan.hardware.nodes, not plan.hardware.is_host)
        outcome = replace(outcome, warnings=(*outcome.warnings, *remarks))
    return corpus.revise_outcome(code.revise_outcome(outcome), listener.say)


def describe_host_load(plan: Plan, paths: RunPaths) -> str | None:
    """Return a sentence about the load of other programs before the training; None where it is within the limits.

    The figures are those of `use_by_others` in the result. Nodes that a launcher reaches write theirs later.
    """
    if plan.launch:
        return None
    use, _ = use_by_others(plan, node_parts(plan, read_raw(paths)))
    cores, text = use_beyond_limits(use)
    if use is None or not text:
        return None
    load = f"{cores:.2f} of {use.host_cores} cores (limit: {HOST_LIMIT * (use.host_cores or 0):.2g})" if cores else text
    return (
        f"the machine is busy: other programs use {load}, so this run may end as '{DISTURBED}', whose speed does not "
        "count beside that of a quiet run; for one that counts, stop it by Ctrl-C and wait for an idle machine"
    )


def _read_nodes(plan: Plan, vendor: Vendor, paths: RunPaths) -> None:
    """Read what the nodes recorded. If the disk is full, the result says which node was not read."""
    with suppress(OSError):
        write_node_readings(paths, plan, vendor)
        write_node_software(paths, plan, vendor)


def _make_watch(plan: Plan, follower: Follower, listener: Listener, locks: DeviceLocks | None = None) -> Watch:
    """Return the function that a launcher calls repeatedly. It passes finished steps to the listener.

    locks: get the ranks at the first call, because this process may be killed. They get them again with the first step,
    because a process that has just become a rank shows no variables yet.
    """
    pending_locks = [locks, locks] if locks else []

    def watch() -> None:
        steps = follower.read()
        if pending_locks and (steps or len(pending_locks) == 2):
            pending_locks.pop().hold_for(live_rank_processes())
        for progress in steps:
            listener.report_step(plan, progress)

    return watch


def _interrupting_watch(watch: Watch) -> Watch:
    """Return a watch that is interrupted as by the user: so a launcher ends what it attaches to.

    It is so at the third call: a launcher then reads again what its nodes send.
    """
    calls = itertools.count(1)

    def interrupt_third() -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        watch()

    return interrupt_third


@contextmanager
def _usage_error_if_unwritable(paths: RunPaths) -> Iterator[None]:
    """Raise UsageError where the block before the training cannot write, for example on a full disk."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"not-run: {write_failure_text(error, paths.root)}. Nothing was trained. "
            f"{write_failure_remedy(error)}, or name another folder with --runs"
        ) from None
