"""Whether recorded runs still count: their code, and the curve that they were compared with."""

from __future__ import annotations

from pathlib import Path

from levelfield.catalog.code_basis import CodeBasis
from levelfield.catalog.framework_versions import rests_on
from levelfield.catalog.registry import Registry
from levelfield.specs.base import load
from levelfield.specs.basis import Basis
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.reference_curves import ReferenceCurves
from levelfield.specs.tested import LayoutRuns, MatrixRun

REFERENCE = "torch"
REFERENCES = "tested-references.json"  # beside torch's manifest


class ReferenceState:
    """torch's recorded curves, and whether each rests on the code at hand."""

    def __init__(self, registry: Registry) -> None:
        implementation, folder = registry.implementation(REFERENCE)
        path = folder / REFERENCES
        self.recorded = load(ReferenceCurves, path) if path.exists() else None  # not cached: the matrix writes it
        self._code = CodeBasis(implementation, folder)

    def fault(self, family: str, key: str) -> str | None:
        """Return why a run that was compared with the curve `key` does not count; None where it does."""
        curve = None if self.recorded is None else self.recorded.of(family)
        if curve is None or self.recorded is None:
            return f"torch's reference of {family} is not recorded"
        if curve.key != key:
            return f"torch's reference of {family} is another curve now"
        if changed := self._code.changed(self.recorded.basis.of(curve.rests_on)):
            return f"torch's reference of {family} rests on changed code ({_names(changed)})"
        return None


class RunCurrency:
    """Judges the recorded runs of one version of a framework against the code at hand."""

    def __init__(
        self, tested: LayoutRuns, implementation: ImplementationFile, folder: Path, references: ReferenceState
    ) -> None:
        self._tested, self._references = tested, references
        self._code = CodeBasis(implementation, folder)
        is_old = tested.basis is None and tested.rests_on is not None
        self._all = "its code has changed" if is_old and tested.rests_on != rests_on(implementation, folder) else None
        self._sets: dict[str, str | None] = {}

    def fault(self, run: MatrixRun) -> str | None:
        """Return why the run does not count for the code at hand; None where it does."""
        if self._tested.basis is None or run.rests_on is None:
            return self._all
        own = self._of_set(self._tested.basis, run.rests_on)
        return own or (None if run.reference is None else self._references.fault(run.family, run.reference))

    def _of_set(self, basis: Basis, key: str) -> str | None:
        if key not in self._sets:
            changed = self._code.changed(basis.of(key))
            self._sets[key] = f"its code has changed ({_names(changed)})" if changed else None
        return self._sets[key]


def _names(paths: list[str]) -> str:
    """Return the first two of the paths, and how many more there are."""
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return ", ".join(paths[:2]) + more
