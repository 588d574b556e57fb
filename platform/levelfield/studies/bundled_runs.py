"""The runs of a bundle, with their results computed from its raw files."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import GateFailed, LevelfieldError, UnknownName
from levelfield.evidence.bundle_reader import RunInBundle, read_bundle, written
from levelfield.evidence.verification import verified
from levelfield.judge.collector import collect
from levelfield.judge.verdict import Redaction
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.specs.result import Result
from levelfield.store.run_record import record_of, storable


def recorded(run: RunInBundle) -> tuple[Result, RunRecord]:
    """Return the result of a run, computed from the raw files of its bundle, and the record of it."""
    with written(run) as paths:
        raw, redaction = read_raw(paths), Redaction(run.seal, run.entry.software)
        result = collect(paths, raw, redaction)
        record = record_of(paths, result=result, raw=raw)
    return result, storable(record, record.run_id)


def opened_runs(path: Path, pattern: str, known: Registry, opened: ExitStack) -> Iterator[tuple[RunPaths, Result]]:
    """Yield each run of a bundle whose id has or matches `pattern`, and its result, computed from its raw files; its
    files stay until `opened` ends.

    Raises DocumentError for what is no bundle, UnknownName without such a run, and GateFailed, after the others, for a
    run that does not follow.
    """
    bundle = read_bundle(path)
    names = [run.name for run in bundle.runs]
    meant = {name for name in names if pattern in name or fnmatch.fnmatchcase(name, pattern)}
    if not meant:
        raise UnknownName(f"run of {path}", pattern, names)
    wrong = []
    for run, found in zip(bundle.runs, verified(bundle, known), strict=True):
        if run.name not in meant:
            continue
        if found.contradictions:
            wrong.append(f"{path}: {run.name} does not follow from its raw files: {found.contradictions[0].text}")
            continue
        paths = opened.enter_context(written(run))
        yield paths, collect(paths, read_raw(paths), Redaction(run.seal, run.entry.software))
    if wrong:
        raise GateFailed("\n".join([*wrong, f"`evidence verify {path}` shows all"]))


def bundled(path: Path, known: Registry) -> Iterator[RunRecord | LevelfieldError]:
    """Yield the record of each run of a bundle, computed from its raw files, or why there is none. One whose facts
    contradict each other is *reported*. Raises DocumentError for what is no bundle."""
    bundle = read_bundle(path)
    for run, found in zip(bundle.runs, verified(bundle, known), strict=True):
        try:
            record = recorded(run)[1]
        except LevelfieldError as error:
            yield error
        else:
            yield record.reported(found.contradictions[0].text) if found.contradictions else record
