"""Run directories in memory, as a bundle takes them: each file read once, links never followed, long logs cut."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.errors import GateFailed, UsageError
from levelfield.rundir.bundle_format import MOST_BYTES
from levelfield.rundir.event_lines import event_or_none
from levelfield.rundir.seal import finding_of, outcome_digest
from levelfield.rundir.sealed_files import MOST_SEALED_BYTES, OUTCOME, opened, raw_paths
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import SealFinding

TAIL_BYTES = 2**20  # what is kept of a log; a run's evidence is its last line
LOGS = ("logs/", "image/build.log")
_PART_BYTES = 2**20


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


def _read(name: str, path: Path) -> ReadFile:
    descriptor = opened(path)
    if descriptor is None:
        raise UsageError(f"bundle: {path}: found no readable regular file; links and pipes do not go into a bundle")
    largest = MOST_SEALED_BYTES if name.startswith(LOGS) else MOST_BYTES
    if os.fstat(descriptor).st_size > largest:
        os.close(descriptor)
        raise UsageError(f"bundle: {path}: found more than {largest:,} bytes")
    digest, kept, size = hashlib.sha256(), bytearray(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            digest.update(part)
            kept, size = kept + part, size + len(part)
            if name.startswith(LOGS):
                kept = kept[-TAIL_BYTES:]
    return ReadFile(f"sha256:{digest.hexdigest()}", bytes(kept), size - len(kept))
