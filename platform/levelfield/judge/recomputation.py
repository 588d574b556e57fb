"""What a run's recomputation repeats, by the plan and by what the training reported."""

from __future__ import annotations

from levelfield.measure.flops import Recomputation
from levelfield.rundir.event_lines import Event
from levelfield.specs.tuning import Recompute

# What each choice may mean in a framework; the first is meant where the training reports nothing.
MEANINGS: dict[Recompute, tuple[Recomputation, ...]] = {
    "none": ("none",),
    "selective": ("selective", "selective-attention"),
    "full": ("full", "full-except-down"),
}


def repeated(chosen: Recompute, framework: Event | None) -> Recomputation:
    """Return what is repeated. framework: the training's event of that name; `details.repeats` has the kind.

    A report that contradicts the choice counts as none.
    """
    details = (framework or {}).get("details")
    said = details.get("repeats") if isinstance(details, dict) else None
    return next((kind for kind in MEANINGS[chosen] if kind == said), MEANINGS[chosen][0])
