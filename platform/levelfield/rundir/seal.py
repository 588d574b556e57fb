"""The seal of a run: the digests of its raw files, which are opened without following links, in outcome.json.

A seal shows that a file was changed later. It shows nothing about what was written before it, and whoever makes a new
seal over changed files is not found by it. docs/evidence.md says more.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from levelfield.errors import LevelfieldError
from levelfield.node.regular_files import read_regular
from levelfield.rundir.event_lines import JsonObject, mapping, object_or_none, sequence
from levelfield.specs.base import Value, json_digest, load, sha256_of
from levelfield.specs.bundle import MANIFEST, Manifest, SealFinding
from levelfield.specs.paths import RunPaths

SEAL_KEY = "seal"  # of outcome.json
FACTS_SUFFIX = " without names"  # behind the name of a file: its second digest
VARIABLE_KEYS = ("environment", "variables", "inherited")  # keys of mappings of environment variables
UUID_PATTERN = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
SEAL_VERSION = 3  # of the seals that are made
EXTRA_KEY = "extra"  # of outcome.json: sentences of the launcher
# keys with sentences, or with the name of a user
_NAMING_KEYS = (SEAL_KEY, "by", "evidence", EXTRA_KEY, "submissions", "common_stdin")
# The same, below a key: a bundle whose certificate names a folder has the digests of the certificate without it.
_NAMING_NESTED_KEYS = (
    *(("machine", "name"), ("certificate", "digest"), ("", "digest")),
    *(("launch", "hosts"), ("launch", "site")),
)
# Of an object with the rank of a node and its name: how the machine is called and reached, and sentences about it.
_NAMING_NODE_KEYS = ("name", "hostname", "address", "addresses", "first_node", "boot_id", "interfaces", "detail")
_NAMING_COMMAND_KEYS = ("text", "reason")  # of an object with a command: its output
_MAX_NAMED_FILES = 3  # files in a reason
_UNPACKED_HINT = (
    "It lies in an unpacked bundle, which has other names in place of those of people and machines: read the bundle "
    "itself, FILE.zip, which has the digests before"
)

OUTCOME = "outcome.json"  # holds the seal; its other content is sealed, too
SEALED_FILES = (
    "certificate.json", "job.json", "node_power.jsonl", "plan.json", "preflight.json", "provenance.json",
    "reference.json", "request.json", "telemetry.jsonl",
)  # fmt: skip
# By folder, the ending of the names of its sealed files.
SEALED_FOLDERS = {"events": ".jsonl", "image": "", "logs": "", "nodes": "", "telemetry": ""}
# No figure rests on these: large tensors, and what is computed from the sealed files. The sealed events have the
# digests of the recorded steps.
UNSEALED_NAMES = ("capture", "profile", "weights", "status.json", "result.json", "report.md", "step-parts.json")
_PART_BYTES = 2**20
MAX_SEALED_BYTES = 2**32  # of a file that is sealed: its digest takes seconds


class Seal(Value):
    """What a run left when it ended. digest: of all other digests together.

    files: sha256 by path in the run directory; of outcome.json the digest of its keys besides the seal. Each file
    of JSON has a second digest, of what names no place, person or device: a bundle without such names keeps it.
    left_out: what was there and is not sealed. version: since 2 a second digest also has how many sentences a launcher
    said, so that a bundle adds none; since 3 the digest of all holds `left_out` and the version too.
    """

    version: int = 1
    files: dict[str, str]
    left_out: tuple[str, ...] = ()
    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")


def add_seal(paths: RunPaths, outcome: JsonObject) -> JsonObject:
    """Return the content of outcome.json with its seal. A rank that may still write leaves the run without one."""
    if _may_still_write(outcome):
        return outcome
    files, facts = dict[str, str](), dict[str, str]()
    for name, path in raw_paths(paths.root):
        if not (digest := _file_digest(path)):
            continue
        files[name] = digest
        if name.endswith((".json", ".jsonl")):
            with suppress(OSError):  # what cannot be read as a document has the digest of its bytes alone
                kind = "events" if name.endswith(".jsonl") else "sealed"
                if (content := parse_document(name, read_regular(path, kind))) is not None:
                    facts[f"{name}{FACTS_SUFFIX}"] = facts_digest(content, SEAL_VERSION)
    facts[f"{OUTCOME}{FACTS_SUFFIX}"] = facts_digest(outcome, SEAL_VERSION)
    files |= {OUTCOME: outcome_digest(outcome), **facts}
    left_out = tuple(name for name in UNSEALED_NAMES if (paths.root / name).exists())
    digest = _seal_digest(SEAL_VERSION, files, left_out)
    seal = Seal(version=SEAL_VERSION, files=files, left_out=left_out, digest=digest)
    return {**outcome, SEAL_KEY: seal.model_dump(mode="json")}


def _seal_digest(version: int, files: Mapping[str, str], left_out: Sequence[str]) -> str:
    """Return the digest of a seal's content; before version 3 it is of the files alone."""
    content = {"version": version, "files": files, "left_out": left_out}
    return json_digest(files if version < 3 else content)


