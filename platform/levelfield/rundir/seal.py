"""The seal of a run: the digests of its raw files, written into outcome.json when the run ends.

A seal shows that a file was changed later. It shows nothing about what was written before it, and whoever makes a new
seal over changed files is not found by it. docs/evidence.md says more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from levelfield.rundir.event_lines import Event
from levelfield.rundir.sealed_files import LEFT_OUT, MOST_SEALED_BYTES, OUTCOME, digests, document, documents, sha256_of
from levelfield.specs.base import Value
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import SealFinding

KEY = "seal"  # of outcome.json
FACTS = " without names"  # behind the name of a file: its second digest
VARIABLES = ("environment", "variables", "inherited")  # keys of mappings of environment variables
DEVICE = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")  # the identity of a device
VERSION = 2  # of the seals that are made
EXTRA = "extra"  # of outcome.json: sentences of the launcher
_NAMING = (KEY, "by", "evidence", EXTRA, "submissions")  # keys with sentences, or with the name of a user
# The same, below a key: a bundle whose certificate names a folder has the digests of the certificate without it.
_NAMING_BELOW = (
    *(("machine", "name"), ("certificate", "digest"), ("", "digest")),
    *(("launch", "hosts"), ("launch", "site")),
)
# Of an object with the rank of a node and its name: how the machine is called and reached, and sentences about it.
_NAMING_NODE = ("name", "hostname", "address", "addresses", "first_node", "boot_id", "interfaces", "detail")
_SAID = ("text", "reason")  # by a command
_NAMED = 3  # files in a reason


class Seal(Value):
    """What a run left when it ended. digest: of all other digests together.

    files: sha256 by path in the run directory; of outcome.json the digest of its keys besides the seal. Each file
    of JSON has a second digest, of what names no place, person or device: a bundle without such names keeps it.
    left_out: what was there and is not sealed. version: since 2 a second digest also has how many sentences a launcher
    said, so that a bundle adds none.
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
    found = digests(paths)
    every = {**documents(paths, found), OUTCOME: outcome}
    facts = {name: facts_digest(document, VERSION) for name, document in every.items()}
    files = _present(found, outcome) | {f"{name}{FACTS}": digest for name, digest in facts.items()}
    left_out = tuple(name for name in LEFT_OUT if (paths.root / name).exists())
    return Seal(version=VERSION, files=files, left_out=left_out, digest=digest_of(files))


def seal_finding(paths: RunPaths) -> SealFinding:
    """Return whether the raw files are those that were sealed when the run ended. Nothing raises."""
    return finding_of(document(paths.outcome), digests(paths))


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
    facts = {f"{name}{FACTS}": facts_digest(each, stored.version) for name, each in sorted((redacted or {}).items())}
    if differs := _differences(stored.files, present, facts):
        return tampered(f"changed after the run ended: {differs}", present)
    if irregular := [name for name, digest in found.items() if digest is None]:
        sealable = f"a regular file of at most {MOST_SEALED_BYTES / 2**30:.0f} GiB"
        return _unsealed(f"found {', '.join(irregular[:_NAMED])}: only {sealable} can be sealed", present)
    return SealFinding(word="sealed", digest=stored.digest)


def _present(found: Mapping[str, str | None], outcome: Event) -> dict[str, str]:
    """Return the digests of the regular files and of the outcome."""
    return {**{name: digest for name, digest in found.items() if digest}, OUTCOME: outcome_digest(outcome)}


def facts_digest(document: Any, version: int) -> str:
    """Return the digest of JSON without what may name a place, a person, a device or a machine.

    version: of the seal.
    """
    found = _unnamed(document)
    if version > 1 and isinstance(document, dict) and isinstance(extra := document.get(EXTRA), dict):
        found[EXTRA] = {name: len(str(text).splitlines()) for name, text in extra.items()}
    return sha256_of(json.dumps(found, sort_keys=True, separators=(",", ":")).encode())


def _unnamed(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in _NAMING and not names_something(name)}
        kept = {name: each for name, each in kept.items() if (key, name) not in _NAMING_BELOW}
        naming = _naming(kept)
        kept = {name: each for name, each in kept.items() if name not in naming}
        return sorted(kept) if key in VARIABLES else {name: _unnamed(each, name) for name, each in kept.items()}
    if isinstance(value, list):
        return [_unnamed(each) for each in value]
    return None if isinstance(value, str) and names_something(value) else value


def _naming(value: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys of an object that name a machine: of a node, and of a command with its output."""
    if "node_rank" in value and value.keys() & {"name", "hostname"}:
        return _NAMING_NODE
    return _SAID if "argv" in value else ()


def names_something(text: str) -> bool:
    """Return whether a text may name a place or a device. A bundle has such a text in another form than the run."""
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


def _differences(stored: Mapping[str, str], present: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Return which files differ, were added or are missing, as a part of a sentence; an empty text for none.

    facts: the second digests of redacted files. Of a whole file it follows from the first, so it is not computed.
    """
    whole = {name for name in stored if not name.endswith(FACTS)}
    said = [f"{name} is missing" for name in sorted(whole - present.keys())]
    said += [f"{name} was added" for name in sorted(present.keys() - whole)]
    said += [f"{name} differs" for name in sorted(whole & present.keys()) if stored[name] != present[name]]
    said += [f"{name} differs" for name, digest in facts.items() if stored.get(name, digest) != digest]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def digest_of(files: Mapping[str, str]) -> str:
    """Return one digest of all digests."""
    return sha256_of(json.dumps({**files}, sort_keys=True, separators=(",", ":")).encode())


def outcome_digest(outcome: Event) -> str:
    """Return the digest of what outcome.json says besides the seal."""
    content = {name: value for name, value in outcome.items() if name != KEY}
    return sha256_of(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _may_still_write(outcome: Event) -> bool:
    """Return whether a rank was left that did not end by SIGKILL."""
    ends = outcome.get("ends")
    found: list[Any] = ends if isinstance(ends, list) else []
    return any(isinstance(end, dict) and end.get("process") is not None for end in found)


def _why_none(outcome: Event) -> str:
    if _may_still_write(outcome):
        return "a rank did not end and may still write, so the run was not sealed"
    if outcome.get("cause") == "storage":
        return "the run directory could not be written when the run ended, so the run was not sealed"
    return "outcome.json has no seal: the run is of an earlier version, or its seal was removed"
