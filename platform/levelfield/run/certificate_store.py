"""The certificates that were made on this machine, one file for each subject, beside the measured peaks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from levelfield.errors import DocumentError
from levelfield.run.peak_probe import cache_folder
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import dump, load
from levelfield.specs.certificate import Certificate, CertificateSubject


@dataclass(frozen=True)
class StoredCertificate:
    """The certificate of a subject. problem: why the file is no certificate of it; a sentence with the path."""

    certificate: Certificate | None = None
    problem: str | None = None


def stored(subject: CertificateSubject) -> StoredCertificate:
    path = place(subject)
    if not path.exists():
        return StoredCertificate()
    try:
        found = load(Certificate, path)
    except DocumentError as error:
        return StoredCertificate(problem=f"the certificate is damaged and does not count: {error}")
    if found.subject != subject:
        return StoredCertificate(problem=f"the certificate is of other code or software and does not count: {path}")
    return StoredCertificate(found)


def keep(certificate: Certificate) -> str | None:
    """Store a certificate. Return the reason where it cannot be stored; the run that needs it has it nevertheless."""
    path = place(certificate.subject)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, dump(certificate))
    except OSError as error:
        return f"the certificate cannot be kept, {path}: {error.strerror}; the next command makes it again"
    return None


def forget(subject: CertificateSubject) -> None:
    """Delete a certificate that did not hold for its run, so that the next run makes it again."""
    place(subject).unlink(missing_ok=True)


def place(subject: CertificateSubject) -> Path:
    return cache_folder().with_name("certificates") / f"{subject.fingerprint().removeprefix('sha256:')[:24]}.json"
