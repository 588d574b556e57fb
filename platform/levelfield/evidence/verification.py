"""Verifies a bundle: recomputes every figure and verdict of its runs from their raw files, offline.

It shows that the stated result follows from the raw files. It cannot show that the raw files are true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError, LevelfieldError
from levelfield.evidence.bundle_reader import RESULT, Bundle, RunInBundle, unpack_run
from levelfield.evidence.packing import json_leaves
from levelfield.judge.admission import is_wider
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction, cross_check
from levelfield.judge.noise import noise_of
from levelfield.judge.verdict import Redaction, training_verdict
from levelfield.node.code_digest import code_digest
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import DAMAGE_ERRORS, object_or_none
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.rundir.seal import OUTCOME, names_something
from levelfield.specs.base import LATER, load
from levelfield.specs.bundle import SealFinding
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import RunRecord
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result
from levelfield.specs.short_names import clipped
from levelfield.specs.step_parts import StepParts
from levelfield.store.run_record import record_of

SCHEMA = "levelfield.verification/1"
# An older stated result may lack these: the fields with the mark LATER, and a layer of the alignment.
OPTIONAL_FIELDS = tuple(name for name, field in Result.model_fields.items() if field.json_schema_extra == LATER)
OPTIONAL_LAYER = "norms"
TOLERANCE = 1e-9  # of a number: another machine's library may round the last digit otherwise
_ABSENT = "(absent)"
# Fields of a reference that come from its promoted run. An older reference may lack the last ones.
_PROMOTED_FIELDS = ("identity", "precision", "losses", "grad_norms", "gradients", "weights", "routing", "choices")
CERTIFICATE_FILE = "certificate.json"
# Of a foreign plan: the time to recompute grows with its numbers, whatever the raw files hold.
_MAX_LAYERS, _MAX_RECORDS = 10_000, 20_000_000


@dataclass(frozen=True)
class RunVerification:
    """The finding on one run of a bundle, whose figures were computed again."""

    name: str
    seal: SealFinding
    contradictions: tuple[Contradiction, ...]
    notes: tuple[str, ...]
    redacted: tuple[str, ...]  # redacted files whose other content is as sealed
    unsealed: tuple[str, ...]  # redacted files that no digest of the seal covers
    code: str  # whether the run had the code of this checkout, as a part of a sentence

    @property
    def conclusion(self) -> str:
        """`follows`, `does not follow` or `tampered`."""
        if self.seal.word == "tampered":
            return "tampered"
        return "does not follow" if self.contradictions else "follows"

    def json_object(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "word": self.conclusion,
            "seal": self.seal.model_dump(mode="json"),
            "contradictions": [asdict(contradiction) for contradiction in self.contradictions],
            "code": self.code,
            "notes": list(self.notes),
            "redacted": list(self.redacted),
            "unbound": list(self.unsealed),
        }


def verify_run(run: RunInBundle, registry: Registry, bundle: Bundle) -> RunVerification:
    """Return the finding on a run of a bundle.

    registry: the documents of this checkout, which may lack some that the bundle's runs name.
    """
    notes: list[str] = []
    code, version = "not known", bundle.manifest.platform_version
    if version != levelfield.__version__:
        notes = [f"made by levelfield {version}, recomputed by {levelfield.__version__}: formulas may differ"]
    with unpack_run(run) as paths:
        try:
            plan = read_plan(paths)
            ranks = max(plan.world_size, plan.tuning.layout.world_size)
            layers, records = plan.work.model.layers, plan.work.training.steps * ranks
            if layers > _MAX_LAYERS or records > _MAX_RECORDS:
                raise DocumentError(
                    f"plan.json: found {layers:,} layers and {records:,} steps of ranks, expected at most "
                    f"{_MAX_LAYERS:,} and {_MAX_RECORDS:,}"
                )
            raw = read_raw(paths)
            result = collect(paths, raw, Redaction(run.seal, run.entry.software))
            job, provenance = (object_or_none(run.files.get(name, b"")) for name in ("job.json", "provenance.json"))
            launcher_warnings = set(raw.warnings) if OUTCOME in run.redacted else set()
            unsealed_warnings = [  # a launcher's sentence, or one that names a place
                warning
                for warning in result.warnings
                if warning in launcher_warnings or (run.redacted and names_something(warning))
            ]
            findings = [
                *_differences(run, result),
                *(f"no seal holds the text of this warning: {warning}" for warning in unsealed_warnings),
                *cross_check(plan, raw, job, provenance, registry),
                *_check_reference(paths, registry, plan, raw, result),
                *_check_certificate(run, paths, result, bundle.runs),
            ]
            if run.seal != run.entry.seal:  # the manifest calls the run otherwise than its files do
                word = f"{run.seal.word} {run.seal.reason or ''}".strip()
                findings.insert(0, Contradiction("seal", run.entry.seal.word, word))
            code = _compare_code(plan, registry)
        except (DocumentError, *DAMAGE_ERRORS) as error:  # a plan that no plan could be is not the platform's fault
            message = " ".join(str(error).replace(f"{paths.root}/", "").split())
            findings = [Contradiction("the run", "a run directory", message)]
    contradictions = tuple(finding for finding in findings if isinstance(finding, Contradiction))
    notes += [finding for finding in findings if isinstance(finding, str)]
    unsealed = tuple(run.unsealed)
    redacted = tuple(name for name in run.redacted if name not in unsealed)
    return RunVerification(run.name, run.seal, contradictions, tuple(notes), redacted, unsealed, code)


def recomputed_record(paths: RunPaths, registry: Registry, step: StepParts | None = None) -> RunRecord:
    """Return the record of a run directory, computed from its raw files; `reported` where its facts contradict.

    step: as for `record_of`. Raises DocumentError.
    """
    raw, plan = read_raw(paths), read_plan(paths)
    result = collect(paths, raw)
    record = record_of(paths, result=result, raw=raw, step=step)
    job = object_or_none(read_regular(paths.job, "job")) if paths.job.exists() else None
    for finding in (
        *cross_check(plan, raw, job, raw.provenance, registry),
        *_check_reference(paths, registry, plan, raw, result),
    ):
        if isinstance(finding, Contradiction):
            return record.mark_reported(finding.text)
    return record


def _check_reference(
    paths: RunPaths, registry: Registry, plan: Plan, raw: RawRecords, result: Result
) -> Iterator[Contradiction | str]:
    """Compare the run's reference with the one of this checkout that has its name."""
    if not paths.reference.exists():
        return
    stated = load(Reference, paths.reference)
    if stated.name not in registry.references:
        yield f"this checkout has no reference {stated.name}; the verdict rests on the one in the bundle"
        return
    own_reference = registry.reference(stated.name)
    verdict, own_verdict = (
        training_verdict(plan, raw, result.identity, reference).verdict for reference in (stated, own_reference)
    )
    if own_reference.run_id != stated.run_id:
        verdict_words = f"; by that one the run is {own_verdict}" if own_verdict != verdict else ""
        runs = f"is of run {stated.run_id}, and this checkout's of {own_reference.run_id}"
        yield f"the reference {stated.name} {runs}{verdict_words}"
        return
    for key in _PROMOTED_FIELDS:
        value = getattr(stated, key)
        if value != getattr(own_reference, key) and value:
            recomputed = f"this checkout has others of run {own_reference.run_id}"
            yield Contradiction(f"reference.json: {key}", f"of run {stated.run_id}", recomputed)
    rows = {row.run_id: row for row in own_reference.noise}
    for row in stated.noise:
        if row.run_id in rows and is_wider(noise_of(row, stated), noise_of(rows[row.run_id], own_reference)):
            yield Contradiction(f"reference.json: noise of {row.run_id}", "wider", "this checkout has it narrower")
    # Noise that this checkout does not have may be of a newer one, so it may stay where it changes no verdict.
    if own_verdict != verdict:
        yield Contradiction(
            "reference.json: verdict by it", verdict, f"{own_verdict} by this checkout's {own_reference.name}"
        )
    elif unknown_rows := [row.run_id for row in stated.noise if row.run_id not in rows]:
        yield (
            f"{len(unknown_rows)} row(s) of noise in reference.json are not in this checkout's; the verdict is the "
            "same by it"
        )


