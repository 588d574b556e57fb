"""Where a comparison finds its runs: a folder of run directories, or the store. Both have the same questions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from levelfield.errors import LevelfieldError
from levelfield.judge.collector import collect
from levelfield.rundir.directory import read_plan
from levelfield.rundir.run_state import finished_run, refuse_running
from levelfield.specs.future_dates import first_future_date
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Point, RunRecord, Series
from levelfield.store.run_record import record_of, series_of

if TYPE_CHECKING:
    from levelfield.store.database import Store  # a second of imports that a folder of runs does not need

_STAMP = len("20261122T030405Z")  # the beginning of a run id
_Placed = tuple[str, int, Path]  # stamp, repeat and folder of a run


class RunSource(Protocol):
    """A place with runs. A key is what `find` and `matching` return for a run."""

    def find(self, name: str) -> str:
        """Return the key of a run. Raises UnknownName where there is none, UsageError where there are several."""
        ...

    def matching(self, pattern: str) -> list[str]:
        """Return the keys of the runs whose id, or path, fits a pattern with `*`."""
        ...

    def record(self, key: str) -> RunRecord: ...

    def series(self) -> list[Series]:
        """Return every series that has a run."""
        ...

    def newest(self, series: Series) -> Iterator[RunRecord]:
        """Yield the runs of a series, the newest first, each read when it is taken. Dates in the future come last."""
        ...


class FolderRuns:
    """The run directories of a folder. Figures come from the raw files, so an edited result.json changes none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> str:
        return str(finished_run(self._folder, name).root)

    def matching(self, pattern: str) -> list[str]:
        named = [root for root in self._roots() if fnmatch.fnmatchcase(root.name, pattern)]
        given = Path(pattern)  # with a folder it is a path
        paths = sorted(p.parent for p in given.parent.glob(f"{given.name}/plan.json")) if "/" in pattern else []
        return [str(root) for root in (*named, *paths)]

    def record(self, key: str) -> RunRecord:
        paths = RunPaths(Path(key))
        refuse_running(paths)
        return record_of(paths, result=collect(paths))

    def series(self) -> list[Series]:
        return [series for series, _ in self._by_series.values()]

    def newest(self, series: Series) -> Iterator[RunRecord]:
        _, placed = self._by_series.get(series.fingerprint(), (series, []))
        ahead = first_future_date().strftime("%Y%m%dT%H%M%SZ")
        for _, _, root in sorted(placed, key=lambda each: (each[0] < ahead, *each), reverse=True):
            yield self.record(str(root))

    def _roots(self) -> list[Path]:
        return sorted(path.parent for path in self._folder.glob("*/plan.json"))

    @cached_property
    def _by_series(self) -> dict[str, tuple[Series, list[_Placed]]]:
        """Return the run directories by the digest of their series. One that goes on or is damaged is left out.

        All repeats of a command have the time of its start in their ids, so their numbers give their order.
        """
        found: dict[str, tuple[Series, list[_Placed]]] = {}
        for root in self._roots():
            try:
                refuse_running(RunPaths(root))
                plan = read_plan(RunPaths(root))
            except LevelfieldError:
                continue
            series = series_of(plan)
            found.setdefault(series.fingerprint(), (series, []))[1].append((root.name[:_STAMP], plan.repeat, root))
        return found


class KeptRuns:
    """The runs of an open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, name: str) -> str:
        return self._store.find(name)

    def matching(self, pattern: str) -> list[str]:
        return [run_id for run_id in self._store.run_ids() if fnmatch.fnmatchcase(run_id, pattern)]

    def record(self, key: str) -> RunRecord:
        return self._store.record(key)

    def series(self) -> list[Series]:
        return [found.series for found in self._store.series()]

    def newest(self, series: Series) -> Iterator[RunRecord]:
        digest = series.fingerprint()
        points, ahead = self._store.points([digest]).get(digest, []), first_future_date().isoformat()
        for point in sorted(reversed(points), key=lambda point: point.began >= ahead):
            yield self._store.record(point.run_id)

    def histories(self, digests: list[str]) -> dict[str, list[Point]]:
        """Return the runs of each series in the order of time."""
        return self._store.points(digests)