def seal_finding(paths: RunPaths) -> SealFinding:
    """Return whether the raw files are those that were sealed when the run ended. It never raises."""
    raw, root = {name: _file_digest(path) for name, path in raw_paths(paths.root)}, paths.root.absolute()
    finding = compare_with_seal(read_document(paths.outcome), raw)
    if finding.word != "tampered":
        return finding
    with suppress(LevelfieldError):  # without a manifest this is no unpacked bundle
        entry = load(Manifest, root.parent.parent / MANIFEST).runs.get(root.name)
        files, present = entry.files if entry else {}, {**raw, OUTCOME: _file_digest(paths.outcome)}
        if all(name in files and digest == files[name].stored for name, digest in present.items()):
            return finding.model_copy(update={"reason": f"{finding.reason}. {_UNPACKED_HINT}"})
    return finding


def compare_with_seal(
    outcome: JsonObject | None,
    raw_digests: Mapping[str, str | None],
    redacted_documents: Mapping[str, Any] | None = None,
    original_outcome_digest: str | None = None,
) -> SealFinding:
    """Return whether files are those of the seal in `outcome`, the content of outcome.json; None: there is none.

    raw_digests: of each other raw file; None for what is not a regular file. redacted_documents: those without names,
    whose second digest counts. original_outcome_digest: before the outcome was redacted.
    """
    present_digests = {name: digest for name, digest in raw_digests.items() if digest}
    present_digests[OUTCOME] = original_outcome_digest or outcome_digest(outcome or {})
    word: Literal["unsealed", "tampered"] = "unsealed"
    if outcome is None:
        reason = "outcome.json is missing or unreadable"
    elif SEAL_KEY not in outcome:
        reason = "outcome.json has no seal: the run is of an earlier version, or its seal was removed"
        if _may_still_write(outcome):
            reason = "a rank did not end and may still write, so the run was not sealed"
        elif outcome.get("cause") == "storage":
            reason = "the run directory could not be written when the run ended, so the run was not sealed"
    elif (stored := stored_seal(outcome)) is None:
        word, reason = "tampered", "the seal in outcome.json is damaged"
    elif differences := _differences(stored, present_digests, redacted_documents or {}):
        word, reason = "tampered", f"changed after the run ended: {differences}"
    elif irregular := [name for name, digest in raw_digests.items() if digest is None]:
        sealable = f"a regular file of at most {MAX_SEALED_BYTES / 2**30:.0f} GiB"
        reason = f"found {', '.join(irregular[:_MAX_NAMED_FILES])}: only {sealable} can be sealed"
    else:
        return SealFinding(word="sealed", digest=stored.digest)
    return SealFinding(word=word, reason=reason, digest=json_digest(present_digests))


def facts_digest(content: Any, version: int) -> str:
    """Return the digest of JSON without what may name a place, a person, a device or a machine.

    version: of the seal.
    """
    try:
        facts = _without_names(content)
        if version > 1 and isinstance(content, dict) and isinstance(extra := content.get(EXTRA_KEY), dict):
            facts[EXTRA_KEY] = {name: len(str(text).splitlines()) for name, text in extra.items()}
        return json_digest(facts)
    except RecursionError:
        return sha256_of(b"nested too deep")  # nothing of ours is; the digest of its file holds it


