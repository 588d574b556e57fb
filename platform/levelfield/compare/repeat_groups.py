"""Which runs belong together as the repeats of one command."""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.compare.cautions import began
from levelfield.specs.record import RunRecord


def repeats_around(record: RunRecord, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of the `--repeat` that the run belongs to, in order; the run alone where it has no others.

    The repeats of a plan are numbered from 1 and follow each other, with the same series and the same build.
    """
    ordered = sorted((r for r in records if _kind(r) == _kind(record)), key=_order)
    groups: list[list[RunRecord]] = []
    for each in ordered:
        if groups and repeat_number(each) == repeat_number(groups[-1][-1]) + 1:
            groups[-1].append(each)
        else:
            groups.append([each])
    return next((group for group in groups if any(r.run_id == record.run_id for r in group)), [record])


def newest_group(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the repeats around the newest of these runs. Raises ValueError for no run."""
    return repeats_around(max(records, key=_order), records)


def _kind(record: RunRecord) -> tuple[str, str, str | None]:
    return record.series.fingerprint(), record.subject.fingerprint(), record.entry


def _order(record: RunRecord) -> tuple[str, int, str]:
    """Return what sorts runs by time; repeats that began in one second by their numbers."""
    return str(began(record) or ""), repeat_number(record), record.run_id


def repeat_number(record: RunRecord) -> int:
    """Return which repeat of its command the run is, from 1."""
    found = record.result.get("repeat")
    return found if isinstance(found, int) else 1
