"""Makes a missing certificate before the run that needs it: the same code in fp32 at smoke scale, about a minute."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import GateFailed, NotHere, UsageError
from levelfield.judge.certification import make_certificate, subject_mismatch
from levelfield.plan.certificate_need import certifying_entry, fp32_smoke_reference, shared_code_digest
from levelfield.run import certificate_store, runner
from levelfield.run.scheduler import CertificateAttempt, Job, add_certificate, mark_uncertified, plan_jobs
from levelfield.rundir.directory import read_plan
from levelfield.specs.certificate import CertificateSubject
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result

JobUpdate = Callable[[Job], Job]  # gives a job its certificate, or the reason why it has none
LEFT_OUT_REASON = "it was left out (--no-certificate)"


def plan_certifying_job(registry: Registry, job: Job) -> tuple[Job, Reference]:
    """Plan the run that would make the job's certificate. Return it, and the reference that it is compared with.

    Raises UsageError where this machine cannot run it.
    """
    reference = fp32_smoke_reference(registry, job.plan)
    if reference is None or job.entry is None:
        raise NotHere("no reference in fp32 at smoke scale has its work")
    entry = certifying_entry(registry, job.plan, reference, job.entry.request)
    (certifying_job,) = plan_jobs(registry, [entry], None)
    if certifying_job.plan.work_digest != reference.identity.work:
        raise NotHere(f"the reference {reference.name} is stale: its case has changed since")
    need = job.plan.certificate
    if need and need.subject and (difference := subject_mismatch(need.subject, certifying_job.plan)):
        raise NotHere(difference)
    return certifying_job, reference


@dataclass(frozen=True)
class CertificateMaker:
    """Makes certificates, each once in a command."""

    registry: Registry
    runs: Path
    listener: runner.Listener
    updates: dict[str, JobUpdate] = field(default_factory=dict)  # by the subject's fingerprint

    def certify(self, job: Job) -> CertificateAttempt:
        """Return the job with its certificate, or with the reason why it has none."""
        need = job.plan.certificate
        if job.certificate or job.plan.refusal or need is None or need.subject is None:
            return CertificateAttempt(job)
        key = need.subject.fingerprint()
        if key not in self.updates:
            update = self._train(job, need.subject)
            if isinstance(update, Result):
                return CertificateAttempt(job, update)
            self.updates[key] = update
        return CertificateAttempt(self.updates[key](job))

    def _train(self, job: Job, subject: CertificateSubject) -> JobUpdate | Result:
        """Train, and return what certifies a job, or the result of an interrupted run."""
        try:
            certifying_job, reference = plan_certifying_job(self.registry, job)
        except UsageError as error:
            return self._report_missing_certificate(_not_here_reason(error))
        plan = certifying_job.plan
        self.listener.say(
            f"no certificate of this code yet: training {plan.case} first, in fp32 at smoke scale, "
            f"{plan.tuning.layout} on {plan.world_size} device(s), about a minute (--no-certificate leaves it out)"
        )
        result = runner.run(plan, certifying_job.vendor, self.runs, self.listener, platform.node(), reference)
        if result.status.failure == "interrupted":
            return result
        paths = RunPaths(self.runs.absolute() / result.run_id)
        try:
            plan = read_plan(paths)
            certificate = make_certificate(paths, plan, result, subject)
            if shared_code_digest(Path(plan.implementation.folder)) != subject.code:
                raise GateFailed(
                    f"its run {result.run_id} certifies nothing: the code of the frameworks or of the worker changed "
                    "after the command began"
                )
        except GateFailed as error:
            return self._report_missing_certificate(str(error), result.run_id)
        self.listener.say(f"certificate: aligned in fp32 at smoke scale, run {result.run_id}")
        if problem := certificate_store.store_certificate(certificate, paths):
            self.listener.say(problem)
        return partial(add_certificate, certificate=certificate)

    def _report_missing_certificate(self, reason: str, failed_run: str | None = None) -> JobUpdate:
        self.listener.say(f"no certificate: {reason}")
        return partial(mark_uncertified, reason=reason, failed_run=failed_run)


def skip_certification(job: Job) -> CertificateAttempt:
    """Return the job of a command with --no-certificate: a stored certificate counts, and none is made."""
    need = job.plan.certificate
    if job.certificate or need is None or need.reason:
        return CertificateAttempt(job)
    return CertificateAttempt(mark_uncertified(job, LEFT_OUT_REASON))


def preview_certificate(registry: Registry, job: Job, is_left_out: bool) -> Job:
    """Return the job as a command would start it, with its stored certificate or why it would have none."""
    need = job.plan.certificate
    if job.certificate or need is None or need.reason or job.plan.hardware.assumed:
        return job
    if is_left_out:
        return skip_certification(job).job
    try:
        plan_certifying_job(registry, job)
    except UsageError as error:
        return mark_uncertified(job, _not_here_reason(error))
    return job


def _not_here_reason(error: UsageError) -> str:
    return f"none can be made here: {' '.join(str(error).split())}"
