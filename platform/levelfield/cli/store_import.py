"""`store import`: adds run directories, bundles and exports to a store. What cannot be added is named at the end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from zipfile import is_zipfile

from levelfield.cli.terminal import Terminal
from levelfield.errors import LevelfieldError, UsageError
from levelfield.judge.collector import collect
from levelfield.judge.sealing import Redaction
from levelfield.rundir.bundle_reader import read_bundle, written
from levelfield.rundir.directory import PAIRS, default_runs, find_run
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.run_state import refuse_running
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.store.database import Added, Store
from levelfield.store.record_lines import read_lines
from levelfield.store.run_record import record_of, storable
from levelfield.store.statements import Statement, add_statements

_LISTED = 20  # messages about what could not be added
# Why a record is `reported`: anybody can edit a line of an export, or a result.json, and no seal would show it.
_OF_AN_EXPORT = "it came from an export, without its raw files; import the run or its bundle"
_OF_A_RESULT = "result.json was taken as it is (--trust-results); import the run without it"


def import_runs(options: argparse.Namespace) -> int:
    """Add everything that can be. Raises UsageError with what could not, after the rest."""
    terminal = Terminal(quiet=options.json)
    source = ImportSource(options, terminal)
    with Store.open(options.store) as store:
        added = store.add(source.records())
        add_statements(store, source.statements)
    _say(options, added, source)
    problems = [*source.problems, *(_conflict(run_id) for run_id in added.conflicts)]
    if problems:
        more = [f"and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
        raise UsageError("\n".join([*problems[:_LISTED], *more]))
    return 0


class ImportSource:
    """The records of the paths and names of a command line. statements, problems: what was found beside them."""

    def __init__(self, options: argparse.Namespace, terminal: Terminal) -> None:
        self._names, self._runs = options.run, options.runs or default_runs()
        self._trusts, self._terminal = options.trust_results, terminal
        self.statements: list[Statement] = []
        self.problems: list[str] = []

    def records(self) -> Iterator[RunRecord]:
        """Yield every record that can be made. The error of any other is kept in `problems`."""
        for name in self._names:
            path = Path(name)
            if not path.is_file():
                yield from self._of_runs(name)
            elif is_zipfile(path):
                yield from self._of_bundle(path)
            else:
                yield from self._of_file(path)

    def _of_file(self, path: Path) -> Iterator[RunRecord]:
        with self._terminal.bytes_progress(f"importing {path.name}") as progress:
            try:
                for document in read_lines(path, lambda error: self.problems.append(str(error)), progress):
                    if isinstance(document, RunRecord):
                        yield document.reported(_OF_AN_EXPORT)
                    else:
                        self.statements.append(document)
            except LevelfieldError as error:
                self.problems.append(str(error))

    def _of_bundle(self, path: Path) -> Iterator[RunRecord]:
        try:
            runs = read_bundle(path).runs
        except LevelfieldError as error:
            self.problems.append(str(error))
            return
        for run in runs:
            try:
                with written(run) as paths:
                    raw, redaction = read_raw(paths), Redaction(run.seal, run.listed.software)
                    made = record_of(paths, result=collect(paths, raw, redaction), raw=raw)
                    record = storable(made, made.run_id)
            except LevelfieldError as error:
                self.problems.append(f"{path}: {error}")
            else:
                yield record

    def _of_runs(self, name: str) -> Iterator[RunRecord]:
        try:
            folders = _folders(self._runs, name)
        except LevelfieldError as error:
            self.problems.append(str(error))
            return
        with self._terminal.bytes_progress(f"importing {len(folders)} run(s)") as progress:
            for number, folder in enumerate(folders, 1):
                try:
                    yield self._of_run(RunPaths(folder))
                except LevelfieldError as error:
                    self.problems.append(str(error))
                progress(number, len(folders))

    def _of_run(self, paths: RunPaths) -> RunRecord:
        refuse_running(paths)
        if paths.root.parent.name == PAIRS:
            raise UsageError(
                f"{paths.root}: found a run of a pair of builds, which is no point of its series; expected another. A "
                "nightly stores its pairs itself"
            )
        raw = read_raw(paths)
        if self._trusts and paths.result.exists():
            return storable(record_of(paths, raw=raw).reported(_OF_A_RESULT), str(paths.root))
        return storable(record_of(paths, result=collect(paths, raw), raw=raw), str(paths.root))


def _folders(runs: Path, name: str) -> list[Path]:
    """Return the run of a name, or all runs of a folder. Raises UsageError for a folder without runs."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "plan.json").is_file():
        return [find_run(runs, name).root]
    if found := sorted(path.parent.resolve() for path in folder.glob("*/plan.json")):
        return found
    raise UsageError(f"{name}: found no run there, expected folders with a plan.json")


def _say(options: argparse.Namespace, added: Added, source: ImportSource) -> None:
    counts = {
        "new": added.new,
        "known": added.known,
        "conflicts": list(added.conflicts),
        "statements": len(source.statements),
    }
    if options.json:
        print(json.dumps({**counts, "problems": source.problems}, indent=2))
        return
    said = f"{added.new:,} new, {added.known:,} known already"
    print(said + (f", {len(source.statements):,} event(s), expectation(s) or finding(s)" if source.statements else ""))


def _conflict(run_id: str) -> str:
    return (
        f"run {run_id}: the store has other content for this id; both are kept aside and are in no history. Find out "
        f"which is right, then `store prune --run {run_id}` and import that one"
    )
