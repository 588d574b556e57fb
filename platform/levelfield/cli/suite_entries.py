"""`--entry` and `--framework`: a part of a suite, and the same suite through another framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from levelfield.errors import UnknownName, UsageError
from levelfield.plan.request import Entry


def chosen(entries: Sequence[Entry], names: Sequence[str], framework: str | None) -> list[Entry]:
    """Return the entries of these names, all without names, through `framework`. Cases outside of suites stay.

    Raises UsageError where no suite is given, UnknownName for a name that no suite has.
    """
    known = [entry.suite.name for entry in entries if entry.suite]
    if (names or framework) and not known:
        option = "--entry" if names else "--framework"
        raise UsageError(
            f"{option}: found no --suite; it is for the entries of suites. A case string names both itself"
        )
    for name in names:
        if name not in known:
            raise UnknownName("entry of the suites", name, known)
    kept = [entry for entry in entries if not names or entry.suite is None or entry.suite.name in names]
    return [_by(entry, framework) if framework and entry.suite else entry for entry in kept]


def _by(entry: Entry, framework: str) -> Entry:
    case, _, *rest = entry.text.split(":")
    return replace(entry, text=":".join((case, framework, *rest)))
