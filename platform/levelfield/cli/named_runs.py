"""The runs that a command names, and the errors of those that it cannot take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from levelfield.errors import LevelfieldError, UsageError
from levelfield.rundir.directory import find_finished_run
from levelfield.specs.paths import RunPaths


class NamedRuns:
    """The runs of a command, and the errors of those that it could not take.

    One that goes on or is damaged leaves the others to the command.
    """

    def __init__(self, runs: Path, names: Sequence[str]) -> None:
        self.runs, self.names = runs, names
        self._errors: list[LevelfieldError] = []

    def over(self) -> Iterator[RunPaths]:
        """Return every named run that is over. The error of any other is stored."""
        from levelfield.studies.compared_runs import parse_bundle_name

        for name in self.names:
            with self.errors_stored():
                if ".zip" in name and (bundle := parse_bundle_name(name)):
                    expected = "expected a run here; `report` and `compare` take bundles"
                    raise UsageError(f"{bundle[0]}: found a bundle, {expected}")
                yield find_finished_run(self.runs, name)

    @contextmanager
    def errors_stored(self) -> Iterator[None]:
        """Store an error of the block for raise_error."""
        try:
            yield
        except LevelfieldError as error:
            self._errors.append(error)

    def raise_error(self) -> None:
        """Raise the first stored error, with the messages of all. Without one nothing happens."""
        if self._errors:
            first, *_ = self._errors
            first.args = ("\n".join(dict.fromkeys(map(str, self._errors))),)
            raise first
