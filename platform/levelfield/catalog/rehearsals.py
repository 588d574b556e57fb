"""Plans that ran without their devices, against the code at hand."""

from __future__ import annotations

from levelfield.catalog.chip_names import find_chip
from levelfield.catalog.code_basis import training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.rehearsed_runs import RehearsedRow, RehearsedRuns
from levelfield.specs.vendor import VendorFile

REHEARSED_FILE = "docs/verified/rehearsed.json"
STAND_IN_FOLDERS = (
    "tools/standin",
    "tools/rehearsal/inside",
)  # what takes the place of a device, and of a rank's start


def rehearsed_code_digest(registry: Registry, framework: str, kind: str) -> str:
    """Return the digest of what the figures of a rehearsal follow from. framework: also with a further version.

    Raises UsageError for an unknown framework.
    """
    folders = (checkout() / name for name in STAND_IN_FOLDERS)
    return training_code_digest(
        *registry.implementation_of_label(framework), kind, *(folder for folder in folders if folder.is_dir())
    )


class Rehearsals:
    """The rows of docs/verified/rehearsed.json against the code at hand. Raises DocumentError for a wrong file."""

    def __init__(self, registry: Registry) -> None:
        path = checkout() / REHEARSED_FILE
        self.recorded = registry.document_cache.document(RehearsedRuns, path) if path.exists() else None
        rows = () if self.recorded is None else self.recorded.rows
        self._vendors: dict[str, VendorFile] = {}  # by chip
        code_digests: dict[tuple[str, str], str] = {}  # by framework and kind of device
        self.faults: dict[RehearsedRow, str | None] = {}  # why a row does not count; None where it does
        for row in rows:
            try:
                if row.chip not in self._vendors:
                    self._vendors[row.chip] = find_chip(registry, row.chip)[0]
                key = row.framework, self._vendors[row.chip].device_kind
                if key not in code_digests:
                    code_digests[key] = rehearsed_code_digest(registry, *key)
            except UsageError as error:
                raise DocumentError(f"{REHEARSED_FILE}: {row.case} {row.layout}: {error}") from None
            allocation_fault = f"{row.failed_allocations} allocations failed" if row.failed_allocations else None
            self.faults[row] = row.stale_reason(code_digests[key]) or allocation_fault

    def latest(self, *, framework: str | None = None, kind: str | None = None, vendor: str | None = None) -> str | None:
        """Return `simulated 2026-11` of the newest row that counts; None without one.

        framework: with its version where that is a further one. kind: of devices. vendor: of the chip.
        """
        dates = []
        for row, fault in self.faults.items():
            spec = self._vendors[row.chip]
            matches = (
                framework in (None, row.framework),
                kind in (None, spec.device_kind),
                vendor in (None, spec.name),
            )
            dates += [row.date] if fault is None and all(matches) else []
        return f"simulated {max(dates)[:7]}" if dates else None
