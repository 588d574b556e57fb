"""What the status of a run means for its verdict: nothing that is not valid is aligned."""

from __future__ import annotations

from levelfield.specs.result import Alignment, Status

# What the layers say beside the status. `not comparable` and `unchecked` say themselves that nothing was shown.
_SHOWN = ("diverged", "different", "inconclusive")


def under_status(verdict: Alignment, status: Status) -> Alignment:
    """Return the verdict on the training; `unchecked` in place of `aligned` and `consistent` for a run without figures.

    The layers stay: they say what was compared. A verdict that finds a difference stays too, and its reason names the
    status.
    """
    if status.has_figures:
        return verdict
    said = f"the run is {status.word}"
    if verdict.verdict in ("aligned", "consistent"):
        reason = f"{said}, so no verdict on it counts (by its layers alone: {verdict.verdict})"
        return verdict.model_copy(update={"verdict": "unchecked", "reason": reason})
    if verdict.verdict in _SHOWN:
        return verdict.model_copy(update={"reason": f"{verdict.reason}; {said}"})
    return verdict
