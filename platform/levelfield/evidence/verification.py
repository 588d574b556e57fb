"""Verifies a bundle: recomputes every figure and verdict of its runs from their raw files, offline.

It shows that the stated result follows from the raw files. It cannot show that the raw files are true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, LevelfieldError
from levelfield.evidence.bundle_reader import RESULT, Bundle, RunInBundle, written
from levelfield.evidence.packing import leaves
from levelfield.judge.admission import is_wider
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction, cross_checked
from levelfield.judge.noise import noise_of
from levelfield.judge.verdict import Redaction, judged
from levelfield.node.code_digest import code_digest
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import DAMAGED, event_or_none
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.rundir.seal import OUTCOME, names_something
from levelfield.specs.base import LATER, load
from levelfield.specs.bundle import SealFinding
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import RunRecord
from levelfield.specs.reference import Reference
from levelfield.specs.result import Alignment, Result
from levelfield.specs.short_names import clipped
from levelfield.specs.step_parts import StepParts
from levelfield.store.run_record import record_of

SCHEMA = "levelfield.verification/1"
# What a stated result may lack, as it may be older: the fields with the mark LATER, and a layer of the alignment.
UNSTATED = tuple(name for name, field in Result.model_fields.items() if field.json_schema_extra == LATER)
UNSTATED_LAYER = "norms"
TOLERANCE = 1e-9  # of a number: another machine's library may round the last digit otherwise
_ABSENT = "(absent)"
# What a promoted run left. An older reference may lack the last ones.
_TRAINED = ("identity", "precision", "losses", "grad_norms", "gradients", "weights", "routing", "choices")
CERTIFICATE = "certificate.json"
# Of a plan from elsewhere: the time to recompute grows with them, whatever the raw files hold.
_MOST_LAYERS, _MOST_RECORDS = 10_000, 20_000_000


@dataclass(frozen=True)
class VerifiedRun:
    """A run of a bundle. word: `follows`, `does not follow` or `tampered`.

    redacted: files that are not whole, whose other content is as sealed. unbound: those that the seal says nothing of.
    code: whether the code of the run is the one of this checkout, as a part of a sentence.
    """

    name: str
    seal: SealFinding
    contradictions: tuple[Contradiction, ...]
    notes: tuple[str, ...]
    redacted: tuple[str, ...]
    unbound: tuple[str, ...]
    code: str

    @property
    def word(self) -> str:
        if self.seal.word == "tampered":
            return "tampered"
        return "does not follow" if self.contradictions else "follows"

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "word": self.word,
            "seal": self.seal.model_dump(mode="json"),
            "contradictions": [asdict(each) for each in self.contradictions],
            "code": self.code,
            "notes": list(self.notes),
            "redacted": list(self.redacted),
            "unbound": list(self.unbound),
        }


def verified(bundle: Bundle, known: Registry) -> Iterator[VerifiedRun]:
    """Yield the finding on each run. known: the documents of this checkout; a bundle may need others."""
    return (_verified(run, known, bundle) for run in bundle.runs)


def _verified(run: RunInBundle, known: Registry, bundle: Bundle) -> VerifiedRun:
    notes, code = _of_version(bundle.manifest.platform_version), "not known"
    with written(run) as paths:
        try:
            plan = read_plan(paths)
            _check_size(plan)
            raw = read_raw(paths)
            result = collect(paths, raw, Redaction(run.seal, run.entry.software))
            job, provenance = (event_or_none(run.files.get(name, b"")) for name in ("job.json", "provenance.json"))
            found = [
                *_seal(run),
                *_differences(run, result),
                *_loose(run, raw, result),
                *cross_checked(plan, raw, job, provenance, known),
                *_reference(paths, known, plan, raw, result),
                *_certificate(run, paths, result, bundle.runs),
            ]
            code = _code(plan, known)
        except (DocumentError, *DAMAGED) as error:  # a plan that no plan could be is not the platform's fault
            said = " ".join(str(error).replace(f"{paths.root}/", "").split())
            found = [Contradiction("the run", "a run directory", said)]
    wrong = tuple(each for each in found if isinstance(each, Contradiction))
    notes += tuple(each for each in found if isinstance(each, str))
    unbound = tuple(run.unbound)
    redacted = tuple(name for name in run.redacted if name not in unbound)
    return VerifiedRun(run.name, run.seal, wrong, notes, redacted, unbound, code)


def record_of_files(paths: RunPaths, known: Registry, step: StepParts | None = None) -> RunRecord:
    """Return the record of a run directory, computed from its raw files; `reported` where its facts contradict.

    step: as for `record_of`. Raises DocumentError.
    """
    raw, plan = read_raw(paths), read_plan(paths)
    result = collect(paths, raw)
    record = record_of(paths, result=result, raw=raw, step=step)
    job = event_or_none(read_regular(paths.job)) if paths.job.exists() else None
    found = (*cross_checked(plan, raw, job, raw.provenance, known), *_reference(paths, known, plan, raw, result))
    return next((record.reported(each.text) for each in found if isinstance(each, Contradiction)), record)


def _reference(
    paths: RunPaths, known: Registry, plan: Plan, raw: RawRecords, result: Result
) -> Iterator[Contradiction | str]:
    """Hold the run's reference against the one of this checkout that has its name."""
    if not paths.reference.exists():
        return
    stated = load(Reference, paths.reference)
    if stated.name not in known.references:
        yield f"this checkout has no reference {stated.name}; the verdict rests on the one in the bundle"
        return
    by = partial(judged, plan, raw, result.identity)
    yield from _reference_checked(stated, known.reference(stated.name), by)


