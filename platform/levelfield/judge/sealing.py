"""What the seal of a run means for its result: `unsealed` or `tampered` in place of `valid`."""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.specs.result import Alignment, SealFinding, Status


@dataclass(frozen=True)
class Redaction:
    """What a bundle keeps of files that it holds in redacted form.

    seal: the finding on the files before. software: the digest of the packages and of the vendor's software.
    """

    seal: SealFinding
    software: str | None


def under_seal(status: Status, seal: SealFinding) -> Status:
    """Return the status with the seal's word in place of `valid`. Every other word stays: it has its own reasons."""
    if status.word != "valid" or seal.word == "sealed":
        return status
    return Status(word=seal.word, reasons=(seal.reason or seal.word,))


def seal_warnings(status: Status, seal: SealFinding) -> tuple[str, ...]:
    """Return a warning for a run whose word is another one and whose files were changed."""
    if seal.word != "tampered" or status.word == "tampered":
        return ()
    return (f"the run is tampered: {seal.reason}",)


def unless_tampered(verdict: Alignment, seal: SealFinding | None) -> Alignment:
    """Return the verdict on the training; no verdict where the files were changed."""
    if seal is None or seal.word != "tampered":
        return verdict
    return Alignment(verdict="unchecked", reason=f"the run is tampered: {seal.reason}", reference=verdict.reference)
