"""Records runs in a store when they end. A store that cannot be written changes no run and no exit code."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from levelfield.errors import LevelfieldError
from levelfield.specs.paths import RunPaths
from levelfield.store.address import NOWHERE, VARIABLE

if TYPE_CHECKING:  # every command imports this module, and few of them need documents
    from levelfield.specs.record import Purpose


class RunIntake:
    """Called with each finished run. say: for the sentence about one that could not be recorded.

    url: the store, by default that of LEVELFIELD_STORE; `none` there records nothing.
    """

    def __init__(
        self, say: Callable[[str], None], url: str | None = None, purpose: Purpose = "manual", night: str | None = None
    ) -> None:
        self._say, self._url, self._purpose, self._night = say, url, purpose, night

    def __call__(self, paths: RunPaths) -> None:
        if (self._url or os.environ.get(VARIABLE)) == NOWHERE:
            return
        try:
            self._record(paths)
        except Exception as error:  # the run is over, and no fault of the store may take its result
            what = str(error) if isinstance(error, LevelfieldError) else f"{type(error).__name__}: {error}"
            self._say(f"{paths.root.name} was not recorded: {what}. Later: `store import {paths.root}`")

    def _record(self, paths: RunPaths) -> None:
        from levelfield.store.database import Store  # with SQLAlchemy: only a command that records imports it
        from levelfield.store.run_record import record_of, storable

        record = storable(record_of(paths, self._purpose, self._night), str(paths.root))
        with Store.open(self._url) as store:
            if store.add([record]).conflicts:
                self._say(f"{record.run_id}: the store has another run of this id; both are kept aside")
