"""Holds the certificate of a run in a bundle against the run that it rests on, where the bundle has that one too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction
from levelfield.judge.sealing import Redaction
from levelfield.rundir.bundle_reader import RunInBundle, written
from levelfield.rundir.event_lines import DAMAGED
from levelfield.specs.base import load
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result

FILE = "certificate.json"


def certificate_checked(
    run: RunInBundle, paths: RunPaths, found: Result, runs: Sequence[RunInBundle]
) -> Iterator[Contradiction | str]:
    """Yield what does not follow from the certificate's run. runs: of the bundle. found: what `run` gives here."""
    if FILE not in run.files or not (found.certificate and found.certificate.holds):
        return  # one that does not hold makes nothing aligned
    certificate = load(Certificate, paths.certificate)
    own = next((each for each in runs if each.name == certificate.run_id), None)
    if own is None:
        yield (
            f"{FILE} rests on run {certificate.run_id}, which is not in this bundle. Its digest has no key: it shows "
            "no edit by someone who makes it again. `evidence bundle` both runs to have it recomputed"
        )
        return
    try:
        with written(own) as folder:
            result = collect(folder, redaction=Redaction(own.seal, own.listed.software))
    except (DocumentError, *DAMAGED) as error:
        yield Contradiction(FILE, f"run {own.name}", " ".join(str(error).split())[:120])
        return
    yield from _differences(certificate, result)


def _differences(certificate: Certificate, result: Result) -> Iterator[Contradiction]:
    facts = {
        "the run's word": ("valid", result.status.word),
        "verdict": (certificate.verdict, result.alignment.verdict),
        "scale": (certificate.scale, result.scale),
        "precision": (certificate.precision, result.precision),
        "framework": (certificate.subject.framework, result.framework),
        "framework_version": (certificate.framework_version, result.framework_version),
        "chip": (certificate.subject.chip, result.chip),
        "work": (certificate.subject.work, result.identity.work),
        "layers": (certificate.layers, result.alignment.layers),
    }
    for name, (stated, ours) in facts.items():
        if stated != ours:
            yield Contradiction(f"{FILE}: {name}", str(stated)[:120], f"{str(ours)[:120]} by run {result.run_id}")
