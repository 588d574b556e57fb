"""Checks of what a site's file says, before a run needs it: what was tried, what was found, and what to do.

Each launcher of Levelfield has a module.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

SiteWord = Literal["ok", "missing", "unknown"]


@dataclass(frozen=True)
class SiteFinding:
    """One thing that was tried. word: ok; missing: a run would fail; unknown: this user may not look, for example.

    subject: a host, or an object of the engine. do: what to do, if anything.
    """

    subject: str
    word: SiteWord
    says: str
    do: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def ok(subject: str, says: str) -> SiteFinding:
    return SiteFinding(subject, "ok", says)


def missing(subject: str, says: str, do: str) -> SiteFinding:
    return SiteFinding(subject, "missing", says, do)


def unknown(subject: str, says: str, do: str = "") -> SiteFinding:
    return SiteFinding(subject, "unknown", says, do)