def _compare_code(plan: Plan, registry: Registry) -> str:
    """Return whether the sealed digest of the code is that of this checkout's code, as a part of a sentence."""
    planned = plan.implementation.rests_on
    if planned is None:
        return "not known: the run is of an earlier version"
    try:
        _, folder = registry.implementation(plan.implementation.framework)
        digest = code_digest(folder)
    except (LevelfieldError, OSError):
        return f"other code: this checkout has no framework {plan.implementation.framework}"
    return "this code" if digest == planned else f"other code: {planned[:19]}, and {digest[:19]} in this checkout"


def _differences(run: RunInBundle, result: Result) -> Iterator[Contradiction | str]:
    """Yield each stated value that does not follow from the raw files, and a note on absent optional fields."""
    stated = object_or_none(run.files.get(RESULT, b""))
    if stated is None:
        yield Contradiction(RESULT, "missing", "a result")
        return
    if stated.get("schema") != Result.schema_name():
        yield Contradiction(f"{RESULT}: schema", str(stated.get("schema"))[:120], Result.schema_name())
    if result.run_id != run.name:
        yield Contradiction("plan.json: run_id", result.run_id, f"the bundle calls the run {run.name}")
    claims = {key: value for key, value in stated.items() if key != "schema"}
    recomputed_values, required_values = (
        dict(json_leaves(_without_unstated(result.model_dump(mode="json", exclude_defaults=is_short), claims)))
        for is_short in (False, True)
    )
    stated_values = dict(json_leaves(claims))
    for name in [*recomputed_values, *(name for name in stated_values if name not in recomputed_values)]:
        value, recomputed = stated_values.get(name, _ABSENT), recomputed_values.get(name, _ABSENT)
        is_compared = name in stated_values or name in required_values  # an absent one states its default
        if is_compared and not _is_equal(value, recomputed):
            texts = (value if isinstance(value, str) else repr(value) for value in (value, recomputed))
            yield Contradiction(name, *(clipped(text, 120) for text in texts))
    if unstated := [name for name in OPTIONAL_FIELDS if name not in stated]:
        yield f"not stated: {', '.join(unstated)}"


