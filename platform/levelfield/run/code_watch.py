"""Checks that the code of a run is the planned one where its ranks start, and that it is the same at the end.

A plan may wait: for its certificate's run, for the repeats before it, for a queue. Code that was changed meanwhile
would train under the digest of the code before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Outcome
from levelfield.node.code_digest import code_digest, shared_folders
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.node_records import last_fields
from levelfield.run.runtimes.process_runtime import imports_file
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


class CodeWatch:
    """The code of one run. On other machines each node's own part digests it, and this reads what it found."""

    def __init__(self, plan: Plan, paths: RunPaths) -> None:
        self._plan, self._paths = plan, paths
        self._is_here = plan.launch is None and plan.implementation.rests_on is not None
        self._start = self._digest() if self._is_here else None
        self._covered = _covered(Path(plan.implementation.folder)) if self._is_here else ()

    def refusal(self) -> Outcome | None:
        """Return the outcome of a run whose code was changed since it was planned; None where it may train."""
        planned = self._plan.implementation.rests_on
        if self._start in (None, planned):
            return None
        evidence = (
            f"{self._plan.implementation.folder}, a folder that it uses, or the worker has changed since the plan was "
            f"made: found {_short(str(self._start))}, planned {_short(str(planned))}. Run the command again"
        )
        return Outcome("code-changed", (), evidence)

    def judged(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the digests of the code at the run's start and end."""
        if not self._is_here:
            return replace(outcome, code=dict(self._of_nodes()))
        code = {"at its start": str(self._start), "at its end": self._digest()}
        return replace(outcome, code=code, elsewhere=self._elsewhere() if outcome.cause == "exited" else None)

    def _digest(self) -> str:
        try:
            return code_digest(Path(self._plan.implementation.folder))
        except OSError as error:
            return f"unreadable: {error.filename}: {error.strerror}"

    def _elsewhere(self) -> dict[str, str]:
        """Return the files that ranks imported and that the digest of the code does not cover, with their digests."""
        found: dict[str, str] = {}
        for rank in range(self._plan.world_size):
            listed = _report(imports_file(self._paths, rank))
            if listed is None:
                found[f"rank {rank}"] = "it did not say what it imported"
            found |= {path: digest for path, digest in (listed or {}).items() if not path.startswith(self._covered)}
        return found

    def _of_nodes(self) -> Iterator[tuple[str, str]]:
        """Yield what each node's last record says. A node that is lost has none, and its run is not valid anyway."""
        for node in range(self._plan.hardware.nodes if self._plan.launch else 0):
            found = last_fields(self._paths.root, node)
            if found and isinstance(digest := found.get("code"), str):
                yield f"at the end of node {node}", digest


def _covered(folder: Path) -> tuple[str, ...]:
    """Return the beginnings of all paths that the digest of the code covers."""
    folders = [folder]
    with suppress(OSError):
        folders += shared_folders(folder)
    return tuple(f"{os.path.realpath(each)}{os.sep}" for each in folders)


def _report(path: Path) -> dict[str, str] | None:
    """Return the digests by path of a rank's report; None where it is missing or damaged."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        listed = json.loads(read_regular(path))["files"]
        return {str(each["path"]): str(each["sha256"]) for each in listed}
    return None


def _short(digest: str) -> str:
    return digest[:19] if digest.startswith("sha256:") else digest
