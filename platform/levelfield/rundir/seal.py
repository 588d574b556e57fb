"""The seal of a run: the digests of its raw files, written into outcome.json when the run ends.

A seal shows that a file was changed later. It shows nothing about what was written before it, and whoever makes a new
seal over changed files is not found by it. docs/evidence.md says more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from levelfield.rundir.event_lines import Event, event_or_none
from levelfield.specs.base import Value
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import SealFinding

KEY = "seal"  # of outcome.json
OUTCOME = "outcome.json"
FACTS = " without names"  # behind the name of a document: its second digest
VARIABLES = ("environment", "variables", "inherited")  # keys of mappings of environment variables
DEVICE = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")  # the identity of a device
_NAMING = (KEY, "by", "evidence", "extra")  # keys with sentences, or with the name of a user
FILES = (
    "certificate.json", "job.json", "plan.json", "provenance.json", "reference.json", "request.json", "telemetry.jsonl",
)  # fmt: skip
FOLDERS = {"events": ".jsonl", "image": "", "logs": "", "nodes": ""}  # with the ending of their sealed files
# What no figure rests on: tensors that are large, and what is computed from the sealed files.
LEFT_OUT = ("capture", "weights", "status.json", "result.json", "report.md")
# The same, below a key: a bundle whose certificate names a folder has the digests of the certificate without it.
_NAMING_BELOW = (("machine", "name"), ("certificate", "digest"), ("", "digest"))
_NAMED = 3  # files in a reason
_PART_BYTES = 2**20


class Seal(Value):
    """What a run left when it ended. digest: of all other digests together.

    files: sha256 by path in the run directory; of outcome.json the digest of its keys besides the seal. Each file
    of JSON has a second digest, of what names no place, person or device: a bundle without such names keeps it.
    left_out: what was there and is not sealed.
    """

    version: int = 1
    files: dict[str, str]
    left_out: tuple[str, ...] = ()
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")


def sealed(paths: RunPaths, outcome: Event) -> Event:
    """Return the content of outcome.json with its seal. A rank that may still write leaves the run without one."""
    return outcome if _may_still_write(outcome) else {**outcome, KEY: seal_of(paths, outcome).model_dump(mode="json")}


def seal_of(paths: RunPaths, outcome: Event) -> Seal:
    """Return the seal of the files as they are. outcome: the content of outcome.json."""
    found = dict(_digests(paths))
    facts = {name: facts_digest(document) for name, document in {**_documents(paths, found), OUTCOME: outcome}.items()}
    files = _present(found, outcome) | {f"{name}{FACTS}": digest for name, digest in facts.items()}
    left_out = tuple(name for name in LEFT_OUT if (paths.root / name).exists())
    return Seal(files=files, left_out=left_out, digest=digest_of(files))


def seal_finding(paths: RunPaths) -> SealFinding:
    """Return whether the raw files are those that were sealed when the run ended. Nothing raises."""
    return finding_of(_document(paths.outcome), dict(_digests(paths)))


def finding_of(
    outcome: Event | None,
    found: Mapping[str, str | None],
    redacted: Mapping[str, Any] | None = None,
    own: str | None = None,
) -> SealFinding:
    """Return whether files are those of the seal in `outcome`, the content of outcome.json; None: there is none.

    found: the digest of each other raw file; None for what is not a regular file. redacted: the documents without
    names, whose second digest counts. own: the digest of the outcome before it was redacted.
    """
    present = _present(found, outcome or {}) | ({OUTCOME: own} if own else {})
    if outcome is None:
        return _unsealed("outcome.json is missing or unreadable", present)
    if KEY not in outcome:
        return _unsealed(_why_none(outcome), present)
    stored = stored_seal(outcome)
    if stored is None:
        return tampered("the seal in outcome.json is damaged", present)
    if differs := _differences(stored.files, present, redacted or {}):
        return tampered(f"changed after the run ended: {differs}", present)
    if irregular := [name for name, digest in found.items() if digest is None]:
        return _unsealed(f"found {', '.join(irregular[:_NAMED])}: only a regular file can be sealed", present)
    return SealFinding(word="sealed", digest=stored.digest)


def _present(found: Mapping[str, str | None], outcome: Event) -> dict[str, str]:
    """Return the digests of the regular files and of the outcome."""
    return {**{name: digest for name, digest in found.items() if digest}, OUTCOME: outcome_digest(outcome)}


def facts_digest(document: Any) -> str:
    """Return the digest of JSON without what may name a place, a person, a device or a machine."""
    return _sha256(json.dumps(_unnamed(document), sort_keys=True, separators=(",", ":")).encode())


def _unnamed(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in _NAMING and not _is_name(name)}
        kept = {name: each for name, each in kept.items() if (key, name) not in _NAMING_BELOW}
        return sorted(kept) if key in VARIABLES else {name: _unnamed(each, name) for name, each in kept.items()}
    if isinstance(value, list):
        return [_unnamed(each) for each in value]
    return None if isinstance(value, str) and _is_name(value) else value


def _is_name(text: str) -> bool:
    return "/" in text or DEVICE.search(text) is not None


def _unsealed(reason: str, present: dict[str, str]) -> SealFinding:
    return SealFinding(word="unsealed", reason=reason, digest=digest_of(present))


def tampered(reason: str, present: dict[str, str]) -> SealFinding:
    return SealFinding(word="tampered", reason=reason, digest=digest_of(present))


def stored_seal(outcome: Event) -> Seal | None:
    """Return the seal that outcome.json holds; None for one whose own digest is not that of its files."""
    try:
        found = Seal.model_validate(outcome.get(KEY))
    except ValidationError:
        return None
    return found if found.digest == digest_of(found.files) else None


def _differences(stored: Mapping[str, str], present: Mapping[str, str], redacted: Mapping[str, Any]) -> str:
    """Return which files differ, were added or are missing, as a part of a sentence; an empty text for none.

    Of a whole file the second digest follows from the first, so it is not computed.
    """
    whole = {name for name in stored if not name.endswith(FACTS)}
    said = [f"{name} is missing" for name in sorted(whole - present.keys())]
    said += [f"{name} was added" for name in sorted(present.keys() - whole)]
    said += [f"{name} differs" for name in sorted(whole & present.keys()) if stored[name] != present[name]]
    facts = {f"{name}{FACTS}": facts_digest(document) for name, document in sorted(redacted.items())}
    said += [f"{name} differs" for name, digest in facts.items() if stored.get(name, digest) != digest]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def digest_of(files: Mapping[str, str]) -> str:
    """Return one digest of all digests."""
    return _sha256(json.dumps({**files}, sort_keys=True, separators=(",", ":")).encode())


def outcome_digest(outcome: Event) -> str:
    """Return the digest of what outcome.json says besides the seal."""
    content = {name: value for name, value in outcome.items() if name != KEY}
    return _sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def raw_paths(root: Path) -> Iterator[tuple[str, Path]]:
    """Return every raw file of a run directory but outcome.json, by its path, in order. Links are not followed."""
    for name in FILES:
        if os.path.lexists(root / name):
            yield name, root / name
    for folder, ending in sorted(FOLDERS.items()):
        if (root / folder).is_symlink():
            yield folder, root / folder
        elif (root / folder).is_dir():
            yield from _below(root, folder, ending)


def opened(path: Path) -> int | None:
    """Return a descriptor of a regular file; None for a link, a pipe, a device, and what cannot be read."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(found).st_mode):
        return found
    os.close(found)
    return None


