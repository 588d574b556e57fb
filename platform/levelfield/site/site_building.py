"""Stored runs into a folder of pages. Files of a series that did not change stay as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from levelfield.site.series_summary import summary_of
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
    series, changed = _kept(content, references, before, writer, folder)
    for done, (runs, records) in enumerate(_with_records(changed, results), start=1):
        if records:
            series[runs.slug] = _written(runs, records, references, writer)
        if progress:
            progress(done, len(changed))
    content = replace(content, series={d: runs for d, runs in content.series.items() if runs.slug in series})
    summaries = {digest: series[runs.slug].summary for digest, runs in content.series.items()}
    _write_assets(writer)
    write_pages(writer, content, summaries, registry, datetime.now(timezone.utc))
    writer.finish(before, series)
    return BuiltSite(content.runs, len(series), len(changed), len(writer.names), tuple(content.unreadable))


def stored_references(registry: Registry) -> References:
    """Return the loss curves of the stored references, by what they are references of."""
    found = [registry.reference(name) for name in registry.references]
    return {(each.identity.work, each.identity.corpus): (each.name, list(each.losses)) for each in found}


def _kept(
    content: SiteContent, references: References, before: SiteManifest, writer: SiteWriter, folder: Path
) -> tuple[dict[str, SeriesFiles], list[SeriesRuns]]:
    """Return the series whose files stay, by slug, and those that have to be written."""
    kept, changed = {}, []
    for runs in content.series.values():
        old = before.series.get(runs.slug)
        if old and old.stamp == _stamp(runs, references) and all((folder / name).is_file() for name in old.files):
            writer.keep(old.files)
            kept[runs.slug] = old
        else:
            changed.append(runs)
    return kept, changed


def _with_records(
    changed: Sequence[SeriesRuns], results: StoredResults
) -> Iterator[tuple[SeriesRuns, dict[str, RunRecord]]]:
    """Yield each series with its records. They are read in one pass, so that a store reads what they share once.

    A run that was removed since its point was read is left out.
    """
    passing = results.records([point.run_id for runs in changed for point in runs.points])
    ahead = next(passing, None)
    for runs in changed:
        own, records = {point.run_id for point in runs.points}, {}
        while ahead is not None and ahead.run_id in own:
            records[ahead.run_id] = ahead
            ahead = next(passing, None)
        yield replace(runs, points=[point for point in runs.points if point.run_id in records]), records


def _written(
    runs: SeriesRuns, records: Mapping[str, RunRecord], references: References, writer: SiteWriter
) -> SeriesFiles:
    names = tuple(_write_series(runs, records, _reference(runs, references), writer))
    return SeriesFiles(stamp=_stamp(runs, references), files=names, summary=summary_of(runs, records))


def _reference(runs: SeriesRuns, references: References) -> tuple[str, list[float]] | None:
    return references.get((runs.series.work, runs.series.corpus))


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


def _stamp(runs: SeriesRuns, references: References) -> str:
    """Return a digest of all that the files of a series are made from. A stored run never changes."""
    known = (point.run_id for point in runs.points)
    text = "\n".join([_version(), runs.digest, repr(_reference(runs, references)), *known])
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
