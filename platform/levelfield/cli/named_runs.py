"""The runs that a command line names, and the errors of those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from levelfield.errors import LevelfieldError, UsageError
from levelfield.rundir.directory import find_finished_run
from levelfield.specs.paths import RunPaths


class NamedRuns:
    """The runs that a command line names. The error of an unfinished or damaged one does not stop the others."""

    def __init__(self, runs_folder: Path, names: Sequence[str]) -> None:
        self.runs_folder, self.names = runs_folder, names  # names: as on the command line, of runs in the folder
        self._errors: list[LevelfieldError] = []

    def finished_runs(self) -> Iterator[RunPaths]:
        """Yield every named run that is finished. The error of any other is collected."""
        from levelfield.studies.compared_runs import parse_bundle_name

        for name in self.names:
            with self.collecting_errors():
                if ".zip" in name and (bundle := parse_bundle_name(name)):
                    expected = "expected a run here; `report` and `compare` take bundles"
                    raise UsageError(f"{bundle[0]}: found a bundle, {expected}")
                yield find_finished_run(self.runs_folder, name)

    @contextmanager
    def collecting_errors(self) -> Iterator[None]:
        """Keep an error of the block for `raise_errors`."""
        try:
            yield
        except LevelfieldError as error:
            self._errors.append(error)

    def raise_errors(self) -> None:
        """Raise the first collected error, with the messages of all. Do nothing if there is none."""
        if self._errors:
            first, *_ = self._errors
            first.args = ("\n".join(dict.fromkeys(map(str, self._errors))),)
            raise first
