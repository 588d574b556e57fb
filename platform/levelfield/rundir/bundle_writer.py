"""Makes a bundle: the raw files of runs with placeholders for what names people, machines and places, in one archive.

The same runs give the same bytes. Links are never followed.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import os
import platform
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import levelfield
from levelfield.checkout import checkout
from levelfield.errors import GateFailed, UsageError
from levelfield.rundir import bundle_format
from levelfield.rundir.bundle_format import FILE_NAME, MANIFEST, SIGNATURE, BundledFile, BundledRun, Manifest
from levelfield.rundir.event_lines import DAMAGED, Event, event_or_none
from levelfield.rundir.placeholders import Placeholders, json_like, users_in, words_of
from levelfield.rundir.seal import FILES, OUTCOME, finding_of, opened, outcome_digest, raw_paths
from levelfield.specs.base import dump
from levelfield.specs.certificate import Certificate, CertificateSubject
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import AlignmentLayer, SealFinding

TAIL_BYTES = 2**20  # what is kept of a log; a run's evidence is its last line
_PART_BYTES = 2**20
_LOGS = ("logs/", "image/build.log")


@dataclass(frozen=True)
class ReadFile:
    """A file of a run directory. content: its bytes, of a long log the last ones. cut: the bytes before them."""

    digest: str
    content: bytes
    cut: int = 0


@dataclass(frozen=True)
class ReadRun:
    """A run directory in memory. files: by path in it. seal: the finding on exactly these bytes."""

    name: str
    files: dict[str, ReadFile]
    seal: SealFinding


@dataclass(frozen=True)
class RedactedRun:
    """A run as a bundle holds it."""

    name: str
    files: dict[str, bytes]
    entries: dict[str, BundledFile]
    seal: SealFinding


def read_run(paths: RunPaths, name: str) -> ReadRun:
    """Return a run directory's raw files, each read once. Raises GateFailed for a tampered run.

    Raises UsageError for a file that is no regular file, and for one that is too large.
    """
    named = [*raw_paths(paths.root), *([(OUTCOME, paths.outcome)] if os.path.lexists(paths.outcome) else ())]
    files = {shown: _read(shown, path) for shown, path in named}
    outcome = event_or_none(files[OUTCOME].content) if OUTCOME in files else None
    found = finding_of(outcome, {shown: file.digest for shown, file in files.items() if shown != OUTCOME})
    if found.word == "tampered":
        raise GateFailed(f"{name} is tampered: {found.reason}; a bundle needs the files that the run left")
    if outcome is not None:
        files[OUTCOME] = replace(files[OUTCOME], digest=outcome_digest(outcome))
    return ReadRun(name, files, found)


def placeholders_of(runs: Sequence[ReadRun]) -> Placeholders:
    """Return the placeholders for all runs of a bundle: their folders, hosts and users, and those of this machine."""
    documents = [
        {name: event_or_none(run.files[name].content) for name in run.files if name.endswith(".json")} for run in runs
    ]
    roots = {place: name for each in documents for place, name in _roots(each)}
    texts = (f.content.decode(errors="replace") for run in runs for n, f in run.files.items() if n.startswith(_LOGS))
    users = {user for text in (*texts, json.dumps(documents, ensure_ascii=False)) for user in users_in(text)}
    users |= {*_own_names(), *(by for each in documents for by in _by(each.get("reference.json")))}
    hosts = {platform.node(), *(_host(each.get("provenance.json")) for each in documents)}
    words = {word for each in documents for word in words_of(each.get("plan.json"))}
    own = {str(checkout()): "checkout", str(Path.home()): "home"}
    return Placeholders({**own, **roots}, hosts, users, words)


def redacted_run(run: ReadRun, placeholders: Placeholders) -> RedactedRun:
    """Return the run with placeholders. A file that needs none keeps its bytes."""
    files: dict[str, bytes] = {}
    entries = {}
    for name, file in run.files.items():
        before = placeholders.counts.total()
        content = _redacted(name, file.content, placeholders)
        fits = FILE_NAME.fullmatch(name)
        entries[name] = BundledFile(
            original=file.digest,
            stored=sha256_of(content) if fits else None,
            replaced=placeholders.counts.total() - before,
            cut=file.cut,
        )
        files |= {name: content} if fits else {}
    return _with_certificate(RedactedRun(run.name, files, entries, run.seal))


def _with_certificate(run: RedactedRun) -> RedactedRun:
    """Return the run whose redacted certificate has the digest of its own content, also in the plan that names it."""
    name, plan = "certificate.json", "plan.json"
    document = event_or_none(run.files.get(name, b""))
    if document is None or run.entries[name].is_whole:
        return run
    with suppress(*DAMAGED):
        sealed_again = _resealed(document)
        new, old = sealed_again.digest.encode(), str(document["digest"]).encode()
        files = {**run.files, name: dump(sealed_again).encode(), plan: run.files[plan].replace(old, new)}
        stored = {
            each: run.entries[each].model_copy(update={"stored": sha256_of(files[each])}) for each in (name, plan)
        }
        return replace(run, files=files, entries={**run.entries, **stored})
    return run  # a damaged one, which does not hold before or after


def _resealed(document: Event) -> Certificate:
    layers = tuple(AlignmentLayer.model_validate(each) for each in document["layers"])
    subject = CertificateSubject.model_validate(document["subject"])
    kept = {key: each for key, each in document.items() if key not in ("schema", "digest", "subject", "layers")}
    return Certificate.seal(**kept, subject=subject, layers=layers)


def manifest_of(runs: Mapping[str, BundledRun], placeholders: Placeholders) -> Manifest:
    """Return the manifest with its digest."""
    listed = [
        bundle_format.Replacement(kind=kind, placeholder=text, times=times)
        for (kind, text), times in sorted(placeholders.counts.items())
    ]
    draft = Manifest(
        platform_version=levelfield.__version__,
        runs=dict(runs),
        replacements=tuple(listed),
        kept=placeholders.kept,
        digest="",
    )
    return draft.model_copy(update={"digest": draft.content_digest})


def members_of(manifest: bytes, runs: Sequence[RedactedRun], signature: bytes | None) -> dict[str, bytes]:
    """Return every member of the archive by its name. Raises UsageError for more than a reader takes."""
    members = {f"runs/{run.name}/{name}": content for run in runs for name, content in run.files.items()}
    members |= {MANIFEST: manifest, **({SIGNATURE: signature} if signature else {})}
    size = sum(map(len, members.values()))
    if size > bundle_format.MOST_BYTES or len(members) > bundle_format.MOST_MEMBERS:
        largest = max(members, key=lambda name: len(members[name]))
        raise UsageError(
            f"bundle: found {len(members):,} files of {size:,} bytes, expected at most "
            f"{bundle_format.MOST_MEMBERS:,} of {bundle_format.MOST_BYTES:,}; the largest is {largest}. Give fewer runs"
        )
    return members


def archive(members: Mapping[str, bytes]) -> bytes:
    """Return a zip archive: sorted, with one date, and without anything but the members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in sorted(members.items()):
            info = zipfile.ZipInfo(name, bundle_format.MADE)
            info.external_attr, info.create_system = bundle_format.MODE, 3
            info.compress_type = _compression(content)
            made.writestr(info, content)
    return out.getvalue()


