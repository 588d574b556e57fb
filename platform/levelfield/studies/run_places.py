"""The places in which a comparison looks for runs: the folder of runs first, the store where no folder has the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType

from levelfield.compare.comparison import Histories
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.record import RunRecord
from levelfield.store.address import NOWHERE, VARIABLE, address_of
from levelfield.studies.named_sides import latest_of_series, named_runs
from levelfield.studies.run_sources import FolderRuns, KeptRuns, RunSource


class RunPlaces:
    """A folder of runs and a store, which is opened when it is first needed. Use it in a `with` block.

    url: of the only place to look in; None for the folder and the default store.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder, self._url, self._open = FolderRuns(folder), url, ExitStack()

    def __enter__(self) -> RunPlaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)  # an open store then looks for damaged rows

    def runs(self, text: str, with_repeats: bool = False) -> list[RunRecord]:
        """Return the runs of a side. Raises the error of the folder where neither place has such a run."""
        if self._url is None:
            try:
                return named_runs(self._folder, text, with_repeats)
            except UnknownName:
                if self._store is None or not self._store.matching("*"):
                    raise
        return named_runs(self._known_store, text, with_repeats)

    def latest(self) -> Iterator[RunRecord]:
        """Yield the newest runs of every series, until the newest that counts: of the folder, else of the store."""
        source: RunSource | None = self._folder if self._url is None and self._folder.series() else self._store
        if source:
            for series in source.series():
                yield from latest_of_series(source, series)

    def histories(self, records: Iterable[RunRecord]) -> Histories:
        """Return the stored runs of the series of these records; empty where there is no store."""
        digests = sorted({record.series.fingerprint() for record in records})
        return self._store.histories(digests) if self._store else {}

    @cached_property
    def _store(self) -> KeptRuns | None:
        """Return the open store; None where there is none yet."""
        if self._url is None and (os.environ.get(VARIABLE) == NOWHERE or not _is_there()):
            return None
        from levelfield.store.database import Store

        return KeptRuns(self._open.enter_context(Store.open(self._url, read_only=True)))

    @property
    def _known_store(self) -> KeptRuns:
        if self._store is None:
            raise UsageError("compare: found no store, expected one; name it with --store")
        return self._store


def _is_there() -> bool:
    """Return whether the default store exists; a database server is asked when it is opened."""
    path = address_of(None).path
    return path is None or path.exists()
