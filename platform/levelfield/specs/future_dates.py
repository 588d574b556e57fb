"""Dates that lie ahead: of a run on a machine whose clock was wrong. Such a run is not the latest one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_CLOCKS_DIFFER = timedelta(days=1)


def first_future_date(now: datetime | None = None) -> datetime:
    """Return the date in UTC from which a date is wrong: a day from now, as clocks of good machines differ by less."""
    return (now or datetime.now(timezone.utc)) + _CLOCKS_DIFFER
