"""The runs that a command names. One that goes on or is damaged leaves the others to the command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from levelfield.errors import LevelfieldError
from levelfield.rundir.directory import default_runs
from levelfield.rundir.run_state import finished_run
from levelfield.specs.paths import RunPaths


class NamedRuns:
    """The runs of `options.run`, and the errors of those that the command could not take."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._runs, self._names = options.runs or default_runs(), options.run
        self._errors: list[LevelfieldError] = []

    def over(self) -> Iterator[RunPaths]:
        """Return every named run that is over. The error of any other is kept."""
        for name in self._names:
            with self.kept_error():
                yield finished_run(self._runs, name)

    @contextmanager
    def kept_error(self) -> Iterator[None]:
        """Keep an error of the block for raise_error."""
        try:
            yield
        except LevelfieldError as error:
            self._errors.append(error)

    def raise_error(self) -> None:
        """Raise the first kept error, with the messages of all. Without one nothing happens."""
        if self._errors:
            first, *_ = self._errors
            first.args = ("\n".join(dict.fromkeys(map(str, self._errors))),)
            raise first
