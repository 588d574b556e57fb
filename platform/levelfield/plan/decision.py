"""The input of a plan: the hardware, the requested scale, and the values of a suite."""

from __future__ import annotations

from dataclasses import dataclass, field

from levelfield.catalog.lookup import Selection
from levelfield.plan.request import RequestedScale, Suggestion, UserRequest
from levelfield.specs.selector import Selector
from levelfield.specs.suite import EntryUsed


@dataclass(frozen=True)
class Decision:
    """The input of `resolve`.

    text: the case string as the user wrote it. selector: the same with the chosen hardware. found: the documents and
    devices that it names. scale, why_scale: the requested scale, and the reason where it is not the command line's.
    suite: the suite's entry. deviations: differences from the request, as sentences. refusal: why this machine cannot
    run it; the plan is then a record and is not checked. driver: the version of the devices' driver, where packages
    that the platform installs need a certain one.
    """

    text: str
    selector: Selector
    found: Selection
    request: UserRequest = field(default_factory=UserRequest)
    scale: RequestedScale = "auto"
    why_scale: str | None = None
    suggestion: Suggestion = field(default_factory=Suggestion)
    suite: EntryUsed | None = None
    deviations: tuple[str, ...] = ()
    refusal: str | None = None
    driver: str | None = None
