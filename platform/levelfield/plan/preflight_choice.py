"""Whether a run begins with a preflight."""

from __future__ import annotations

from levelfield.plan.request import UserRequest
from levelfield.specs.plan import PreflightPlan


def preflight_of(request: UserRequest, nodes: int) -> PreflightPlan | None:
    """Return the short preflight of a run; None for a run without one.

    Without the user's choice a run has one where its hosts are named and there are several. An engine that chooses the
    nodes would queue a second job, and might give it other nodes than the training.
    """
    named = request.launch is not None and bool(request.launch.hosts) and nodes > 1
    wanted = named if request.preflight is None else request.preflight
    return PreflightPlan(quiet=request.quiet_machine) if wanted or request.quiet_machine else None
