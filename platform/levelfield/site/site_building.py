"""Stored runs into a folder of pages. Files of a series that did not change stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.site.escaped_data import data_script
from levelfield.site.gathering import gathered
from levelfield.site.history_columns import SeriesRuns, SurroundingDocuments, history, month_of
from levelfield.site.results import StoredResults
from levelfield.site.run_details import month_file
from levelfield.site.site_manifest import SiteWriter
from levelfield.site.site_pages import write_pages
from levelfield.specs.record import Point, RunRecord
from levelfield.store.rare_collections import rare_collections

HERE = Path(__file__).parent
ASSETS = ("page.js", "tables.js", "charts.js", "case.js", "run.js", "traces.js", "compare.js", "style.css", "icon.svg")
VENDORED = ("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE")
References = Mapping[tuple[str, str], tuple[str, list[float]]]  # by digests of work and corpus: name, losses


@dataclass(frozen=True)
class BuiltSite:
    """What was made. rebuilt: series of which a file was written. unreadable: runs without a readable time."""

    runs: int
    series: int
    rebuilt: int
    files: int
    unreadable: tuple[str, ...]


@dataclass(frozen=True)
class MonthRuns:
    """The runs of a series in a month, which are one file. stamp: digest of what the file is made from."""

    runs: SeriesRuns
    run_ids: tuple[str, ...]
    file: str
    stamp: str
    reference: tuple[str, list[float]] | None


def build_site(
    results: StoredResults,
    folder: Path,
    registry: Registry,
    judged: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> BuiltSite:
    """Write the site. Raises UsageError for the folder.

    judged: findings of the last night, as `gathered` takes them. progress: called with the number of months done and of
    all.
    """
    writer, content, references = SiteWriter(folder), gathered(results, judged), stored_references(registry)
    surroundings = SurroundingDocuments(results)
    changed = {runs.slug for runs in content.series.values() if _write_history(runs, surroundings, writer)}
    months = [month for runs in content.series.values() for month in _changed_months(runs, references, writer)]
    with rare_collections():
        for done, (month, records) in enumerate(_with_records(months, results), start=1):
            value = month_file(month.runs.series, records, month.reference)
            writer.write(_place(month.file), data_script(month.file, value), month.stamp)
            if progress:
                progress(done, len(months))
    _write_assets(writer)
    write_pages(writer, content, registry, datetime.now(timezone.utc), surroundings)
    writer.finish()
    rebuilt = changed | {month.runs.slug for month in months}
    return BuiltSite(content.runs, len(content.series), len(rebuilt), len(writer.stamps), tuple(content.unreadable))


def stored_references(registry: Registry) -> References:
    """Return the loss curves of the stored references, by what they are references of."""
    found = [registry.reference(name) for name in registry.references]
    return {(each.identity.work, each.identity.corpus): (each.name, list(each.losses)) for each in found}


def _write_history(runs: SeriesRuns, surroundings: SurroundingDocuments, writer: SiteWriter) -> bool:
    """Write the history of a series. Return False where it is as it was."""
    name = f"history-{runs.slug}"
    stamp = _stamp(runs, runs.points, "")
    if writer.keeps(_place(name), stamp):
        return False
    writer.write(_place(name), data_script(name, history(runs, surroundings)), stamp)
    return True


def _changed_months(runs: SeriesRuns, references: References, writer: SiteWriter) -> Iterator[MonthRuns]:
    reference = references.get((runs.series.work, runs.series.corpus))
    for month, grouped in groupby(runs.points, key=lambda point: month_of(point.began)):
        points = list(grouped)
        name, stamp = f"runs-{runs.slug}-{month}", _stamp(runs, points, repr(reference))
        if not writer.keeps(_place(name), stamp):
            yield MonthRuns(runs, tuple(point.run_id for point in points), name, stamp, reference)


def _with_records(months: Sequence[MonthRuns], results: StoredResults) -> Iterator[tuple[MonthRuns, list[RunRecord]]]:
    """Yield each month with its records. They are read in one pass, so that a store reads what they share once.

    A run that was removed since its point was read is left out.
    """
    passing = results.records([run_id for month in months for run_id in month.run_ids])
    ahead = next(passing, None)
    for month in months:
        own, records = set(month.run_ids), []
        while ahead is not None and ahead.run_id in own:
            records.append(ahead)
            ahead = next(passing, None)
        yield month, records


def _place(name: str) -> str:
    return f"data/{name}.js"


def _stamp(runs: SeriesRuns, points: Sequence[Point], more: str) -> str:
    """Return a digest of what a data file is made from. A stored run never changes."""
    text = "\n".join([_version(), runs.digest, more, *(point.run_id for point in points)])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _version() -> str:
    """Return a digest of the code that makes the files."""
    digest = hashlib.sha256(levelfield.__version__.encode())
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _write_assets(writer: SiteWriter) -> None:
    for name in (*ASSETS, *VENDORED):
        writer.write(f"assets/{name}", (HERE / "assets" / name).read_text(encoding="utf-8"))
