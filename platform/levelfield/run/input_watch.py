"""Checks at the end of a run that the files that the platform gave it are still what the platform wrote.

The result is computed from these files. What was overwritten is written again, so that nothing measured is lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Outcome
from levelfield.node.regular_files import read_regular
from levelfield.rundir.directory import write_atomically
from levelfield.specs.paths import RunPaths


class InputWatch:
    """The documents of one run, as they are when its training starts."""

    def __init__(self, paths: RunPaths) -> None:
        """Raises OSError."""
        given = (paths.plan, paths.reference, paths.certificate, paths.preflight, paths.job, paths.request)
        self._written = {path: read_regular(path) for path in (*given, paths.provenance) if path.exists()}

    def judged(self, outcome: Outcome) -> Outcome:
        """Return the outcome with what was changed, and write that again. Raises OSError where it cannot be written."""
        changed = [path for path, content in self._written.items() if _content(path) != content]
        for path in changed:
            write_atomically(path, self._written[path].decode())
        if not changed:
            return outcome
        names = ", ".join(path.name for path in changed)
        said = f"{names}: found other content than at the start; the first is there again. Let nothing else write there"
        if outcome.cause == "exited":
            return replace(outcome, cause="inputs-changed", evidence=said)
        return replace(outcome, warnings=(*outcome.warnings, said))


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None