def _compression(content: bytes) -> int:
    """Return how to store a member: compressed, except where a reader would take the ratio for a trap."""
    is_dense = len(content) <= bundle_format.MOST_RATIO / 2 * len(zlib.compress(content))
    return zipfile.ZIP_DEFLATED if is_dense else zipfile.ZIP_STORED


def _documents(files: Mapping[str, ReadFile]) -> dict[str, Event]:
    found = {name: event_or_none(files[name].content) for name in FILES if name.endswith(".json") and name in files}
    return {name: document for name, document in found.items() if document is not None}


def _read(name: str, path: Path) -> ReadFile:
    descriptor = opened(path)
    if descriptor is None:
        raise UsageError(f"bundle: {path}: found no readable regular file; links and pipes do not go into a bundle")
    digest, kept, size = hashlib.sha256(), bytearray(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            kept, size = kept + part, size + len(part)
            if name.startswith(_LOGS):
                kept = kept[-TAIL_BYTES:]
            elif size > bundle_format.MOST_BYTES:
                raise UsageError(f"bundle: {path}: found more than {bundle_format.MOST_BYTES:,} bytes")
    return ReadFile(f"sha256:{digest.hexdigest()}", bytes(kept), size - len(kept))


def _redacted(name: str, content: bytes, placeholders: Placeholders) -> bytes:
    if name.endswith(".json"):
        found = json_like(content, placeholders.value)
        return _redacted_text(content, placeholders) if found is None else found
    if name.endswith(".jsonl"):
        return b"\n".join(_redacted_line(line, placeholders) for line in content.split(b"\n"))
    text = content.decode("utf-8", "surrogateescape")
    return placeholders.log(text).encode("utf-8", "surrogateescape")


def _redacted_line(line: bytes, placeholders: Placeholders) -> bytes:
    found = json_like(line, placeholders.value) if line else line
    return _redacted_text(line, placeholders) if found is None else found


def _redacted_text(content: bytes, placeholders: Placeholders) -> bytes:
    return placeholders.text(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _roots(documents: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the run's own folders, as its documents name them: the run directory and the checkout."""
    with suppress(*DAMAGED):
        yield re.sub("/events/?$", "", documents["job.json"]["events_dir"]), "run"
    with suppress(*DAMAGED):
        folder = Path(documents["plan.json"]["implementation"]["folder"])
        yield str(folder.parents[1]), "checkout"


def _host(provenance: Any) -> str:
    with suppress(*DAMAGED):
        return str(provenance["machine"]["name"])
    return ""


def _own_names() -> Iterator[str]:
    with suppress(KeyError, OSError, ImportError):
        yield getpass.getuser()
    yield Path.home().name


def _by(reference: Any) -> Iterator[str]:
    """Return who promoted a reference and who recorded its noise."""
    with suppress(*DAMAGED):
        yield from (str(each["by"]) for each in (reference, *reference["noise"]) if each.get("by"))


def sha256_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
