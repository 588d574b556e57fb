"""A git repository of sealed bundles: what a branch changes in it, and the results of all that is there.

Files are read from git's objects. Nothing is checked out, no hook or filter runs, and no byte of a branch is executed.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import GateFailed, LevelfieldError, UnknownName, UsageError
from levelfield.judge.collector import collect
from levelfield.judge.verdict import Redaction
from levelfield.judge.verification import verified
from levelfield.report.escapes import markdown
from levelfield.report.tables import as_markdown
from levelfield.rundir.bundle_reader import Bundle, RunInBundle, bundle_of, read_bundle, written
from levelfield.rundir.event_lines import DAMAGED
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord
from levelfield.specs.result import Result
from levelfield.store.run_record import record_of, storable

FOLDER = "bundles"
MARK = "<!-- levelfield results -->"  # by which a workflow finds its own comment
_SECONDS = 120
_REGULAR = "100644"
# A line of a commit message on the branch. The reason is for the reader of the history.
_WITHDRAWS = re.compile(r"^Withdraws: (\S+) (\S.*)$", re.MULTILINE)
_SHOWN = 3  # contradictions of a run
_LISTED, _LONGEST = 40, 500  # texts of a comment, and characters of one


@dataclass(frozen=True)
class GitFile:
    """A file of a commit. size: bytes, None of what is no file."""

    mode: str
    key: str
    size: int | None


@dataclass
class Contribution:
    """What a branch brings. problems: what it must mend. results, notes: of the bundles that it adds.

    records: the runs of every bundle on the branch, for the pages. added: paths.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


def examined(
    repository: Path,
    base: str | None,
    head: str,
    registry: Registry,
    largest: int,
    progress: Callable[[int, int], None],
) -> Contribution:
    """Hold the branch `head` against `base`; without one, every bundle of `head` counts as added.

    largest: bytes of a bundle. Raises UsageError where git does not know a name.
    """
    for name in filter(None, (base, head)):
        if name.startswith("-"):
            raise UsageError(f"found '{name}', expected the name of a branch or commit")
    files = _files(repository, head)
    before = _files(repository, _git(repository, "merge-base", base, head).strip()) if base else {}
    found = Contribution()
    messages = _git(repository, "log", "--format=%B", f"{base}..{head}") if base else ""
    _compare(found, before, files, dict(_WITHDRAWS.findall(messages)))
    runs: dict[str, str] = {}
    ours = {path: file for path, file in files.items() if _is_bundle(path)}
    for number, (path, file) in enumerate(sorted(ours.items(), key=lambda item: (item[0] in found.added, item[0]))):
        progress(number, len(ours))
        _take(found, path, file, repository, registry, largest, runs)
    return found


def _is_bundle(path: str) -> bool:
    return path.startswith(f"{FOLDER}/")


def _compare(
    found: Contribution, before: Mapping[str, GitFile], after: Mapping[str, GitFile], stated: Mapping[str, str]
) -> None:
    """Keep what was added, and a problem for what was changed or removed without a word."""
    differ = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    found.added = [path for path in differ if _is_bundle(path) and path in after]
    gone = [path for path in differ if _is_bundle(path) and path in before]
    for path in gone:
        verb = "changes" if path in after else "removes"
        if path in stated:
            found.notes.append(f"{path}: {verb} a bundle that was here: {stated[path]}")
        else:
            found.problems.append(
                f"{path}: {verb} a bundle that is here. Add a new file instead, or write a line into a commit message: "
                f"Withdraws: {path} REASON"
            )
    others = [path for path in differ if not _is_bundle(path)]
    if before and others and (found.added or gone):
        found.problems.append(
            f"{', '.join(others[:3])}: changed beside bundles; put this into a merge request of its own"
        )


def _take(
    found: Contribution,
    path: str,
    file: GitFile,
    repository: Path,
    registry: Registry,
    largest: int,
    runs: dict[str, str],
) -> None:
    """Read one bundle, verify it where it was added, and keep its results, or the problem with it."""
    is_new = path in found.added
    kept = found.problems if is_new else found.notes
    try:
        bundle = _bundle(path, file, repository, largest)
        if is_new and not _follows(found, path, bundle, registry):
            return
        for run in bundle.runs:
            # A copy under another id has the same events, whose times no second run has.
            events = sorted(entry.original for name, entry in run.listed.files.items() if name.startswith("events/"))
            firsts = [runs.setdefault(key, path) for key in (run.name, "\n".join(events))]
            if first := next((each for each in firsts if each != path), None):
                kept.append(f"{path}: has the run {run.name}, which {first} has too; a run is added once")
                continue
            result, record = recorded(run)
            found.records.append(record)
            if is_new:
                found.results.append(result)
    except (LevelfieldError, *DAMAGED) as error:
        kept.append(str(error))


