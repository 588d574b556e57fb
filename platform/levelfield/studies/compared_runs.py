"""Finds the runs of a comparison in a folder, the store or a bundle, and those that a side's name stands for."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.registry import Registry
from levelfield.compare.comparison import Duels, Histories, duel_conclusions
from levelfield.compare.series_runs import ChosenRuns, labelled_runs, recent_runs, repeats_around
from levelfield.compare.sides import start_time
from levelfield.errors import GateFailed, LevelfieldError, UnknownName, UsageError
from levelfield.evidence.bundle_reader import read_bundle, unpack_run
from levelfield.evidence.verification import recomputed_record, verify_run
from levelfield.judge.collector import collect
from levelfield.judge.verdict import Redaction
from levelfield.rundir.directory import find_finished_run, read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.rundir.run_state import refuse_running
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import RunRecord, Series, StoreEvent, first_future_date
from levelfield.specs.result import Result
from levelfield.specs.short_names import refuse_empty_name
from levelfield.store.address import NO_STORE, STORE_VARIABLE, is_missing
from levelfield.store.run_record import record_of, require_storable, series_of

if TYPE_CHECKING:
    from levelfield.store.database import Store  # a second of imports that a folder of runs does not need

_STAMP_LENGTH = len("20261122T030405Z")  # the beginning of a run id
_DatedFolder = tuple[str, int, Path]  # stamp, repeat and folder of a run
_BUNDLE = re.compile(r"(.+\.zip)(?::(.*))?")  # FILE.zip:NAME, the file of a bundle and which of its runs
_EVERY_RUN = "*"
_WILDCARDS = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class FolderRuns:
    """The run directories of a folder. Figures come from the raw files, so an edited result.json changes none.

    `find_key` and `matching_keys`, by a pattern of ids or of paths, return the keys by which `record` reads runs.
    `newest_runs` yields the runs of a series' trend, the newest first, each read when it is taken; dates in the future
    come last.
    """

    folder: Path
    registry: Registry = field(default_factory=Registry)

    def find_key(self, name: str) -> str:
        return str(find_finished_run(self.folder, name).root)

    def matching_keys(self, pattern: str) -> list[str]:
        roots = [path.parent for path in sorted(self.folder.glob("*/plan.json"))]
        roots = [root for root in roots if fnmatch.fnmatchcase(root.name, pattern)]
        path = Path(pattern)  # with a folder it is a path
        paths = sorted(p.parent for p in path.parent.glob(f"{path.name}/plan.json")) if "/" in pattern else []
        return [str(root) for root in (*roots, *paths)]

    def record(self, key: str) -> RunRecord:
        paths = RunPaths(Path(key))
        refuse_running(paths)
        record = recomputed_record(paths, self.registry)
        # the repeats of a command have the time of its start in their ids
        numbers, digest = set[int](), read_plan(paths).repeats_digest
        for path in paths.root.parent.glob(f"{paths.root.name.split('_', 1)[0]}_*/plan.json"):
            with suppress(LevelfieldError):
                plan = read_plan(RunPaths(path.parent))
                if plan.repeats_digest == digest:
                    numbers.add(plan.repeat)
        return record.model_copy(update={"command_repeats": max(1, len(numbers))})

    def series(self) -> list[Series]:
        return [series for series, _ in self._folders_by_series.values()]

    def newest_runs(self, series: Series) -> Iterator[RunRecord]:
        _, folders = self._folders_by_series.get(series.fingerprint(), (series, []))
        first_future_stamp = first_future_date().strftime("%Y%m%dT%H%M%SZ")
        for _, _, root in sorted(folders, key=lambda dated: (dated[0] < first_future_stamp, *dated), reverse=True):
            yield self.record(str(root))

    @cached_property
    def _folders_by_series(self) -> dict[str, tuple[Series, list[_DatedFolder]]]:
        """Return each series with its run directories, by its digest. A run that goes on or is damaged is left out.

        All repeats of a command have the time of its start in their ids, so their numbers give their order.
        """
        folders_by_series: dict[str, tuple[Series, list[_DatedFolder]]] = {}
        for root in (path.parent for path in sorted(self.folder.glob("*/plan.json"))):
            try:
                refuse_running(RunPaths(root))
                plan = read_plan(RunPaths(root))
            except LevelfieldError:
                continue
            series = series_of(plan)
            folders_by_series.setdefault(series.fingerprint(), (series, []))[1].append(
                (root.name[:_STAMP_LENGTH], plan.repeat, root)
            )
        return folders_by_series


@dataclass(frozen=True)
class StoreRuns:
    """The runs of an open store, by the same methods as `FolderRuns`."""

    store: Store

    def find_key(self, name: str) -> str:
        return self.store.find(name)

    def matching_keys(self, pattern: str) -> list[str]:
        return [run_id for run_id in self.store.run_ids() if fnmatch.fnmatchcase(run_id, pattern)]

    def record(self, key: str) -> RunRecord:
        return self.store.record(key)

    def series(self) -> list[Series]:
        return [stored.series for stored in self.store.series()]

    def newest_runs(self, series: Series) -> Iterator[RunRecord]:
        digest = series.fingerprint()
        points = [point for point in self.store.points([digest]).get(digest, []) if point.is_trend_point]
        first_future = first_future_date().isoformat()
        for point in sorted(reversed(points), key=lambda point: point.began >= first_future):
            yield self.store.record(point.run_id)


def bundle_results(path: Path, pattern: str, registry: Registry, stack: ExitStack) -> Iterator[tuple[RunPaths, Result]]:
    """Yield each run of a bundle whose id has or matches `pattern`, and its result, computed from its raw files; its
    files stay until `stack` closes.

    Raises DocumentError for what is no bundle, UnknownName without such a run, and GateFailed, after the others, for a
    run that does not follow.
    """
    bundle = read_bundle(path)
    names = [run.name for run in bundle.runs]
    matching = {name for name in names if pattern in name or fnmatch.fnmatchcase(name, pattern)}
    if not matching:
        raise UnknownName(f"run of {path}", pattern, names)
    faults = []
    for run in bundle.runs:
        if run.name not in matching:
            continue
        check = verify_run(run, registry, bundle)
        if check.contradictions:
            faults.append(f"{path}: {run.name} does not follow from its raw files: {check.contradictions[0].text}")
            continue
        paths = stack.enter_context(unpack_run(run))
        yield paths, collect(paths, read_raw(paths), Redaction(run.seal, run.entry.software))
    if faults:
        raise GateFailed("\n".join([*faults, f"`evidence verify {path}` shows all"]))


def bundle_records(path: Path, registry: Registry) -> Iterator[RunRecord | LevelfieldError]:
    """Yield the record of each run of a bundle, computed from its raw files, or why there is none. One whose facts
    contradict each other is *reported*. Raises DocumentError for what is no bundle."""
    bundle = read_bundle(path)
    for run in bundle.runs:
        check = verify_run(run, registry, bundle)
        try:
            with unpack_run(run) as paths:
                raw = read_raw(paths)
                result = collect(paths, raw, Redaction(run.seal, run.entry.software))
                record = record_of(paths, result=result, raw=raw)
            record = require_storable(record, record.run_id)
        except LevelfieldError as error:
            yield error
        else:
            yield record.mark_reported(check.contradictions[0].text) if check.contradictions else record


class BundleRuns:
    """The runs of a bundle, by the methods of FolderRuns, computed again from their raw files.

    Raises DocumentError for what is no bundle, and the error of a run that cannot be computed.
    """

    def __init__(self, path: Path, registry: Registry) -> None:
        self._path, self._records = path, dict[str, RunRecord]()
        for record in bundle_records(path, registry):
            if isinstance(record, LevelfieldError):
                raise UsageError(f"{path}: {record}")
            self._records[record.run_id] = record

    def find_key(self, name: str) -> str:
        refuse_empty_name("run", name)
        matching = [run_id for run_id in self._records if name in run_id]
        if len(matching) > 1 and name not in matching:
            raise UsageError(f"{self._path}: run '{name}': found {len(matching)} runs; give more of the id")
        if not matching:
            raise UnknownName(f"run of {self._path}", name, list(self._records))
        return name if name in matching else matching[0]

    def matching_keys(self, pattern: str) -> list[str]:
        return fnmatch.filter(self._records, pattern)

    def record(self, key: str) -> RunRecord:
        return self._records[key]

    def series(self) -> list[Series]:
        return list({record.series.fingerprint(): record.series for record in self._records.values()}.values())

    def newest_runs(self, series: Series) -> Iterator[RunRecord]:
        records = [record for record in self._records.values() if record.series == series]
        yield from sorted(records, key=lambda record: record.began, reverse=True)


RunSource = FolderRuns | StoreRuns | BundleRuns


def parse_bundle_name(text: str) -> tuple[Path, str] | None:
    """Return the file and the run of FILE.zip or FILE.zip:NAME, `*` without one; None for another name.

    Raises UsageError where there is no such file, and for an empty NAME.
    """
    match = _BUNDLE.fullmatch(text)
    if not match or Path(match[1]).is_dir():
        return None
    if not Path(match[1]).is_file():
        raise UsageError(f"{match[1]}: no such file, expected a bundle")
    name = _EVERY_RUN if match[2] is None else match[2]
    if not _WILDCARDS.search(name):
        refuse_empty_name("run", name)
    return Path(match[1]), name


def runs_of_side(source: RunSource, text: str, with_repeats: bool = False) -> ChosenRuns:
    """Return the runs of a side: names joined by commas, each run once. with_repeats: with the others of its command.

    Raises UnknownName for a name without a run, and UsageError for a label that several series have.
    """
    records: dict[str, RunRecord] = {}
    left_out: list[tuple[RunRecord, str]] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if _WILDCARDS.search(name):
            keys = source.matching_keys(name)
            if not keys:
                raise UnknownName("run", name, source.matching_keys("*")[-20:])
            runs = [source.record(key) for key in keys]
        elif ":" in name:
            chosen = labelled_runs(list(recent_runs(source.newest_runs(_series_of_label(source, name)))))
            runs, left_out = list(chosen.runs), [*left_out, *chosen.left_out]
        else:
            record = source.record(source.find_key(name))
            runs = repeats_around(record, list(_until_first_repeat(source, record))) if with_repeats else [record]
        records |= {run.run_id: run for run in runs}
    return ChosenRuns(tuple(records.values()), tuple(left_out))


def _until_first_repeat(source: RunSource, record: RunRecord) -> Iterator[RunRecord]:
    """Yield the runs of the record's series, the newest first, until the first repeat of its command.

    Also those that began in the same second: their order is not known.
    """
    begin, first_repeat_began = start_time(record), None
    for run in source.newest_runs(record.series):
        if first_repeat_began is not None and run.began != first_repeat_began:
            return
        yield run
        other = start_time(run)
        if run.result.repeat == 1 and (begin is None or other is None or other <= begin):
            first_repeat_began = run.began


def _series_of_label(source: RunSource, label: str) -> Series:
    """Return the series of a label: CASE:FRAMEWORK[:CHIP-OR-VENDOR[:NODES[:DEVICES]]], then words of its own label, or
    FIELD=VALUE."""
    candidates, matching = source.series(), list[Series]()
    target, *words = label.split()
    parts = target.split(":")
    for series in candidates:
        columns = [{series.case}, {series.framework_label}, {series.chip, series.vendor}, {str(series.nodes)},
                   {str(series.devices // series.nodes)}]  # fmt: skip
        label_words = series.label.split()[1:]
        has_words = len(parts) <= len(columns) and all(w in label_words or series.has_field(w) for w in words)
        if has_words and all(part in names for part, names in zip(parts, columns, strict=False)):
            matching.append(series)
    if len(matching) > 1:
        labels = "\n  ".join(_distinct_labels(matching)[:8])
        raise UsageError(
            f"series '{label}': found {len(matching)} series; add words of one of these labels:\n  {labels}"
        )
    if not matching:
        raise UnknownName("series", label, [series.label for series in candidates])
    return matching[0]


def _distinct_labels(matching: Sequence[Series]) -> list[str]:
    """Return the label of each series; of series with the same label, also the fields in which they differ."""
    groups: dict[str, list[Series]] = {}
    for series in matching:
        groups.setdefault(series.label, []).append(series)
    labels = []
    for label, members in groups.items():
        words = [{name: series.field_word(name) for name in type(series).model_fields} for series in members]
        differing = [name for name in words[0] if len({entry[name] for entry in words}) > 1]
        labels += [" ".join((label, *(entry[name] for name in differing))) for entry in words]
    return labels


def _resolve_chip_alias(registry: Registry, label: str) -> str:
    """Return the label with the chip's name in place of its alias; any other text as it is."""
    target, *words = label.split() or [""]
    parts = target.split(":")
    if len(parts) < 3:
        return label
    with suppress(UnknownName, UsageError):  # a vendor's name, or a chip that only the runs have
        parts[2] = find_chip(registry, parts[2])[1].name
    return " ".join((":".join(parts), *words))


