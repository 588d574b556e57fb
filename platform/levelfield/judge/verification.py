"""Verifies a bundle: recomputes every figure and verdict of its runs from their raw files, offline.

It shows that the stated result follows from the raw files. It cannot show that the raw files are true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.errors import DocumentError
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction, RunFacts, cross_checked
from levelfield.judge.packing import leaves
from levelfield.judge.sealing import Redaction
from levelfield.rundir.bundle_reader import RESULT, Bundle, RunInBundle, written
from levelfield.rundir.directory import read_plan
from levelfield.rundir.event_lines import DAMAGED, event_or_none
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.base import LATER, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result, SealFinding

SCHEMA = "levelfield.verification/1"
TOLERANCE = 1e-9  # of a number: another machine's library may round the last digit otherwise
_ABSENT = "(absent)"
# Of a plan from elsewhere: the time to recompute grows with them, whatever the raw files hold.
_MOST_LAYERS, _MOST_RECORDS = 10_000, 20_000_000


@dataclass(frozen=True)
class VerifiedRun:
    """A run of a bundle. word: `follows`, `does not follow` or `tampered`.

    redacted: files that are not whole, whose other content is as sealed. unbound: those that the seal says nothing of.
    """

    name: str
    seal: SealFinding
    contradictions: tuple[Contradiction, ...]
    notes: tuple[str, ...]
    redacted: tuple[str, ...]
    unbound: tuple[str, ...]

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
            "notes": list(self.notes),
            "redacted": list(self.redacted),
            "unbound": list(self.unbound),
        }


def verified(bundle: Bundle, known: Registry) -> Iterator[VerifiedRun]:
    """Yield the finding on each run. known: the documents of this checkout, of which none has to be there."""
    for run in bundle.runs:
        notes = _of_version(bundle.manifest.platform_version)
        yield _verified(run, known, notes)


def _verified(run: RunInBundle, known: Registry, notes: tuple[str, ...]) -> VerifiedRun:
    with written(run) as paths:
        try:
            found, checked = _recomputed(run, paths, known)
            wrong = (*_seal(run), *_differences(run, found, bool(notes)), *checked.contradictions)
            notes = (*notes, *checked.notes)
        except (DocumentError, *DAMAGED) as error:  # a plan that no plan could be is not the platform's fault
            said = " ".join(str(error).replace(f"{paths.root}/", "").split())
            wrong = (Contradiction("the run", "a run directory", said),)
    unbound = tuple(run.unbound)
    redacted = tuple(name for name in run.redacted if name not in unbound)
    return VerifiedRun(run.name, run.seal, wrong, notes, redacted, unbound)


def _recomputed(run: RunInBundle, paths: RunPaths, known: Registry) -> Any:
    plan = read_plan(paths)
    _check_size(plan)
    result = collect(paths, redaction=Redaction(run.seal, run.listed.software))
    job, provenance = (event_or_none(run.files.get(name, b"")) for name in ("job.json", "provenance.json"))
    reference = load(Reference, paths.reference) if paths.reference.exists() else None
    return result, cross_checked(RunFacts(plan, read_raw(paths), job, provenance, reference), known)


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
    if run.seal != run.listed.seal:
        yield Contradiction("seal", run.listed.seal.word, f"{run.seal.word} {run.seal.reason or ''}".strip())


def _differences(run: RunInBundle, found: Result, is_other_version: bool) -> Iterator[Contradiction]:
    """Yield every field of the stated result that does not follow from the raw files."""
    stated = event_or_none(run.files.get(RESULT, b""))
    if stated is None:
        yield Contradiction(RESULT, "missing", "a result")
        return
    if stated.get("schema") != Result.schema_name():
        yield Contradiction(f"{RESULT}: schema", _said(stated.get("schema")), Result.schema_name())
    if found.run_id != run.name:
        yield Contradiction("plan.json: run_id", found.run_id, f"the bundle calls the run {run.name}")
    yield from _by_field(stated, found, is_other_version)


def _by_field(stated: Mapping[str, Any], found: Result, is_other_version: bool) -> Iterator[Contradiction]:
    ours = dict(leaves(found.model_dump(mode="json")))
    theirs = dict(leaves({key: value for key, value in stated.items() if key != "schema"}))
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        key = name.partition(".")[0]
        if key not in stated and (is_other_version or _says_nothing(found, key)):
            continue  # a field that the other version, or the code of its day, did not have
        if not _equal(theirs.get(name, _ABSENT), ours.get(name, _ABSENT)):
            yield Contradiction(name, _said(theirs.get(name, _ABSENT)), _said(ours.get(name, _ABSENT)))


def _says_nothing(found: Result, key: str) -> bool:
    """Return whether a field came after the first results and is null for this run."""
    field = Result.model_fields.get(key)
    return field is not None and field.json_schema_extra == LATER and getattr(found, key) is None


def _equal(stated: Any, found: Any) -> bool:
    """Return whether two values are the same. NaN equals nothing; true is not 1."""
    if (isinstance(stated, float) and isinstance(found, (int, float))) or isinstance(found, float):
        if isinstance(stated, bool) or not isinstance(stated, (int, float)):
            return False
        return abs(stated - found) <= TOLERANCE * abs(found)
    return type(stated) is type(found) and bool(stated == found)


def _said(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _of_version(version: str) -> tuple[str, ...]:
    if version == levelfield.__version__:
        return ()
    return (f"made by levelfield {version}, recomputed by {levelfield.__version__}: formulas may differ",)
