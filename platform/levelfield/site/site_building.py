"""Stored runs into a folder of pages. Files of a series that did not change stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from itertools import groupby
from pathlib import Path

import levelfield
from levelfield.catalog.registry import Registry
from levelfield.site.escaped_data import data_script
from levelfield.site.gathering import SiteContent, gathered
from levelfield.site.results import StoredResults
from levelfield.site.run_details import month_file
from levelfield.site.series_history import SeriesRuns, history, month_of
from levelfield.site.series_summary import SeriesSummary, summary_of
from levelfield.site.site_manifest import SeriesFiles, SiteManifest, SiteWriter, opened
from levelfield.site.site_pages import write_pages
from levelfield.specs.record import RunRecord

HERE = Path(__file__).parent
ASSETS = ("page.js", "tables.js", "charts.js", "case.js", "run.js", "compare.js", "style.css", "icon.svg")
VENDORED = ("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css", "uplot/LICENSE")
References = Mapping[tuple[str, str], tuple[str, list[float]]]  # by digests of work and corpus: name, losses


@dataclass(frozen=True)
class BuiltSite:
    """What was made. unreadable: runs that were left out because their time cannot be read."""

    runs: int
    series: int
    rebuilt: int
    files: int
    unreadable: tuple[str, ...]


def build_site(
    results: StoredResults, folder: Path, registry: Registry, progress: Callable[[int, int], None] | None = None
) -> BuiltSite:
    """Write the site. progress: called with the number of series done and of all. Raises UsageError for the folder."""
    before, writer = opened(folder), SiteWriter(folder)
    content, references = gathered(results), stored_references(registry)
    series: dict[str, SeriesFiles] = {}
    rebuilt = 0
    for done, runs in enumerate(content.series.values(), start=1):
        reference = references.get((runs.series.work, runs.series.corpus))
        series[runs.slug], is_new = _series_files(runs, reference, results, before, writer, folder)
        rebuilt += is_new
        if progress:
            progress(done, len(content.series))
    summaries = {digest: series[runs.slug].summary for digest, runs in content.series.items()}
    _write_assets(writer)
    write_pages(writer, content, summaries, registry, datetime.now(timezone.utc))
    writer.finish(before, series)
    return BuiltSite(content.runs, len(series), rebuilt, len(writer.names), tuple(content.unreadable))


def stored_references(registry: Registry) -> References:
    """Return the loss curves of the stored references, by what they are references of."""
    found = [registry.reference(name) for name in registry.references]
    return {(each.identity.work, each.identity.corpus): (each.name, list(each.losses)) for each in found}


def _series_files(
    runs: SeriesRuns,
    reference: tuple[str, list[float]] | None,
    results: StoredResults,
    before: SiteManifest,
    writer: SiteWriter,
    folder: Path,
) -> tuple[SeriesFiles, bool]:
    """Return the files of a series, and whether they were written now."""
    stamp, old = _stamp(runs, reference), before.series.get(runs.slug)
    if old and old.stamp == stamp and all((folder / name).is_file() for name in old.files):
        writer.keep(old.files)
        return old, False
    records = {record.run_id: record for record in results.records([point.run_id for point in runs.points])}
    names = tuple(_write_series(runs, records, reference, writer))
    return SeriesFiles(stamp=stamp, files=names, summary=summary_of(runs, records)), True


def _write_series(
    runs: SeriesRuns,
    records: Mapping[str, RunRecord],
    reference: tuple[str, list[float]] | None,
    writer: SiteWriter,
) -> Iterable[str]:
    yield _data(writer, f"history-{runs.slug}", history(runs, records))
    for month, points in groupby(runs.points, key=lambda point: month_of(point.began)):
        of_month = [records[point.run_id] for point in points]
        yield _data(writer, f"runs-{runs.slug}-{month}", month_file(runs.series, of_month, reference))


def _data(writer: SiteWriter, name: str, value: object) -> str:
    return writer.write(f"data/{name}.js", data_script(name, value))


def _stamp(runs: SeriesRuns, reference: tuple[str, list[float]] | None) -> str:
    """Return a digest of all that the files of a series are made from. A stored run never changes."""
    known = (point.run_id for point in runs.points)
    text = "\n".join([_version(), runs.digest, repr(reference), *known])
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