class RunSources(ExitStack):
    """A folder of runs and a store, which is opened when it is first needed. Use it in a `with` block: at its end an
    open store looks for damaged rows.

    url: of the only store to look in; None for the folder and the default store. Bundles are found by their names.
    registry: has the chips' aliases.
    """

    def __init__(self, folder: Path, url: str | None, registry: Registry) -> None:
        super().__init__()
        self._folder, self._url, self._registry = FolderRuns(folder), url, registry
        self._bundles: dict[Path, BundleRuns] = {}

    def runs_of_side(self, text: str, with_repeats: bool = False) -> ChosenRuns:
        """Return the runs of a side. Raises the error of the folder where neither place has such a run."""
        names = [name.strip() for name in text.split(",")]
        if "" in names:  # the side would lack a run that somebody meant to name
            refuse_empty_name("run", "")
        bundled_names = {name: part for name in names if (part := parse_bundle_name(name))}
        parts: list[ChosenRuns] = []
        for file, name in bundled_names.values():
            if file not in self._bundles:
                self._bundles[file] = BundleRuns(file, self._registry)
            parts.append(runs_of_side(self._bundles[file], _resolve_chip_alias(self._registry, name), with_repeats))
        others = ",".join(_resolve_chip_alias(self._registry, name) for name in names if name not in bundled_names)
        if others:
            parts.append(self._folder_or_store_runs(others, with_repeats))
        runs = (run for part in parts for run in part.runs)
        return ChosenRuns(tuple(runs), tuple(entry for part in parts for entry in part.left_out))

    def _folder_or_store_runs(self, names: str, with_repeats: bool) -> ChosenRuns:
        """Return the runs of the folder; where it has none of these names, of the store."""
        if self._url is None:
            try:
                return runs_of_side(self._folder, names, with_repeats)
            except UnknownName:
                if self._store is None or not self._store.matching_keys("*"):
                    raise
        if self._store is None:
            raise UsageError("compare: found no store, expected one; name it with --store")
        return runs_of_side(self._store, names, with_repeats)

    def latest_runs(self) -> Iterator[RunRecord]:
        """Yield the newest runs of every series, as far back as they count: of the folder, else of the store."""
        source = self._folder if self._url is None and self._folder.series() else self._store
        if source:
            for series in source.series():
                yield from recent_runs(source.newest_runs(series))

    def histories(self, records: Iterable[RunRecord]) -> Histories:
        """Return the stored runs of the series of these records; empty where there is no store."""
        digests = sorted({record.series.fingerprint() for record in records})
        return self._store.store.points(digests) if self._store else {}

    def duels(self) -> Duels:
        """Return what duels showed, as the store has it."""
        return duel_conclusions(self.duel_events())

    def duel_events(self) -> list[StoreEvent]:
        events = self._store.store.events() if self._store else []
        return [event for event in events if event.kind == "duel"]

    @cached_property
    def _store(self) -> StoreRuns | None:
        """Return the open store; None where there is none yet."""
        if self._url is None and (os.environ.get(STORE_VARIABLE) == NO_STORE or is_missing(None)):
            return None
        from levelfield.store.database import Store

        return StoreRuns(self.enter_context(Store.open(self._url, read_only=True)))
