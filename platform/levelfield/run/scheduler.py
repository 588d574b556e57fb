"""Plans the work of the command line, runs it in order, and returns the results."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.contracts.vendor import Vendor
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import NotHere, UsageError
from levelfield.plan.certificate_need import certificate_need
from levelfield.plan.peak import set_measured_peak
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, Suggestion, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.run import certificate_store, measurement, runner
from levelfield.rundir import directory
from levelfield.specs.certificate import Certificate
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result
from levelfield.specs.suite import EntryUsed, Suite


@dataclass(frozen=True)
class Job:
    """A planned run."""

    plan: Plan
    vendor: Vendor  # the adapter of its devices
    entry: Entry | None = None  # the entry that requested it
    certificate: Certificate | None = None  # the one that its plan names


@dataclass(frozen=True)
class CertificateAttempt:
    """A job after the attempt to make its certificate."""

    job: Job
    interrupted_result: Result | None = None  # of the certifying run, where it was interrupted


def list_entries(registry: Registry, cases: Sequence[str], suites: Sequence[str], request: UserRequest) -> list[Entry]:
    """Return the entries of cases and suites in the order of the command line, cases first. Raises UsageError."""
    entries = [Entry(text, request) for text in cases]
    for name in suites:  # the name of a shipped suite, or the file of another one
        path = Path(name)
        is_file = path.suffix in (".yaml", ".yml", ".json")
        suite = registry.document_cache.document(Suite, path) if is_file else registry.suite(name)
        entries += [
            Entry(
                entry.case,
                request,
                scale=entry.scale,
                suggestion=Suggestion(entry.set, f"suite {path.stem}"),
                hardware=entry.hardware or suite.hardware,
                suite_entry=EntryUsed(suite=path.stem, name=entry.label, group=entry.group, note=entry.note),
            )
            for entry in suite.entries
        ]
    if not entries:
        raise UsageError("nothing to run: give --case CASE:FRAMEWORK or --suite NAME (`show` shows the names)")
    return entries


def plan_jobs(registry: Registry, entries: Sequence[Entry], corpus: CorpusFacts | None) -> Iterator[Job]:
    """Yield a job for each repeat of each entry. All are planned first, so that a wrong name fails before any run."""
    jobs: list[Job] = []
    for entry in entries:
        try:
            try:
                jobs += _repeated_jobs(registry, entry, corpus)
            except NotHere as error:  # a suite's entry that cannot run here gives runs that record the reason
                if entry.suite_entry is None:
                    raise
                jobs += _repeated_jobs(registry, entry, corpus, refusal=str(error))
        except UsageError as error:
            if entry.suite_entry is None:
                raise
            raise UsageError(f"suite {entry.suite_entry.suite}, entry '{entry.suite_entry.name}': {error}") from None
    yield from jobs


def plan_with_stored_peak(job: Job) -> Plan:
    """Return the job's plan with the peak that an earlier probe measured on this machine, if there is one."""
    return set_measured_peak(job.plan, measurement.load_peaks(job.plan, platform.node()))


def run_jobs(
    jobs: Iterator[Job],
    runs: Path,
    listener: runner.Listener,
    find_reference: Callable[[Plan], Reference | None],
    certify: Callable[[Job], CertificateAttempt] = CertificateAttempt,
) -> Iterator[Result]:
    """Run the jobs in order and yield each result. An interrupted run is the last one.

    find_reference: returns what a run is compared with; it is called at the start of the run. certify: makes the
    certificate of a job that needs one and has none; without it a stored one is used.
    """
    for job in jobs:
        attempt = certify(add_stored_certificate(job, listener.say))
        plan, certificate = attempt.job.plan, attempt.job.certificate
        if attempt.interrupted_result:
            result = attempt.interrupted_result
        elif plan.refusal:
            result = runner.refuse(plan, runs, plan.refusal, listener)
        else:
            machine = platform.node()
            result = runner.run(plan, attempt.job.vendor, runs, listener, machine, find_reference(plan), certificate)
            if certificate and result.status.word == "valid" and result.certificate and not result.certificate.holds:
                certificate_store.delete_certificate(certificate.subject)
                listener.say("the certificate did not hold for this run; the next run makes it again")
        yield result
        if result.status.is_interrupted:
            return


def add_stored_certificate(job: Job, say: Callable[[str], None]) -> Job:
    """Return the job with the stored certificate of its plan, if there is one."""
    need = job.plan.certificate
    if need is None or need.subject is None:
        return job
    stored = certificate_store.load_certificate(need.subject)
    if stored.problem:
        say(stored.problem)
    return add_certificate(job, stored.certificate) if stored.certificate else job


def add_certificate(job: Job, certificate: Certificate) -> Job:
    """Return the job with a certificate, which its plan then names."""
    fields = {"digest": certificate.digest, "run_id": certificate.run_id, "reason": None}
    return replace(job, plan=_update_certificate_need(job.plan, fields), certificate=certificate)


def mark_uncertified(job: Job, reason: str, failed_run: str | None = None) -> Job:
    """Return the job with the reason why its plan has no certificate."""
    return replace(job, plan=_update_certificate_need(job.plan, {"reason": reason, "failed_run": failed_run}))


def _update_certificate_need(plan: Plan, fields: dict[str, str | None]) -> Plan:
    need = plan.certificate
    return plan if need is None else plan.model_copy(update={"certificate": need.model_copy(update=fields)})


def _repeated_jobs(
    registry: Registry, entry: Entry, corpus: CorpusFacts | None, refusal: str | None = None
) -> list[Job]:
    """Return one job for each repeat. Only the run id and the number of the repeat differ in their plans."""
    decision = place(registry, entry, refusal)
    selection, repeats = decision.selection, range(1, decision.selector.repeats + 1)
    names = selection.case.name, selection.implementation.framework, selection.vendor.name
    run_ids = [directory.new_run_id(*names) for _ in repeats]
    plan = resolve(decision, run_ids[0], corpus)
    plan = plan.model_copy(update={"certificate": certificate_need(registry, plan)})
    plans = [plan.model_copy(update={"run_id": i, "repeat": n}) for i, n in zip(run_ids, repeats, strict=True)]
    return [Job(plan, selection.adapter, entry) for plan in plans]