def _bundle(path: str, file: GitFile, repository: Path, largest: int) -> Bundle:
    if file.mode != _REGULAR or file.size is None:
        raise UsageError(f"{path}: found a link, a submodule or an executable file, expected a bundle")
    if not path.endswith(".zip"):
        raise UsageError(f"{path}: found another file, expected only archives of `evidence bundle`, NAME.zip")
    if file.size > largest:
        raise UsageError(f"{path}: found {file.size:,} bytes, expected at most {largest:,} (--largest)")
    return bundle_of(_run(repository, "cat-file", "blob", file.key), path)


def _follows(found: Contribution, path: str, bundle: Bundle, registry: Registry) -> bool:
    """Return whether every run of a new bundle is sealed and follows from its raw files; else keep the problems."""
    signed = "signed" if bundle.signature else "not signed"
    found.notes.append(f"{path}: {bundle.manifest.digest}, {signed}, by levelfield {bundle.manifest.platform_version}")
    before = len(found.problems)
    for run in verified(bundle, registry):
        for each in run.contradictions[:_SHOWN]:
            found.problems.append(f"{path}: {run.name} does not follow from its raw files: {each.text}")
        if run.seal.word != "sealed":
            found.problems.append(f"{path}: {run.name} is {run.seal.word}: {run.seal.reason}")
        found.notes += [f"{run.name}: {note}" for note in run.notes]
    return len(found.problems) == before


def recorded(run: RunInBundle) -> tuple[Result, RunRecord]:
    """Return the result of a run, computed from the raw files of its bundle, and the record of it."""
    with written(run) as paths:
        raw, redaction = read_raw(paths), Redaction(run.seal, run.listed.software)
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
        yield paths, collect(paths, read_raw(paths), Redaction(run.seal, run.listed.software))
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


def comment(found: Contribution, version: str) -> str:
    """Return Markdown for the merge request: the answer, what to mend, the table of what is added, and notes."""
    count = f"{len(found.added)} bundle(s) added, {len(found.results)} run(s)"
    said = f"**Refused**: {len(found.problems)} problem(s); {count}"
    shown = "every figure of these follows from its raw files, not that these are true"
    parts = [
        f"{MARK}\n{said}." if found.problems else f"{MARK}\n**Accepted**: {count}.",
        _listed(found.problems),
        as_markdown(found.results[:_LISTED]).strip() if found.results else "",
        _listed(found.notes),
        f"Computed again by Levelfield {version}" + (f": {shown}." if found.results else "."),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _listed(texts: Sequence[str]) -> str:
    """Return the first texts as a list: a comment has at most 65,536 characters."""
    more = [f"- and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return "\n".join([*(f"- {markdown(each[:_LONGEST])}" for each in texts[:_LISTED]), *more])


# -- git
def _files(repository: Path, commit: str) -> dict[str, GitFile]:
    """Return the files of a commit by path."""
    return dict(_entries(_git(repository, "ls-tree", "-r", "-z", "-l", "--full-tree", commit)))


def _entries(listed: str) -> Iterator[tuple[str, GitFile]]:
    for entry in filter(None, listed.split("\0")):
        facts, _, path = entry.partition("\t")
        mode, kind, key, size = facts.split()
        yield path, GitFile(mode, key, int(size) if kind == "blob" else None)


def _git(repository: Path, *words: str | None) -> str:
    return _run(repository, *words).decode("utf-8", "replace")


def _run(repository: Path, *words: str | None) -> bytes:
    """Return what git prints. Raises UsageError with what git says."""
    argv = ["git", "-C", str(repository), *map(str, words)]
    try:
        return subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True).stdout
    except FileNotFoundError:
        raise UsageError("found no git, expected it on PATH") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{repository}: git did not answer within {_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise UsageError(f"{repository}: git {words[0]}: {said[-1]}") from None
