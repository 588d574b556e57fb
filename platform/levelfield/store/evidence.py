"""Whether the raw files of a run are those that it left, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Evidence

UNSEALED = "the run has no seal: it may have been changed since"


class RunEvidence(NamedTuple):
    """What a run's files are worth. digest: of the files, so that two imports of one run are known as one."""

    word: Evidence
    reason: str | None
    digest: str


def evidence_of(paths: RunPaths) -> RunEvidence:
    return RunEvidence("unsealed", UNSEALED, _digest(paths))


def _digest(paths: RunPaths) -> str:
    """Return the digest of the raw files. Derived files, logs and the status do not count: they change later."""
    lines = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in _raw_files(paths))
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _raw_files(paths: RunPaths) -> Iterator[Path]:
    named = (paths.plan, paths.job, paths.request, paths.provenance, paths.telemetry, paths.outcome)
    yield from (path for path in (*named, paths.reference, paths.certificate) if path.is_file())
    yield from sorted(paths.events.glob("rank*.jsonl"))
