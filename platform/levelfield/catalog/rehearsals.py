"""Plans that ran without their devices, against the code at hand."""

from __future__ import annotations

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.code_basis import training_code
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.rehearsed_runs import RehearsedRow, RehearsedRuns
from levelfield.specs.vendor import VendorFile

EVIDENCE = "docs/verified/rehearsed.json"
PRETENDED = ("tools/standin", "tools/rehearsal/inside")  # what takes the place of a device, and of a rank's start


def rehearsed_code(registry: Registry, framework: str, kind: str) -> str:
    """Return the digest of what the figures of a rehearsal follow from. framework: also with a further version.

    Raises UsageError for an unknown framework.
    """
    folders = (checkout() / name for name in PRETENDED)
    return training_code(*registry.labelled(framework), kind, *(folder for folder in folders if folder.is_dir()))


class Rehearsals:
    """The rows of docs/verified/rehearsed.json against the code at hand. Raises DocumentError for a wrong file."""

    def __init__(self, registry: Registry) -> None:
        path = checkout() / EVIDENCE
        self.recorded = registry.files.document(RehearsedRuns, path) if path.exists() else None
        rows = () if self.recorded is None else self.recorded.rows
        self._vendors: dict[str, VendorFile] = {}  # by chip
        code: dict[tuple[str, str], str] = {}  # by framework and kind of device
        self.faults: dict[RehearsedRow, str | None] = {}  # why a row does not count; None where it does
        for row in rows:
            try:
                if row.chip not in self._vendors:
                    self._vendors[row.chip] = find_chip(registry, row.chip)[0]
                key = row.framework, self._vendors[row.chip].device_kind
                if key not in code:
                    code[key] = rehearsed_code(registry, *key)
            except UsageError as error:
                raise DocumentError(f"{EVIDENCE}: {row.case} {row.layout}: {error}") from None
            failed = f"{row.failed_allocations} allocations failed" if row.failed_allocations else None
            self.faults[row] = row.stale(code[key]) or failed

    def latest(self, *, framework: str | None = None, kind: str | None = None, vendor: str | None = None) -> str | None:
        """Return `simulated 2026-11` of the newest row that counts; None without one.

        framework: with its version where that is a further one. kind: of devices. vendor: of the chip.
        """
        dates = []
        for row, fault in self.faults.items():
            spec = self._vendors[row.chip]
            of = (framework in (None, row.framework), kind in (None, spec.device_kind), vendor in (None, spec.name))
            dates += [row.date] if fault is None and all(of) else []
        return f"simulated {max(dates)[:7]}" if dates else None
