"""Checks that the code of a run is the planned one where its ranks start, and that it is the same at the end.

A plan may wait: for its certificate's run, for the repeats before it, for a queue. Code that was changed meanwhile
would train under the digest of the code before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Outcome
from levelfield.node.code_digest import code_digest
from levelfield.run.launchers.node_records import last_fields
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


class CodeWatch:
    """The code of one run. On other machines each node's own part digests it, and this reads what it found."""

    def __init__(self, plan: Plan, paths: RunPaths) -> None:
        self._plan, self._paths = plan, paths
        self._is_here = plan.launch is None and plan.implementation.rests_on is not None
        self._start = self._digest() if self._is_here else None

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
        return replace(outcome, code={"at its start": str(self._start), "at its end": self._digest()})

    def _digest(self) -> str:
        try:
            return code_digest(Path(self._plan.implementation.folder))
        except OSError as error:
            return f"unreadable: {error.filename}: {error.strerror}"

    def _of_nodes(self) -> Iterator[tuple[str, str]]:
        """Yield what each node's last record says. A node that is lost has none, and its run is not valid anyway."""
        for node in range(self._plan.hardware.nodes if self._plan.launch else 0):
            found = last_fields(self._paths.root, node)
            if found and isinstance(digest := found.get("code"), str):
                yield f"at the end of node {node}", digest


def _short(digest: str) -> str:
    return digest[:19] if digest.startswith("sha256:") else digest
