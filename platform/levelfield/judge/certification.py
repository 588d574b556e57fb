"""Makes certificates from aligned runs, and checks the certificate of a run.

A run in 16 bits or at full scale whose layers all hold is aligned with a certificate that holds, and otherwise
consistent: rounding is then larger than many faults.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from levelfield.errors import DocumentError, GateFailed
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import utc_now
from levelfield.rundir.event_lines import JsonObject, object_or_none, sequence
from levelfield.specs.base import load, sha256_of
from levelfield.specs.certificate import Certificate, CertificateSubject, code_branches
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Alignment, CertificateFinding, Result
from levelfield.specs.variables import arithmetic_variables


def make_certificate(paths: RunPaths, plan: Plan, result: Result, subject: CertificateSubject) -> Certificate:
    """Return the certificate that rests on a run. Raises GateFailed for a run that is not aligned or of other code."""
    if result.status.word != "valid":
        raise GateFailed(f"its run {result.run_id} is {result.status.word}")
    alignment, software = result.alignment, software_digest(paths)
    if alignment.verdict != "aligned":
        raise GateFailed(f"its run {result.run_id} is {alignment.verdict}: {alignment.reason}")
    difference = subject_mismatch(subject, plan)
    if difference is None:
        reference = load(Reference, paths.reference)
        if (reference.identity.work, reference.fingerprint()) != (subject.work, subject.reference):
            difference = f"it was compared with another reference than the plan names, {reference.name}"
    if difference:
        raise GateFailed(f"its run {result.run_id} certifies nothing: {difference}")
    if software is None:
        raise GateFailed(f"its run {result.run_id} certifies nothing: its packages are not known")
    try:
        return Certificate.from_content(
            subject=subject,
            case=plan.case,
            scale=plan.scale,
            precision=plan.work.training.precision,
            reference=alignment.reference or "",
            run_id=plan.run_id,
            layout=str(plan.tuning.layout),
            framework_version=result.framework_version,
            software=software,
            verdict="aligned",
            reason=alignment.reason,
            layers=alignment.layers,
            made=utc_now(),
        )
    except ValidationError as error:
        raise GateFailed(f"its run {result.run_id} certifies nothing: {error.errors()[0]['msg']}") from None


def certificate_finding(
    paths: RunPaths, plan: Plan, framework_version: str, software: str | None = None
) -> CertificateFinding | None:
    """Return whether the certificate in the run directory holds for this run; None for a run that needs none.

    software: the digest of the run's software, where the provenance in the directory was redacted.
    """
    if not plan.needs_certificate:
        return None
    planned = plan.certificate
    if planned is None:
        return CertificateFinding(holds=False, reason="none was looked for")
    if planned.digest is None:
        reason = planned.reason or "there is none of this code, and this command makes none"
        return CertificateFinding(holds=False, reason=reason, run_id=planned.failed_run)
    try:
        certificate = load(Certificate, paths.certificate)
    except DocumentError as error:
        message = " ".join(str(error).replace(f"{paths.root}/", "").split())  # the same bytes wherever the folder lies
        return CertificateFinding(holds=False, reason=message, run_id=planned.run_id)
    mismatch = _certificate_mismatch(certificate, software or software_digest(paths), plan, framework_version)
    return CertificateFinding(
        holds=not mismatch, reason=mismatch, run_id=certificate.run_id, made=certificate.made, digest=certificate.digest
    )


def apply_certificate(alignment: Alignment, plan: Plan, certificate: CertificateFinding | None) -> Alignment:
    """Return the verdict together with the certificate: `aligned` becomes `consistent` where none holds."""
    if certificate is None:
        return alignment
    if certificate.holds:
        if alignment.verdict not in ("aligned", "unchecked"):
            return alignment
        basis = f"the same code is aligned in fp32 at smoke scale, run {certificate.run_id}"
        return alignment.model_copy(update={"reason": f"{alignment.reason}; {basis}"})
    if alignment.verdict != "aligned":
        return alignment
    precision = plan.work.training.precision
    where = f"in {precision}" if precision != "fp32" else "at full scale"
    reason = f"no layer differs, which shows little {where} without a certificate: {certificate.reason}"
    return alignment.model_copy(update={"verdict": "consistent", "reason": reason})


def subject_mismatch(subject: CertificateSubject, plan: Plan) -> str | None:
    """Return where the subject differs from the run of this plan; None where they agree."""
    facts = {
        "the framework": (subject.framework, plan.implementation.framework),
        "the implementation": (subject.implementation, plan.implementation.digest),
        "the vendor": (subject.vendor, plan.hardware.vendor),
        "the chip": (subject.chip, plan.hardware.chip.name),
        "the runtime": (subject.runtime, plan.runtime),
        "the environment": (subject.environment, plan.environment.digest or plan.environment.python),
        "the environment variables": (subject.variables, plan.variables_digest),
        "the kind of layout": (subject.path, code_branches(plan.tuning)),
    }
    differing = [name for name, (certified, ours) in facts.items() if certified != ours]
    return f"{', '.join(differing)} of the certificate and of the run differ" if differing else None


def software_digest(paths: RunPaths) -> str | None:
    """Return the digest of a run's packages, the vendor's software, inherited variables that may change arithmetic, and
    what was imported from elsewhere.

    None where the packages are not known.
    """
    try:
        provenance: dict[str, Any] = json.loads(read_regular(paths.provenance, "provenance"))
        facts = {key: provenance[key] for key in ("environment_packages", "vendor_software")}
        if uncovered_digests := _uncovered_import_digests(object_or_none(read_regular(paths.outcome, "outcome")) or {}):
            facts["elsewhere"] = uncovered_digests
        recording_rule = provenance.get("inherited_are")  # the rule by which the variables were chosen
        facts["inherited"] = arithmetic_variables(provenance.get("inherited", {}), recording_rule)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not facts["environment_packages"]:
        return None
    return sha256_of(json.dumps(facts, sort_keys=True).encode())


def _certificate_mismatch(
    certificate: Certificate, software: str | None, plan: Plan, framework_version: str
) -> str | None:
    """Return why a certificate does not hold for this run; None where it holds."""
    planned = plan.certificate
    if planned is None or certificate.digest != planned.digest or certificate.subject != planned.subject:
        return "the certificate in the run directory is not the one that the plan names"
    if difference := subject_mismatch(certificate.subject, plan):
        return difference
    if certificate.framework_version != framework_version:
        return (
            f"it is of {certificate.subject.framework} {certificate.framework_version}, the run of {framework_version}"
        )
    if certificate.software != software:
        what = "the packages, the vendor's software, inherited variables or code from elsewhere"
        return f"{what} have changed since it was made"
    return None


def _uncovered_import_digests(outcome: JsonObject) -> list[str]:
    """Return the digests of files that ranks imported from outside their folders, in order. A rank that did not report
    its imports counts as such a file."""
    files = (file for file in sequence(outcome.get("elsewhere")) if isinstance(file, dict))
    return sorted({str(file.get("sha256")) for file in files})


def uncovered_imports_warning(outcome: JsonObject) -> tuple[str, ...]:
    """Return a warning for a run that imported files from elsewhere, else nothing; see `_uncovered_import_digests`.

    It names no path, because a bundle has other ones. So it cannot tell whether they are packages of an environment
    below the run's own.
    """
    if number := len(_uncovered_import_digests(outcome)):
        files = "1 imported file is" if number == 1 else f"{number:,} imported files are"
        return (
            f"{files} neither in the framework's folder nor in those of its Python (`elsewhere` in outcome.json). "
            "Nothing to do for installed packages. Move code of your own into the framework's folder: else no digest "
            "shows its changes",
        )
    return ()
