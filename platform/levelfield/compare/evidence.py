"""Which runs of a side count: valid, sealed, and with figures that follow from their own result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from levelfield.compare.quantities import QUANTITIES, RATE, at
from levelfield.errors import UsageError
from levelfield.specs.record import RunRecord

DIFFERS = ("different", "diverged")  # verdicts of a training that did not do the work


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison: runs of one series. counted: those that may be compared; excluded: others, and why."""

    name: str
    counted: tuple[RunRecord, ...]
    excluded: tuple[tuple[RunRecord, str], ...] = ()

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return (*self.counted, *(record for record, _ in self.excluded))

    @property
    def first(self) -> RunRecord:
        """Return the run whose series stands for the side."""
        return self.runs[0]


def side_of(name: str, records: Sequence[RunRecord]) -> ComparedSide:
    """Return a side. Raises UsageError for no run, for a run given twice, and for runs of several series."""
    if not records:
        raise UsageError(f"side {name}: found no run, expected at least one")
    ids = [record.run_id for record in records]
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        raise UsageError(f"side {name}: found run {twice} twice; expected every run once")
    _refuse_mixed(name, records)
    reasons = [(record, exclusion(record)) for record in records]
    counted = tuple(record for record, reason in reasons if reason is None)
    return ComparedSide(name, counted, tuple((record, reason) for record, reason in reasons if reason))


def exclusion(record: RunRecord) -> str | None:
    """Return why the run is in no comparison; None for one that counts."""
    if record.evidence != "sealed":
        return f"{record.evidence}: {record.evidence_reason}" if record.evidence_reason else record.evidence
    if record.word != "valid":
        failure = f" ({record.failure})" if record.failure and record.failure != record.word else ""
        return f"{record.word}{failure}" + (f": {record.reason}" if record.reason else "")
    return contradiction(record)


def contradiction(record: RunRecord) -> str | None:
    """Return the first figure of the record that does not follow from the run's own result; None when all follow."""
    return next(_contradictions(record), None)


def _contradictions(record: RunRecord) -> Iterator[str]:
    """Yield figures that differ from result.json, and a speed per device that is not that of all over devices."""
    for quantity in QUANTITIES:
        stored, (found, _) = quantity.read(record), quantity.origin(record)
        if not _agree(stored, found):
            yield f"{quantity.column.name} is {stored}, and {found} in its result.json"
    whole, devices = at(record.result, "throughput", "tokens_per_second"), record.series.devices
    if isinstance(whole, (int, float)) and not _agree(RATE.read(record), whole / devices):
        yield f"{RATE.column.name} is {RATE.read(record)}, expected {whole} tokens/s over {devices} device(s)"
    if record.series.layout.world_size != devices:
        yield f"layout {record.series.layout} is for {record.series.layout.world_size} devices, found {devices}"


def _agree(stored: float | None, found: JsonValue) -> bool:
    """Return whether both are the same number, or neither is one. NaN agrees with nothing."""
    if stored is None or isinstance(found, bool) or not isinstance(found, (int, float)):
        return stored is None and not isinstance(found, (int, float))
    return math.isclose(stored, found, rel_tol=1e-9)


def _refuse_mixed(name: str, records: Iterable[RunRecord]) -> None:
    """Raises UsageError where the runs of a side belong to different series, with a field that differs."""
    first, *others = records
    for other in others:
        for field in type(first.series).model_fields:
            one, two = getattr(first.series, field), getattr(other.series, field)
            if one != two:
                raise UsageError(
                    f"side {name}: found {field} {one} in {first.run_id} and {two} in {other.run_id}; expected runs of "
                    "one series a side, so give them as two sides"
                )