def _without_names(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        names = [n for n in value if not (n in _NAMING_KEYS or names_something(n) or (key, n) in _NAMING_NESTED_KEYS)]
        is_node = "node_rank" in names and not {"name", "hostname"}.isdisjoint(names)
        naming = _NAMING_NODE_KEYS if is_node else _NAMING_COMMAND_KEYS if "argv" in names else ()
        # a node's `peer` is an address of another node, or null, which earlier seals hold
        names = [n for n in names if n not in naming and not (is_node and n == "peer" and value[n])]
        return sorted(names) if key in VARIABLE_KEYS else {name: _without_names(value[name], name) for name in names}
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    return None if isinstance(value, str) and names_something(value) else value


def names_something(text: str) -> bool:
    """Return whether a text may name a place or a device. A bundle has such a text in another form than the run."""
    return "/" in text or UUID_PATTERN.search(text) is not None


def stored_seal(outcome: JsonObject) -> Seal | None:
    """Return the seal that outcome.json holds; None for one whose digest is not that of its content."""
    try:
        seal = Seal.model_validate(outcome.get(SEAL_KEY))
    except ValidationError:
        return None
    return seal if seal.digest == _seal_digest(seal.version, seal.files, seal.left_out) else None


def _differences(seal: Seal, present_digests: Mapping[str, str], redacted_documents: Mapping[str, Any]) -> str:
    """Return which files differ, were added or are missing, as a part of a sentence; an empty text for none.

    The second digest is computed of redacted files alone: of a whole file it follows from the first.
    """
    stored = seal.files
    facts = {
        f"{name}{FACTS_SUFFIX}": facts_digest(content, seal.version)
        for name, content in sorted(redacted_documents.items())
    }
    first_digests = {name for name in stored if not name.endswith(FACTS_SUFFIX)}
    differences = [f"{name} is missing" for name in sorted(first_digests - present_digests.keys())]
    differences += [f"{name} was added" for name in sorted(present_digests.keys() - first_digests)]
    differences += [
        f"{name} differs"
        for name in sorted(first_digests & present_digests.keys())
        if stored[name] != present_digests[name]
    ]
    differences += [f"{name} differs" for name, digest in facts.items() if stored.get(name, digest) != digest]
    more_words = f" and {len(differences) - _MAX_NAMED_FILES} more" if len(differences) > _MAX_NAMED_FILES else ""
    return ", ".join(differences[:_MAX_NAMED_FILES]) + more_words


def outcome_digest(outcome: JsonObject) -> str:
    """Return the digest of the content of outcome.json without the seal."""
    return json_digest({name: value for name, value in outcome.items() if name != SEAL_KEY})


def _may_still_write(outcome: JsonObject) -> bool:
    """Return whether a rank did not even end by SIGKILL, so that it may still write."""
    return any(mapping(end).get("process") is not None for end in sequence(outcome.get("ends")))


def raw_paths(root: Path) -> Iterator[tuple[str, Path]]:
    """Return every raw file of a run directory but outcome.json, by its path, in order. Links are not followed."""
    for name in SEALED_FILES:
        if os.path.lexists(root / name):
            yield name, root / name
    for folder, ending in sorted(SEALED_FOLDERS.items()):
        if (root / folder).is_symlink():
            yield folder, root / folder
        elif (root / folder).is_dir():
            sealed_paths = []  # and the links to folders, which nothing else may hide behind
            for parent, folders, names in os.walk(root / folder):
                sealed_paths += [Path(parent, name) for name in names if name.endswith(ending)]
                sealed_paths += [Path(parent, name) for name in folders if Path(parent, name).is_symlink()]
            for path in sorted(sealed_paths):  # named as JSON can hold it: bytes that are not UTF-8 are written out
                yield os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace"), path


def regular_descriptor(path: Path) -> int | None:
    """Return a descriptor of a regular file; None for a link, a pipe, a device, and what cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _file_digest(path: Path) -> str | None:
    """Return the digest of a file, which is read once and in parts; None for no regular file, or a larger one."""
    descriptor = regular_descriptor(path)
    if descriptor is None:
        return None
    digest, size = hashlib.sha256(), os.fstat(descriptor).st_size
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while size <= MAX_SEALED_BYTES and (piece := file.read(_PART_BYTES)):
            digest.update(piece)
            size = max(size, file.tell())
    return None if size > MAX_SEALED_BYTES else f"sha256:{digest.hexdigest()}"


def parse_document(name: str, content: bytes) -> Any:
    """Return the object of a .json file, and the objects of the lines of a .jsonl file; None for what is no JSON.

    A line that is no JSON is null: it makes a run invalid anyway.
    """
    if name.endswith(".jsonl"):
        return [object_or_none(line) for line in content.split(b"\n") if line]
    return object_or_none(content)


def read_document(path: Path) -> JsonObject | None:
    """Return the JSON object of a file; None for anything else."""
    try:
        return object_or_none(read_regular(path, "outcome"))
    except OSError:
        return None
