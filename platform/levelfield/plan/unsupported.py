"""Checks, before a run, that an implementation offers every choice of the plan."""

from __future__ import annotations

from levelfield.errors import NotHere
from levelfield.specs.case import Work
from levelfield.specs.implementation import ImplementationFile, refused
from levelfield.specs.tuning import Tuning

MEANING = {"context": " (several ranks share each sequence; `plan --layout` predicts it)"}


def refuse_unsupported(implementation: ImplementationFile, work: Work, tuning: Tuning, kind: str) -> None:
    """Raises NotHere for what the implementation does not declare, and for what it refuses, with its reason."""
    offered = implementation.offered_parallelism(kind)
    lacking = [f"{name}{MEANING.get(name, '')} on {kind}" for name in tuning.parallelism if name not in offered]
    precisions = implementation.offered_precisions(kind)
    if work.training.precision not in precisions:
        lacking.append(f"precision {work.training.precision} on {kind} (it has {', '.join(precisions) or 'none'})")
    if tuning.recompute not in implementation.recompute:
        lacking.append(f"recomputation {tuning.recompute}")
    refusals = implementation.refusals(kind)
    lacking += [f"{name} ({refusals[name]})" for name in refused(refusals, work, tuning)]
    if lacking:
        raise NotHere(f"{implementation.framework} does not offer: {', '.join(lacking)}")