def _below(root: Path, folder: str, ending: str) -> Iterator[tuple[str, Path]]:
    """Return the files below a folder, and the links to folders, which nothing else may hide behind."""
    found = []
    for place, folders, names in os.walk(root / folder):
        found += [Path(place, name) for name in names if name.endswith(ending)]
        found += [Path(place, name) for name in folders if Path(place, name).is_symlink()]
    yield from ((_shown(path.relative_to(root)), path) for path in sorted(found))


def _shown(path: Path) -> str:
    """Return the name as JSON can hold it: bytes that are not UTF-8 are written out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _digests(paths: RunPaths) -> Iterator[tuple[str, str | None]]:
    """Return the digest of each raw file; None for what is not a regular file."""
    for name, path in raw_paths(paths.root):
        yield name, _file_digest(path)


def _file_digest(path: Path) -> str | None:
    """Return the digest of a file, which is read once and in parts; None as `opened` does."""
    descriptor = opened(path)
    if descriptor is None:
        return None
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _documents(paths: RunPaths, found: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the content of every regular file that is JSON, by its name."""
    named = {
        name: path for name, path in raw_paths(paths.root) if found.get(name) and name.endswith((".json", ".jsonl"))
    }
    contents = {name: document_of(name, path.read_bytes()) for name, path in named.items()}
    return {name: content for name, content in contents.items() if content is not None}


def document_of(name: str, content: bytes) -> Any:
    """Return the object of a .json file, and the objects of the lines of a .jsonl file; None for what is no JSON.

    A line that is no JSON is null: it makes a run invalid anyway.
    """
    if name.endswith(".jsonl"):
        return [event_or_none(line) for line in content.split(b"\n") if line]
    return event_or_none(content)


def _document(path: Path) -> Event | None:
    try:
        return event_or_none(path.read_bytes())
    except OSError:
        return None


def _may_still_write(outcome: Event) -> bool:
    """Return whether a rank was left that did not end by SIGKILL."""
    ends = outcome.get("ends")
    found: list[Any] = ends if isinstance(ends, list) else []
    return any(isinstance(end, dict) and end.get("process") is not None for end in found)


def _why_none(outcome: Event) -> str:
    if _may_still_write(outcome):
        return "a rank did not end and may still write, so the run was not sealed"
    return "outcome.json has no seal: the run is of an earlier version, or its seal was removed"
