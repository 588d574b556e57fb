"""The runs that a command line names, and the errors of those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from levelfield.errors import LevelfieldError, UsageError
from levelfield.rundir.directory import find_finished_run
from levelfield.specs.paths import RunPaths

if TYPE_CHECKING:
    from levelfield.catalog.registry import Registry
    from levelfield.specs.result import Result


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
                    expected = "expected a run here; `report`, `compare` and `align references noise` take bundles"
                    raise UsageError(f"{bundle[0]}: found a bundle, {expected}")
                yield find_finished_run(self.runs_folder, name)

    def results(self, registry: Registry, bundle_files: ExitStack) -> Iterator[tuple[RunPaths, Result]]:
        """Yield every named run that is finished, also of bundles, and its result; errors are collected.

        The files of bundles exist until `bundle_files` closes.
        """
        from levelfield.judge.collector import collect
        from levelfield.studies.compared_runs import bundle_results, parse_bundle_name

        for name in self.names:
            with self.collecting_errors():
                if bundle := parse_bundle_name(name):
                    yield from bundle_results(*bundle, registry, bundle_files)
                else:
                    paths = find_finished_run(self.runs_folder, name)
                    yield paths, collect(paths)

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
