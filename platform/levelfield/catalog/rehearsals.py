"""The rehearsed plans that still count, by framework, version and vendor."""

from __future__ import annotations

from pathlib import Path

from levelfield.catalog.code_basis import CodeBasis
from levelfield.catalog.lookup import find_chip
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.errors import DocumentError, UnknownName
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.recorded_runs import RehearsedRow, RehearsedRuns
from levelfield.specs.vendor import VendorFile

EVIDENCE = "docs/verified/rehearsed.json"


class Rehearsals:
    """The rows of docs/verified/rehearsed.json against the code at hand. Raises DocumentError for a wrong file."""

    def __init__(self, registry: Registry) -> None:
        path = checkout() / EVIDENCE
        self._registry = registry
        self.recorded = registry.files.document(RehearsedRuns, path) if path.exists() else None
        rows = () if self.recorded is None else self.recorded.rows
        self._code: dict[tuple[str, str], CodeBasis] = {}
        self._vendors: dict[str, VendorFile] = {}
        self.faults: dict[RehearsedRow, str | None] = {row: self._fault(row) for row in rows}

    def said(self, *, framework: str | None = None, kind: str | None = None, vendor: str | None = None) -> str | None:
        """Return `rehearsed 2026-11` of the newest row that counts; None without one.

        framework: with its version where that is a further one. kind: of devices. vendor: of the chip.
        """
        dates = [
            row.date
            for row, fault in self.faults.items()
            if fault is None and framework in (None, row.framework)
            if kind in (None, self._vendor(row).device_kind) and vendor in (None, self._vendor(row).name)
        ]
        return f"rehearsed {max(dates)[:7]}" if dates else None

    def _fault(self, row: RehearsedRow) -> str | None:
        """Return why a row does not count; None where it does."""
        assert self.recorded is not None
        kind = self._vendor(row).device_kind
        if (row.framework, kind) not in self._code:
            self._code[row.framework, kind] = CodeBasis(*self._implementation(row))
        changed = self._code[row.framework, kind].changed(self.recorded.basis.of(row.rests_on))
        if changed:
            return f"its code has changed ({', '.join(changed[:2])}{', ...' if len(changed) > 2 else ''})"
        return f"{row.failed_allocations} allocations failed" if row.failed_allocations else None

    def _vendor(self, row: RehearsedRow) -> VendorFile:
        try:
            if row.chip not in self._vendors:
                self._vendors[row.chip] = find_chip(self._registry, row.chip)[0]
        except UnknownName as error:
            raise DocumentError(f"{EVIDENCE}: {row.case} {row.layout}: {error}") from None
        return self._vendors[row.chip]

    def _implementation(self, row: RehearsedRow) -> tuple[ImplementationFile, Path]:
        try:
            return self._registry.labelled(row.framework)
        except UnknownName as error:
            raise DocumentError(f"{EVIDENCE}: {row.case} {row.layout}: {error}") from None
