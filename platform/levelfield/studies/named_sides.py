"""The runs that one side of a comparison stands for: run names, patterns, series labels, repeats of a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from levelfield.compare.cautions import began
from levelfield.compare.evidence import exclusion
from levelfield.compare.repeat_groups import repeat_number, repeats_around
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.record import RunRecord, Series
from levelfield.studies.run_sources import RunSource

MOST = 30  # runs of one build that a series label stands for


def named_runs(source: RunSource, text: str, with_repeats: bool = False) -> list[RunRecord]:
    """Return the runs of a side: names joined by commas, each run once. with_repeats: with the others of its command.

    Raises UnknownName for a name without a run, and UsageError for a label that several series have.
    """
    found: dict[str, RunRecord] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        for record in _named(source, name, with_repeats):
            found[record.run_id] = record
    return list(found.values())


def latest_of_series(source: RunSource, series: Series) -> Iterator[RunRecord]:
    """Yield the newest runs of a series until the newest that counts, with its repeats."""
    return _until(source.newest(series), lambda record: exclusion(record) is None and repeat_number(record) == 1)


def _until(records: Iterable[RunRecord], is_last: Callable[[RunRecord], bool]) -> Iterator[RunRecord]:
    """Yield records up to one that is the last, and those that began in the same second: their order is not known."""
    ended: str | None = None
    for record in records:
        if ended is not None and record.began != ended:
            return
        yield record
        if is_last(record):
            ended = record.began


def _named(source: RunSource, name: str, with_repeats: bool) -> list[RunRecord]:
    if re.search(r"[*?\[]", name):
        if keys := source.matching(name):
            return [source.record(key) for key in keys]
        raise UnknownName("run", name, source.matching("*")[-20:])
    if ":" in name:
        return list(_of_newest_build(source, _labelled(source.series(), name)))
    record = source.record(source.find(name))
    return repeats_around(record, list(_until_first_repeat(source, record))) if with_repeats else [record]


def _until_first_repeat(source: RunSource, record: RunRecord) -> Iterator[RunRecord]:
    """Yield the runs of the record's series, the newest first, until the first repeat of its command."""
    begin = began(record)

    def is_first(each: RunRecord) -> bool:
        other = began(each)
        return repeat_number(each) == 1 and (begin is None or other is None or other <= begin)

    return _until(source.newest(record.series), is_first)


def _labelled(series: Iterable[Series], label: str) -> Series:
    """Return the series of a label: CASE:FRAMEWORK[:CHIP-OR-VENDOR[:NODES[:DEVICES]]], then words of its label."""
    known = list(series)
    fits = [each for each in known if _fits(each, label)]
    if len(fits) > 1:
        listed = "\n  ".join(each.label for each in fits[:8])
        raise UsageError(f"series '{label}': found {len(fits)} series; add words of one of these labels:\n  {listed}")
    if not fits:
        raise UnknownName("series", label, [each.label for each in known])
    return fits[0]


def _fits(series: Series, label: str) -> bool:
    target, *words = label.split()
    own = [{series.case}, {series.framework_label}, {series.chip, series.vendor}, {str(series.nodes)},
           {str(series.devices // series.nodes)}]  # fmt: skip
    parts = target.split(":")
    named = len(parts) <= len(own) and all(part in names for part, names in zip(parts, own, strict=False))
    return named and set(words) <= set(series.label.split()[1:])


def _of_newest_build(source: RunSource, series: Series) -> Iterator[RunRecord]:
    """Yield the newest runs of a series as long as build and conditions stay the same."""
    first: RunRecord | None = None
    for number, record in enumerate(source.newest(series)):
        first = first or record
        if number == MOST or (record.subject, record.conditions) != (first.subject, first.conditions):
            return
        yield record
