"""Holds what a bundle states, its result, reference and certificate, against what this checkout has or computes again.

A result is held by the fields that its maker's platform had. A field that came later cannot be in an older bundle, so
each is marked with the revision of the result that it came with. Every other field has to be there, whatever version
the bundle claims to be of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from levelfield.errors import DocumentError
from levelfield.judge.admission import is_wider
from levelfield.judge.collector import collect
from levelfield.judge.cross_checks import Contradiction
from levelfield.judge.noise import noise_of
from levelfield.judge.packing import leaves
from levelfield.judge.verdict import Redaction
from levelfield.rundir.bundle_reader import RunInBundle, written
from levelfield.rundir.event_lines import DAMAGED
from levelfield.specs.base import load, models_of, revision_of
from levelfield.specs.certificate import Certificate
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference
from levelfield.specs.result import LATER_LAYERS, Alignment, Result

TOLERANCE = 1e-9  # of a number: another machine's library may round the last digit otherwise
_ABSENT = "(absent)"
_PART = re.compile(r"[^.\[\]]+")
# What a promoted run left. An older reference may lack the last ones.
_TRAINED = ("identity", "precision", "losses", "grad_norms", "gradients", "weights", "routing", "choices")

CERTIFICATE = "certificate.json"


@dataclass(frozen=True)
class StatedResult:
    """What a bundle states of a run. revision: of the result's fields, by its manifest; 0 before there was one.

    is_other_version: whether another version of the platform made it.
    """

    content: Mapping[str, Any]
    revision: int
    is_other_version: bool

    def differences(self, found: Result) -> Iterator[Contradiction]:
        """Yield every field of the stated result that does not follow."""
        for name, stated, ours, _ in self._compared(found):
            if not _equal(stated, ours):
                yield Contradiction(name, _said(stated), _said(ours))

    def left_out(self, found: Result) -> list[str]:
        """Return the fields with a value that the bundle lacks because they came later."""
        named = (later for *_, ours, later in self._compared(found) if later and ours is not None)
        return list(dict.fromkeys(named))

    def _compared(self, found: Result) -> Iterator[tuple[str, Any, Any, str | None]]:
        """Yield each place with both values; of a field that came later our value twice, and the field's name."""
        content = self._without_later_layers(found.model_dump(mode="json"))
        ours = dict(leaves(content))
        theirs = dict(leaves({key: value for key, value in self.content.items() if key != "schema"}))
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            later = None
            if name not in theirs:
                with suppress(LookupError, TypeError, ValueError):  # a key with a point in it, such as a variable's
                    later = self._later(name, content)
            value = ours.get(name, _ABSENT)
            yield name, value if later else theirs.get(name, _ABSENT), value, later

    def _without_later_layers(self, content: dict[str, Any]) -> dict[str, Any]:
        """Return our result without the layers of the verdict that the bundle's platform did not have yet."""
        stated = self.content.get("alignment")
        named = [each.get("name") for each in (stated or {}).get("layers") or [] if isinstance(each, Mapping)]
        later = {name for name, since in LATER_LAYERS.items() if self.revision < since and name not in named}
        if isinstance(content.get("alignment"), dict):
            layers = content["alignment"]["layers"]
            content["alignment"]["layers"] = [each for each in layers if each["name"] not in later]
        return content

    def _later(self, name: str, ours: Any) -> str | None:
        """Return the field on the way to a place that the stated result lacks and may lack; None where it may not."""
        types: list[type[BaseModel]] = [Result]
        stated, path = self.content, list[str]()
        for part in _PART.findall(name):
            path.append(part)
            ours = ours[int(part)] if isinstance(ours, list) else ours[part]
            fields = [kind.model_fields[part] for kind in types if part in kind.model_fields]
            if isinstance(stated, Mapping) and part not in stated:
                since = [revision_of(field) for field in fields]
                return ".".join(path) if since and all(self._may_lack(each, ours) for each in since) else None
            if isinstance(stated, list) and int(part) >= len(stated):
                return None
            stated = stated[int(part)] if isinstance(stated, list) else stated[part]
            types = [kind for field in fields for kind in models_of(field.annotation)] or types
        return None

    def _may_lack(self, since: int | None, ours: Any) -> bool:
        """since: the revision that a field came with; 0: before revisions were counted; None: it was always there."""
        if since is None or ours is None:
            return since is not None  # a later field that says nothing
        return self.revision < since or (self.revision == 0 and self.is_other_version)


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


def reference_checked(
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


def certificate_checked(
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
            result = collect(folder, redaction=Redaction(own.seal, own.listed.software))
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
