"""The certificates that were made on this machine, one file for each subject, beside the measured peaks.

The digest of a certificate has no key: whoever edits one can compute it again. So the raw files of its run are kept
too, under their seal, and the certificate counts only if it follows from them.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from levelfield.errors import DocumentError, GateFailed
from levelfield.judge.certification import make_certificate
from levelfield.judge.collector import collect
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.rundir.event_lines import DAMAGE_ERRORS
from levelfield.rundir.seal import OUTCOME, raw_paths
from levelfield.specs.base import dump, load
from levelfield.specs.certificate import Certificate, CertificateSubject
from levelfield.specs.paths import RunPaths
from levelfield.specs.short_names import short_digest
from levelfield.user_folders import own_cache


@dataclass(frozen=True)
class StoredCertificate:
    """The certificate of a subject as it was stored; both fields are None where nothing is stored."""

    certificate: Certificate | None = None
    problem: str | None = None  # why the stored file does not count, as a sentence with the path


def load_certificate(subject: CertificateSubject) -> StoredCertificate:
    path = certificate_file(subject)
    if not path.exists():
        return StoredCertificate()
    try:
        certificate = load(Certificate, path)
    except DocumentError as error:
        return StoredCertificate(problem=f"the certificate is damaged and does not count: {error}")
    if certificate.subject != subject:
        return StoredCertificate(problem=f"the certificate is of other code or software and does not count: {path}")
    if mismatch := _mismatch(certificate):
        problem = (
            f"the certificate does not follow from the raw files of its run and does not count: {path}: {mismatch}"
        )
        return StoredCertificate(problem=problem)
    return StoredCertificate(certificate)


def store_certificate(certificate: Certificate, paths: RunPaths) -> str | None:
    """Store a certificate with the raw files of its run. Return the reason where it cannot be stored.

    The run that needs it has it nevertheless.
    """
    path, folder = certificate_file(certificate.subject), certifying_run_folder(certificate.subject)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            for name, file in [*raw_paths(paths.root), (OUTCOME, paths.outcome)]:
                copy = unfinished / paths.root.name / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy, follow_symlinks=False)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump(certificate))
    except OSError as error:
        return f"the certificate cannot be kept, {path}: {error.strerror}; the next command makes it again"
    return None


def delete_certificate(subject: CertificateSubject) -> None:
    """Delete a certificate that did not hold for its run, so that the next run makes it again."""
    certificate_file(subject).unlink(missing_ok=True)
    shutil.rmtree(certifying_run_folder(subject), ignore_errors=True)


def certificate_file(subject: CertificateSubject) -> Path:
    return own_cache() / "certificates" / f"{short_digest(subject.fingerprint(), 24)}.json"


def certifying_run_folder(subject: CertificateSubject) -> Path:
    """Return the folder with the run that certifies a subject."""
    return own_cache() / "certificate-runs" / short_digest(subject.fingerprint(), 24)


def _mismatch(certificate: Certificate) -> str | None:
    """Return why a certificate does not follow from the raw files of its run; None where it does."""
    paths = RunPaths(certifying_run_folder(certificate.subject) / certificate.run_id)
    if not paths.plan.is_file():
        return "they are not kept beside it"
    try:
        recomputed = make_certificate(paths, read_plan(paths), collect(paths), certificate.subject)
    except GateFailed as error:
        return str(error)
    except (DocumentError, OSError, *DAMAGE_ERRORS) as error:
        return " ".join(str(error).split())
    recomputed_fields, stored_fields = (
        document.model_dump(exclude={"made", "digest"}) for document in (recomputed, certificate)
    )
    if different_fields := [name for name in recomputed_fields if recomputed_fields[name] != stored_fields[name]]:
        return f"{', '.join(different_fields)} differ"
    return None
