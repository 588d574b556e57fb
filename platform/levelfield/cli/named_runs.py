"""The runs that a command names, and the errors of those that it cannot take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from levelfield.cli.options import runs_of
from levelfield.errors import LevelfieldError, UsageError
from levelfield.specs.paths import RunPaths

RUN_NAME = "a path, a run id, a part of an id, or latest"


def finished_run(options: argparse.Namespace, name: str) -> RunPaths:
    """Return a run that is over. Raises UsageError for one that goes on."""
    from levelfield.rundir import directory

    return directory.finished_run(runs_of(options), name)


def _refuse_bundle(name: str) -> None:
    from levelfield.studies.compared_runs import bundle_and_run

    if bundle := bundle_and_run(name):
        raise UsageError(f"{bundle[0]}: found a bundle, expected a run here; `report` and `compare` take bundles")


class NamedRuns:
    """The runs of `options.run`, and the errors of those that the command could not take.

    One that goes on or is damaged leaves the others to the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._errors: list[LevelfieldError] = []

    def over(self) -> Iterator[RunPaths]:
        """Return every named run that is over. The error of any other is kept."""
        for name in self._options.run:
            with self.kept_error():
                if ".zip" in name:
                    _refuse_bundle(name)
                yield finished_run(self._options, name)

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