def _without_unstated(content: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """Return the recomputed result without optional fields that the stated one lacks."""
    alignment = stated.get("alignment")
    layers = alignment.get("layers") if isinstance(alignment, dict) else None
    names = [layer.get("name") for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []
    recomputed = content["alignment"]
    if "layers" in recomputed and OPTIONAL_LAYER not in names:
        recomputed["layers"] = [layer for layer in recomputed["layers"] if layer["name"] != OPTIONAL_LAYER]
    return {key: value for key, value in content.items() if key in stated or key not in OPTIONAL_FIELDS}


def _is_equal(stated: Any, recomputed: Any) -> bool:
    """Return whether two values are the same. NaN equals nothing; true is not 1."""
    if (isinstance(stated, float) and isinstance(recomputed, (int, float))) or isinstance(recomputed, float):
        if isinstance(stated, bool) or not isinstance(stated, (int, float)):
            return False
        return abs(stated - recomputed) <= TOLERANCE * abs(recomputed)
    return type(stated) is type(recomputed) and bool(stated == recomputed)


def _check_certificate(
    run: RunInBundle, paths: RunPaths, result: Result, runs: Sequence[RunInBundle]
) -> Iterator[Contradiction | str]:
    """Yield what does not follow from the certificate's run. runs: of the bundle. result: what `run` gives here."""
    if CERTIFICATE_FILE not in run.files or not (result.certificate and result.certificate.holds):
        return  # one that does not hold makes nothing aligned
    certificate = load(Certificate, paths.certificate)
    certifying_run = next((member for member in runs if member.name == certificate.run_id), None)
    if certifying_run is None:
        yield (
            f"{CERTIFICATE_FILE} rests on run {certificate.run_id}, which is not in this bundle. Its digest has no "
            "key: it shows no edit by someone who makes it again. `evidence bundle` both runs to have it recomputed"
        )
        return
    try:
        with unpack_run(certifying_run) as folder:
            recomputed = collect(folder, redaction=Redaction(certifying_run.seal, certifying_run.entry.software))
    except (DocumentError, *DAMAGE_ERRORS) as error:
        yield Contradiction(CERTIFICATE_FILE, f"run {certifying_run.name}", " ".join(str(error).split())[:120])
        return
    facts = {
        "the run's word": ("valid", recomputed.status.word),
        "verdict": (certificate.verdict, recomputed.alignment.verdict),
        "scale": (certificate.scale, recomputed.scale),
        "precision": (certificate.precision, recomputed.precision),
        "framework": (certificate.subject.framework, recomputed.framework),
        "framework_version": (certificate.framework_version, recomputed.framework_version),
        "chip": (certificate.subject.chip, recomputed.chip),
        "work": (certificate.subject.work, recomputed.identity.work),
        "layers": (certificate.layers, recomputed.alignment.layers),
    }
    for name, (stated, recomputed_value) in facts.items():
        if stated != recomputed_value:
            text = f"{str(recomputed_value)[:120]} by run {recomputed.run_id}"
            yield Contradiction(f"{CERTIFICATE_FILE}: {name}", str(stated)[:120], text)