def _code(plan: Plan, known: Registry) -> str:
    """Return whether the sealed digest of the code is the one of the code at hand."""
    planned = plan.implementation.rests_on
    if planned is None:
        return "not known: the run is of an earlier version"
    try:
        _, folder = known.implementation(plan.implementation.framework)
        own = code_digest(folder)
    except (LevelfieldError, OSError):
        return f"other code: this checkout has no framework {plan.implementation.framework}"
    return "this code" if own == planned else f"other code: {planned[:19]}, and {own[:19]} in this checkout"


def _loose(run: RunInBundle, raw: RawRecords, result: Result) -> Iterator[str]:
    """Yield a note on each warning of the result whose text no seal holds: it names a place, or a launcher said it."""
    said = set(raw.warnings) if OUTCOME in run.redacted else set()
    for warning in result.warnings:
        if warning in said or (run.redacted and names_something(warning)):
            yield f"no seal holds the text of this warning: {warning}"


def _check_size(plan: Plan) -> None:
    """Raise DocumentError for a plan of more work than any run has."""
    ranks = max(plan.world_size, plan.tuning.layout.world_size)
    layers, records = plan.work.model.layers, plan.work.training.steps * ranks
    if layers > _MOST_LAYERS or records > _MOST_RECORDS:
        raise DocumentError(
            f"plan.json: found {layers:,} layers and {records:,} steps of ranks, expected at most {_MOST_LAYERS:,} and "
            f"{_MOST_RECORDS:,}"
        )


def _seal(run: RunInBundle) -> Iterator[Contradiction]:
    """Yield where the manifest calls the run otherwise than its files do."""
    if run.seal != run.entry.seal:
        yield Contradiction("seal", run.entry.seal.word, f"{run.seal.word} {run.seal.reason or ''}".strip())


def _differences(run: RunInBundle, found: Result) -> Iterator[Contradiction | str]:
    """Yield what of the stated result does not follow from the raw files, and a note on what it need not state."""
    stated = event_or_none(run.files.get(RESULT, b""))
    if stated is None:
        yield Contradiction(RESULT, "missing", "a result")
        return
    if stated.get("schema") != Result.schema_name():
        yield Contradiction(f"{RESULT}: schema", str(stated.get("schema"))[:120], Result.schema_name())
    if found.run_id != run.name:
        yield Contradiction("plan.json: run_id", found.run_id, f"the bundle calls the run {run.name}")
    yield from _not_following({key: value for key, value in stated.items() if key != "schema"}, found)
    if unstated := [name for name in UNSTATED if name not in stated]:
        yield f"not stated: {', '.join(unstated)}"


def _not_following(stated: dict[str, Any], found: Result) -> Iterator[Contradiction]:
    """Yield every place that does not follow. One that is absent states its default."""
    ours, needed = (
        dict(leaves(_without_unstated(found.model_dump(mode="json", exclude_defaults=is_short), stated)))
        for is_short in (False, True)
    )
    theirs = dict(leaves(stated))
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        value, own = theirs.get(name, _ABSENT), ours.get(name, _ABSENT)
        if (name in theirs or name in needed) and not _equal(value, own):
            yield Contradiction(name, _value_text(value), _value_text(own))


