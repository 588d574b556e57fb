"""Redacts runs for a bundle: placeholders for the names of people, machines and places. A file without any stays."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import GateFailed, UsageError
from levelfield.evidence.bundle_archive import FILE_NAME, MAX_BUNDLE_BYTES
from levelfield.evidence.bundle_reader import RunInBundle
from levelfield.evidence.placeholders import HOME_OWNER, Placeholders, find_hosts, json_words, redact_json
from levelfield.rundir.event_lines import DAMAGE_ERRORS, mapping, object_or_none
from levelfield.rundir.seal import (
    MAX_SEALED_BYTES,
    OUTCOME,
    compare_with_seal,
    outcome_digest,
    raw_paths,
    regular_descriptor,
)
from levelfield.specs.base import dump, sha256_of
from levelfield.specs.bundle import BundledFile, BundledRun, SealFinding
from levelfield.specs.certificate import Certificate, CertificateSubject
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import AlignmentLayer
from levelfield.user_folders import home_folder, user_name

TAIL_BYTES = 2**20  # what is kept of a log; a run's evidence is its last line
LOG_PATHS = ("logs/", "image/build.log")
_PART_BYTES = 2**20


def make_placeholders(runs: Sequence[LoadedRun]) -> Placeholders:
    """Return the placeholders for all runs of a bundle: their folders, hosts and users, and those of this machine."""
    documents = [
        {name: object_or_none(file.content) for name, file in run.files.items() if name.endswith(".json")}
        for run in runs
    ]
    texts = (
        f.content.decode(errors="replace") for run in runs for n, f in run.files.items() if n.startswith(LOG_PATHS)
    )
    users = {user for text in (*texts, json.dumps(documents, ensure_ascii=False)) for user in HOME_OWNER.findall(text)}
    users |= {user_name(), home_folder().name}
    roots, hosts = dict[str, str](), {platform.node()}
    for documents_by_name in documents:  # a damaged or missing document names nobody
        with suppress(*DAMAGE_ERRORS):
            roots[re.sub("/events/?$", "", mapping(documents_by_name["job.json"])["events_dir"])] = "run"
        with suppress(*DAMAGE_ERRORS):
            folder = Path(mapping(documents_by_name["plan.json"])["implementation"]["folder"])
            roots[str(folder.parents[1])] = "checkout"
        with suppress(*DAMAGE_ERRORS):
            hosts.add(str(mapping(documents_by_name["provenance.json"])["machine"]["name"]))
        with suppress(*DAMAGE_ERRORS):
            reference = mapping(documents_by_name["reference.json"])
            for record in (reference, *reference["noise"]):  # who promoted it, and who recorded its noise
                users |= {str(record["by"])} if record.get("by") else set()
    hosts |= {host for by_name in documents for document in by_name.values() for host in find_hosts(document)}
    # `launch` has the names and addresses of the machines that it was to run on
    plans = [{k: v for k, v in mapping(by_name.get("plan.json")).items() if k != "launch"} for by_name in documents]
    words = {word for plan in plans for word in json_words(plan)}
    return Placeholders({str(checkout()): "checkout", str(home_folder()): "home", **roots}, hosts, users, words)


def redact_run(run: LoadedRun, placeholders: Placeholders) -> RunInBundle:
    """Return the run with placeholders, without its software. A file that needs none keeps its bytes."""
    files: dict[str, bytes] = {}
    entries = {}
    for name, file in run.files.items():
        count_before = placeholders.counts.total()
        if name.endswith((".json", ".jsonl")):
            pieces = []
            for piece in file.content.split(b"\n") if name.endswith(".jsonl") else [file.content]:
                redacted = redact_json(piece, placeholders.redact_value)
                if redacted is None:  # of what should be JSON and is none, the text
                    text = placeholders.redact_text(piece.decode("utf-8", "surrogateescape"))
                    redacted = text.encode("utf-8", "surrogateescape")
                pieces.append(redacted)
            content = b"\n".join(pieces)
        else:
            log = placeholders.redact_log(file.content.decode("utf-8", "surrogateescape"))
            content = log.encode("utf-8", "surrogateescape")
        is_allowed_name = FILE_NAME.fullmatch(name)
        entries[name] = BundledFile(
            original=file.digest,
            stored=sha256_of(content) if is_allowed_name else None,
            replaced=placeholders.counts.total() - count_before,
            cut=file.cut_bytes,
        )
        files |= {name: content} if is_allowed_name else {}
    return _redigest_certificate(RunInBundle(run.name, files, BundledRun(seal=run.seal, software=None, files=entries)))


def _redigest_certificate(run: RunInBundle) -> RunInBundle:
    """Return the run whose redacted certificate has the digest of its own content, also in the plan that names it."""
    name, plan, entries = "certificate.json", "plan.json", run.entry.files
    document = object_or_none(run.files.get(name, b""))
    if document is None or entries[name].is_whole:
        return run
    with suppress(*DAMAGE_ERRORS):
        layers = tuple(map(AlignmentLayer.model_validate, document["layers"]))
        subject = CertificateSubject.model_validate(document["subject"])
        rest = {k: v for k, v in document.items() if k not in ("schema", "digest", "subject", "layers")}
        certificate = Certificate.from_content(**rest, subject=subject, layers=layers)
        new, old = certificate.digest.encode(), str(document["digest"]).encode()
        files = {**run.files, name: dump(certificate).encode(), plan: run.files[plan].replace(old, new)}
        stored = {path: entries[path].model_copy(update={"stored": sha256_of(files[path])}) for path in (name, plan)}
        return RunInBundle(run.name, files, run.entry.model_copy(update={"files": {**entries, **stored}}))
    return run  # a damaged certificate holds neither before nor after redaction


@dataclass(frozen=True)
class LoadedFile:
    """A file of a run directory, in memory."""

    digest: str  # of the whole file
    content: bytes  # of a long log the last ones
    cut_bytes: int = 0  # how many bytes of a log are before them


@dataclass(frozen=True)
class LoadedRun:
    """A run directory in memory."""

    name: str
    files: dict[str, LoadedFile]  # by path in the directory
    seal: SealFinding  # on exactly these bytes


def load_run(paths: RunPaths, name: str) -> LoadedRun:
    """Return a run directory's raw files, each read once. Raises GateFailed for a tampered run.

    Raises UsageError for a file that is no regular file, and for one that is too large.
    """
    raw = [*raw_paths(paths.root), *([(OUTCOME, paths.outcome)] if os.path.lexists(paths.outcome) else ())]
    files = {file: _load_file(file, path) for file, path in raw}
    outcome = object_or_none(files[OUTCOME].content) if OUTCOME in files else None
    seal = compare_with_seal(outcome, {file: content.digest for file, content in files.items() if file != OUTCOME})
    if seal.word == "tampered":
        raise GateFailed(f"{name} is tampered: {seal.reason}; a bundle needs the files that the run left")
    if outcome is not None:
        files[OUTCOME] = replace(files[OUTCOME], digest=outcome_digest(outcome))
    return LoadedRun(name, files, seal)


def _load_file(name: str, path: Path) -> LoadedFile:
    descriptor = regular_descriptor(path)
    if descriptor is None:
        raise UsageError(f"bundle: {path}: found no readable regular file; links and pipes do not go into a bundle")
    largest = MAX_SEALED_BYTES if name.startswith(LOG_PATHS) else MAX_BUNDLE_BYTES
    if os.fstat(descriptor).st_size > largest:
        os.close(descriptor)
        raise UsageError(f"bundle: {path}: found more than {largest:,} bytes")
    digest, content, size = hashlib.sha256(), bytearray(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            content, size = content + part, size + len(part)
            if name.startswith(LOG_PATHS):
                content = content[-TAIL_BYTES:]
    return LoadedFile(f"sha256:{digest.hexdigest()}", bytes(content), size - len(content))