def _without_unstated(content: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Return our result without what the first results lack and this one does not state."""
    alignment = stated.get("alignment")
    layers = alignment.get("layers") if isinstance(alignment, dict) else None
    named = [each.get("name") for each in layers if isinstance(each, dict)] if isinstance(layers, list) else []
    ours = content["alignment"]
    if "layers" in ours:
        ours["layers"] = [each for each in ours["layers"] if each["name"] in named or each["name"] != UNSTATED_LAYER]
    return {key: value for key, value in content.items() if key in stated or key not in UNSTATED}


def _equal(stated: Any, found: Any) -> bool:
    """Return whether two values are the same. NaN equals nothing; true is not 1."""
    if (isinstance(stated, float) and isinstance(found, (int, float))) or isinstance(found, float):
        if isinstance(stated, bool) or not isinstance(stated, (int, float)):
            return False
        return abs(stated - found) <= TOLERANCE * abs(found)
    return type(stated) is type(found) and bool(stated == found)


def _value_text(value: Any) -> str:
    return clipped(value if isinstance(value, str) else repr(value), 120)


def _reference_checked(
    stated: Reference, ours: Reference, verdict_by: Callable[[Reference], Alignment]
) -> Iterator[Contradiction | str]:
    """Yield what differs. verdict_by: judges the run by a reference.

    Noise that this checkout does not have may be of a newer one, so it may stay where it changes no verdict.
    """
    theirs, here = verdict_by(stated).verdict, verdict_by(ours).verdict
    if ours.run_id != stated.run_id:
        by_ours = f"; by that one the run is {here}" if here != theirs else ""
        yield f"the reference {stated.name} is of run {stated.run_id}, and this checkout's of {ours.run_id}{by_ours}"
        return
    for key in _TRAINED:
        found, expected = getattr(stated, key), getattr(ours, key)
        if found != expected and found:
            of_run = f"of run {stated.run_id}"
            yield Contradiction(f"reference.json: {key}", of_run, f"this checkout has others of run {ours.run_id}")
    rows = {row.run_id: row for row in ours.noise}
    for row in stated.noise:
        if row.run_id in rows and is_wider(noise_of(row, stated), noise_of(rows[row.run_id], ours)):
            yield Contradiction(f"reference.json: noise of {row.run_id}", "wider", "this checkout has it narrower")
    if here != theirs:
        yield Contradiction("reference.json: verdict by it", theirs, f"{here} by this checkout's {ours.name}")
    elif more := [row.run_id for row in stated.noise if row.run_id not in rows]:
        yield f"{len(more)} row(s) of noise in reference.json are not in this checkout's; the verdict is the same by it"


def _certificate(
    run: RunInBundle, paths: RunPaths, found: Result, runs: Sequence[RunInBundle]
) -> Iterator[Contradiction | str]:
    """Yield what does not follow from the certificate's run. runs: of the bundle. found: what `run` gives here."""
    if CERTIFICATE not in run.files or not (found.certificate and found.certificate.holds):
        return  # one that does not hold makes nothing aligned
    certificate = load(Certificate, paths.certificate)
    own = next((each for each in runs if each.name == certificate.run_id), None)
    if own is None:
        yield (
            f"{CERTIFICATE} rests on run {certificate.run_id}, which is not in this bundle. Its digest has no key: it "
            "shows no edit by someone who makes it again. `evidence bundle` both runs to have it recomputed"
        )
        return
    try:
        with written(own) as folder:
            result = collect(folder, redaction=Redaction(own.seal, own.entry.software))
    except (DocumentError, *DAMAGED) as error:
        yield Contradiction(CERTIFICATE, f"run {own.name}", " ".join(str(error).split())[:120])
        return
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
            yield Contradiction(
                f"{CERTIFICATE}: {name}", str(stated)[:120], f"{str(ours)[:120]} by run {result.run_id}"
            )


def _of_version(version: str) -> tuple[str, ...]:
    if version == levelfield.__version__:
        return ()
    return (f"made by levelfield {version}, recomputed by {levelfield.__version__}: formulas may differ",)
